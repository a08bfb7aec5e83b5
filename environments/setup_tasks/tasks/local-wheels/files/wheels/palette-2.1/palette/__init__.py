"""Colours that go together."""

from hexcolor import parts


class Palette(tuple):
    def __new__(cls, colors):
        return super().__new__(cls, map(parts, colors))
