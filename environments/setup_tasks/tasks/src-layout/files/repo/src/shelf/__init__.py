"""Books on a shelf."""

from shelf.index import by_author

__all__ = ["by_author"]
