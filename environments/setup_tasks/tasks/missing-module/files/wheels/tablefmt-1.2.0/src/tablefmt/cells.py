"""Cells of a table."""


def width(cells):
    return max((len(cell) for cell in cells), default=0)


def pad(cell, size):
    return cell.ljust(size)
