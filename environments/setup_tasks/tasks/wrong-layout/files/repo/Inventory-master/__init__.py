"""What lies in the store room."""

from inventory.stock import Stock

__all__ = ["Stock"]
