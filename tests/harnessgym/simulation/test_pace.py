"""The pace by hand."""

import pytest

from harnessgym.simulation.pace import Pace


def test_the_same_at_any_time():
    pace = Pace.even(0.5)
    assert pace.left(3.0, environment_s=4.0, decoding=10.0, calls_s=[]) == pytest.approx(3 + 4 + 5)
    assert pace.left(3.0, environment_s=0.0, decoding=0.0, calls_s=[]) == 3.0


def test_a_rollout_goes_on_at_the_pace_of_each_span():
    """12 s at the pace of the first 10 s, of which half are done there; the other half takes 4 + 0 s at
    the second.
    """
    pace, calls_s = Pace([1.0, 0.5], mean_s=0.75, span_s=10.0), []
    assert pace.left(4.0, environment_s=4.0, decoding=8.0, calls_s=calls_s) == pytest.approx(10 + 4)
    assert calls_s == pytest.approx([4, 2]), "8 of 12 seconds decode in the first, 4 of 8 in the second"


def test_the_last_span_lasts():
    pace, calls_s = Pace([1.0, 0.5], mean_s=0.75, span_s=10.0), []
    assert pace.left(95.0, environment_s=0.0, decoding=20.0, calls_s=calls_s) == pytest.approx(105)
    assert calls_s == pytest.approx([0] * 9 + [5, 5])


def test_it_counts_the_calls_of_all_rollouts():
    pace, calls_s = Pace.even(1.0, span_s=10.0), []
    for begun in (0.0, 0.0, 5.0):
        pace.left(begun, environment_s=0.0, decoding=10.0, calls_s=calls_s)
    assert calls_s == pytest.approx([25, 5])
