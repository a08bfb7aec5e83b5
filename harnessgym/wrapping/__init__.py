"""`harnessgym wrap`: runs any command with the proxy in place of its model provider."""

from harnessgym.wrapping.wrap import Wrapped, WrapSettings, wrap

__all__ = ["WrapSettings", "Wrapped", "wrap"]
