"""Smoothing of sensor values."""

from readings.window import running_medians

__all__ = ["running_medians"]
