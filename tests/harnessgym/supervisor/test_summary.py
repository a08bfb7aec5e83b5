import math
import random

import pytest

from harnessgym.supervisor.summary import paired_gain


def test_a_sure_gain_has_an_interval_above_zero():
    gain, low, high = paired_gain([0.0] * 200, [1.0] * 180 + [0.0] * 20)
    assert gain == pytest.approx(0.9)
    assert 0.8 < low < 0.9 < high < 1.0


def test_no_gain_has_an_interval_around_zero():
    draw = random.Random(0)
    before = [float(draw.random() < 0.3) for _ in range(200)]
    after = [float(draw.random() < 0.3) for _ in range(200)]
    _, low, high = paired_gain(before, after)
    assert low < 0 < high


def test_the_interval_is_the_same_every_time():
    values = [0.0, 1.0] * 50, [1.0, 1.0, 0.0, 1.0] * 25
    assert paired_gain(*values) == paired_gain(*values)


def test_no_evaluation_is_no_number():
    assert all(math.isnan(value) for value in paired_gain([], []))
