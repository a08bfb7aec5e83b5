"""Numbers of books."""


def check_digit(number):
    total = sum(int(digit) * (1 + 2 * (place % 2)) for place, digit in enumerate(number[:12]))
    return -total % 10
