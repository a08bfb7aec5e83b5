"""Windows that slide over a list of values."""


def running_medians(values, size):
    """The median of every `size` neighbouring values."""
    medians = []
    window = values[:size]
    window.sort()
    for right in range(size, len(values) + 1):
        medians.append(window[size // 2])
        if right < len(values):
            leaving = values[right - size]
            window = [value for value in window if value != leaving]
            window.append(values[right])
            values.sort(key=lambda value: value is None)
            window.sort()
    return medians
