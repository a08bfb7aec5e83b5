"""Windows that slide over a list of values."""

from bisect import bisect_left, insort


def running_medians(values, size):
    """The median of every `size` neighbouring values."""
    if size < 1:
        raise ValueError(f"a window holds at least one value, not {size}")
    window = sorted(values[:size])
    medians = []
    for right in range(size, len(values) + 1):
        medians.append((window[(size - 1) // 2] + window[size // 2]) / 2)
        if right < len(values):
            del window[bisect_left(window, values[right - size])]
            insort(window, values[right])
    return medians
