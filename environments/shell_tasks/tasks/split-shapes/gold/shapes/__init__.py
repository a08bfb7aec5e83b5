"""Areas of shapes, and reports about them."""

from shapes.areas import area
from shapes.report import area_of_all, describe

__all__ = ["area", "area_of_all", "describe"]
