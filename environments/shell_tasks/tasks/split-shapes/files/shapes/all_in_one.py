"""Everything about shapes."""

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


def area_of_all(shapes):
    """Their areas together."""
    return sum(area(shape) for shape in shapes)


def describe(shapes):
    """A line for each shape, the largest first, and one for all."""
    lines = [f"{shape['kind']}: {area(shape):.2f}" for shape in sorted(shapes, key=area, reverse=True)]
    return "\n".join([*lines, f"all: {area_of_all(shapes):.2f}"])
