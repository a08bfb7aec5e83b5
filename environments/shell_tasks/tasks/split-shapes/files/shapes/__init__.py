"""Areas of shapes, and reports about them."""

from shapes.all_in_one import area, area_of_all, describe

__all__ = ["area", "area_of_all", "describe"]
