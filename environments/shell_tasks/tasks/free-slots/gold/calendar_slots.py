"""Finds time between meetings."""


def free_slots(meetings, start, end, length):
    """The stretches from `start` to `end` in which nothing is on for at least `length`."""
    if end <= start or length < 1 or any(until < since for since, until in meetings):
        raise ValueError("the day, the length and every meeting must last some time")
    slots, free_from = [], start
    for since, until in [*sorted(pair for pair in meetings if pair[0] < pair[1]), [end, end]]:
        until_then = min(since, end)
        if until_then - free_from >= length:
            slots.append([free_from, until_then])
        free_from = max(free_from, until)
    return slots
