"""Units."""

from gauge._units import VERSION as __version__

__all__ = ["__version__"]
