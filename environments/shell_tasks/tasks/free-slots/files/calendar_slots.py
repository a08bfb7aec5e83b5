"""Finds time between meetings."""


def free_slots(meetings, start, end, length):
    """The stretches from `start` to `end` in which nothing is on for at least `length`."""
    raise NotImplementedError
