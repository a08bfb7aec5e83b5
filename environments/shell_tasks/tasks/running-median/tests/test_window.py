import random
import statistics

import pytest

from readings import running_medians


def test_a_full_window_of_odd_size():
    assert running_medians([5, 1, 4, 2, 3], 3) == [4, 2, 3]


def test_an_even_window_takes_the_mean_of_the_middle_two():
    assert running_medians([1, 2, 10, 20], 2) == [1.5, 6, 15]


def test_old_values_leave_the_window():
    assert running_medians([9, 8, 7, 6], 1) == [9, 8, 7, 6]


def test_equal_values_leave_one_by_one():
    assert running_medians([2, 2, 2, 1, 1], 3) == [2, 2, 1]


def test_the_input_is_left_as_it_was():
    values = [3, 1, 2, 5, 4]
    running_medians(values, 2)
    assert values == [3, 1, 2, 5, 4]


@pytest.mark.parametrize("size", [1, 4, 7])
def test_medians_of_random_windows(size):
    draw = random.Random(size)
    values = [draw.randrange(12) for _ in range(60)]
    windows = [values[left : left + size] for left in range(len(values) - size + 1)]
    assert running_medians(values, size) == pytest.approx([statistics.median(window) for window in windows])


def test_a_window_of_no_size_is_refused():
    with pytest.raises(ValueError):
        running_medians([1, 2], 0)
