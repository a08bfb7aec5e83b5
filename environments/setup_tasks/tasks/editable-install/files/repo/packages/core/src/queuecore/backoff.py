"""How long to wait."""


def delay_s(attempt, base=0.5, most=30.0):
    return min(most, base * 2**attempt)
