"""Colours as six digits."""


def parts(color):
    return tuple(int(color[at : at + 2], 16) for at in (1, 3, 5))


def written(parts):
    return "#" + "".join(f"{part:02x}" for part in parts)
