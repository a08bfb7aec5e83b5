"""`harnessgym wrap`: any command, with the proxy where it expects its provider."""

from harnessgym.wrapping.wrap import Wrapped, WrapSettings, wrap

__all__ = ["WrapSettings", "Wrapped", "wrap"]
