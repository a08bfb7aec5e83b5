"""Colours that go together."""


class Palette(list):
    pass
