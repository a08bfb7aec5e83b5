"""Calls that are decoded together, by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessgym.simulation.settings import EnginesSection
from harnessgym.simulation.worker import SimulatedCall, SimulatedWorker, call_speeds, decoding_rate


def worker(**options):
    engines = EnginesSection(**({"tokens_per_s": 10, "most_tokens_per_s": 20, "prefill_cost": 0} | options))
    return SimulatedWorker(0, engines, call_speeds(engines))


def call(tokens, *, read=0, context=0, cached=None):
    return SimulatedCall(None, tokens, read, context, {}, cached)


def test_one_call_gets_the_rate_of_one_and_two_share():
    assert decoding_rate(EnginesSection(tokens_per_s=10, most_tokens_per_s=20), 1) == 10
    # a step with two calls takes 1/10 + 1/20 s: 6 2/3 tokens/s each
    one = worker()
    one.waiting.append(call(100))
    one.start(0.0)
    assert one.due(0.0) == pytest.approx(10.0)
    one.waiting.append(call(20))
    one.start(3.0)  # the first has 70 left
    assert one.due(3.0) == pytest.approx(3.0 + 20 / (20 / 3))
    assert [done.wanted for done in one.finished(6.0)] == [20]
    assert one.due(6.0) == pytest.approx(6.0 + 50 / 10)  # it had 20 of its 70 in those 3 s


@given(st.floats(1, 100), st.floats(1, 1e4), st.integers(1, 200))
def test_a_worker_gets_faster_and_its_calls_slower_with_each_call(alone, most, calls):
    engines = EnginesSection(tokens_per_s=alone, most_tokens_per_s=max(alone, most))
    more, now, less = (decoding_rate(engines, calls + change) for change in (1, 0, -1))
    assert more >= now * (1 - 1e-9)
    assert more / (calls + 1) <= now / calls * (1 + 1e-9)
    assert now - less >= more - now - 1e-9 * now, "concave"


def test_reading_the_prompt_costs_what_is_not_cached():
    costly = {"prefill_cost": 0.1}
    for cached, due in ((None, 10 + 60 / 10), ((0, 0), 10 + 10 / 10), ((0, 1), 16), ((1, 0), 16)):
        one = worker(**costly)
        one.waiting.append(call(100, read=100, context=500, cached=cached))
        one.start(0.0)
        assert one.due(0.0) == pytest.approx(due), cached


def test_a_full_batch_lets_calls_wait():
    one = worker(max_batch=1)
    one.waiting.extend([call(10), call(10)])
    one.start(0.0)
    assert (len(one.running), len(one.waiting), one.load) == (1, 1, 2)
    assert len(one.finished(1.0)) == 1
    one.start(1.0)
    assert one.due(1.0) == pytest.approx(2.0)


def test_a_call_that_is_taken_back_has_whole_tokens_and_goes_on_from_them():
    one = worker(prefill_cost=0.1)
    one.waiting.append(call(100, read=50))
    one.start(0.0)
    ((taken, sampled),) = one.take_back(3.26)  # 5 tokens' time for the prompt, 27.6 for its own
    assert sampled == 27
    assert not one.running
    taken.sampled += sampled
    one.waiting.append(taken)
    one.start(4.0)
    assert one.due(4.0) == pytest.approx(4.0 + (100 - 27 + 0.1 * (50 + 27)) / 10)


def test_nothing_was_sampled_while_the_prompt_was_read():
    one = worker(prefill_cost=1.0)
    one.waiting.append(call(100, read=50))
    one.start(0.0)
    assert [sampled for _, sampled in one.take_back(2.0)] == [0]
