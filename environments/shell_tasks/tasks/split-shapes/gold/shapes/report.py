"""Reports about shapes."""

from shapes.areas import area


def area_of_all(shapes):
    """Their areas together."""
    return sum(area(shape) for shape in shapes)


def describe(shapes):
    """A line for each shape, the largest first, and one for all."""
    lines = [f"{shape['kind']}: {area(shape):.2f}" for shape in sorted(shapes, key=area, reverse=True)]
    return "\n".join([*lines, f"all: {area_of_all(shapes):.2f}"])
