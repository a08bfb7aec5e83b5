"""Areas of shapes."""

import math

_FORMULAS = {
    "square": lambda shape: shape["side"] ** 2,
    "circle": lambda shape: math.pi * shape["radius"] ** 2,
    "triangle": lambda shape: shape["base"] * shape["height"] / 2,
}


def area(shape):
    """The area of one shape."""
    if shape["kind"] not in _FORMULAS:
        raise ValueError(f"no such shape: {shape['kind']}")
    return _FORMULAS[shape["kind"]](shape)
