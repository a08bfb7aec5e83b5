"""Sinks by name; see `harnessgym.metrics.sink`."""
