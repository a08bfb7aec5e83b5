"""Colours of a poster."""

from palette import Palette
from palette.mixing import mixed

DARK = Palette(["#000000", "#202020"])


def between(first, second):
    return mixed(first, second)
