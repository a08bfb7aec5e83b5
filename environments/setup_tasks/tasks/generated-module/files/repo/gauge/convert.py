"""Between units."""

from gauge._units import METRES


def convert(value, unit, to):
    return value * METRES[unit] / METRES[to]
