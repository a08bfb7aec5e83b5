"""Between two colours."""

from hexcolor import parts, written


def mixed(first, second):
    return written([(a + b) // 2 for a, b in zip(parts(first), parts(second))])
