import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessgym.metrics.window import Window, union
from harnessgym.store.recent import RecentCall, RecentRollout

moments = st.integers(0, 50)
intervals = st.lists(st.tuples(moments, moments).map(lambda pair: (min(pair), max(pair))), max_size=12)


def call(key, begin, seconds, tokens=10, worker="e", status="delivered", rollout="r"):
    return RecentCall(key, rollout, begin, status, worker, tokens, seconds)


def ended(key, at, status="finished", cause=None, **latencies):
    return RecentRollout(
        key, "run", status, cause, {name.replace("_", "."): v for name, v in latencies.items()}, at
    )


@given(intervals)
def test_a_union_counts_every_moment_once(spans):
    covered = {tick for begin, end in spans for tick in range(begin, end)}
    assert union(spans) == len(covered)


@given(intervals)
def test_a_worker_is_never_busier_than_always_nor_has_fewer_calls_than_that(spans):
    window = Window(20.0)
    window.add_calls(call(str(n), float(begin), float(end - begin)) for n, (begin, end) in enumerate(spans))
    window.move(40.0, 0.0)
    use = window.worker("e")
    assert 0.0 <= use.busy <= 1.0
    assert use.busy <= use.calls + 1e-9


def test_shares_and_rates_are_those_of_the_window():
    window = Window(10.0)
    window.add_calls(
        [
            call("a", 85.0, 10.0),
            call("b", 92.0, 4.0),
            call("c", 91.0, 1.0, worker="f"),
            call("old", 70.0, 5.0),
        ]
    )
    window.move(100.0, 0.0)
    assert window.worker("e").busy == pytest.approx(0.6)  # 90 to 95, and on to 96
    assert window.worker("e").calls == pytest.approx(0.9)
    assert window.worker("f").busy == pytest.approx(0.1)
    assert window.worker("nobody").busy == 0.0
    assert window.tokens_per_s == pytest.approx(3.0)  # not the old one's


def test_before_it_is_full_it_is_as_long_as_what_is_known():
    window = Window(60.0)
    window.add_calls([call("a", 100.0, 2.0)])
    window.move(104.0, 100.0)
    assert window.span_s == pytest.approx(4.0)
    assert window.worker("e").busy == pytest.approx(0.5)


def test_a_call_is_open_until_it_is_seen_to_have_ended():
    window = Window(10.0)
    window.add_calls([call("a", 95.0, 0.0, 0, "", "intent"), call("b", 20.0, 0.0, 0, "", "intent")])
    window.move(100.0, 0.0)
    assert sorted(window.open_calls) == ["a", "b"]
    window.add_calls([call("a", 95.0, 5.0)])
    assert window.open_calls == ["b"]
    assert window.worker("e").busy == pytest.approx(0.5)


def test_what_a_rollout_that_ended_has_open_is_forgotten():
    window = Window(10.0)
    window.add_calls(
        [call("a", 95.0, 0.0, 0, "", "intent", "dead"), call("b", 96.0, 0.0, 0, "", "intent", "alive")]
    )
    window.add_ended([ended("dead", 97.0, "failed", "node_lost")])
    assert window.open_calls == ["b"]


def test_stages_by_littles_law():
    """Two rollouts in ten seconds that spent 15 s in a stage each: three were in it at one time."""
    window = Window(10.0)
    window.add_ended(
        [
            ended("a", 95.0, run=15.0, wait_run=5.0),
            ended("b", 99.0, run=15.0, evaluate=1.0),
            ended("c", 80.0, run=9),
        ]
    )
    window.move(100.0, 0.0)
    stages = window.stages()
    assert list(stages) == ["prepare", "run", "reconstruct", "evaluate"]
    assert (stages["run"].running, stages["run"].waiting, stages["run"].mean_s) == pytest.approx(
        (3.0, 0.5, 15.0)
    )
    assert (stages["evaluate"].running, stages["evaluate"].mean_s) == pytest.approx((0.1, 1.0))
    assert stages["prepare"].running == 0.0


def test_only_judged_rollouts_count_and_failures_have_causes():
    window = Window(10.0)
    window.add_ended(
        [
            ended("a", 99.0),
            ended("b", 99.0, "failed", "oom"),
            ended("c", 98.0, "failed"),
            ended("d", 99.0, "cancelled"),
        ]
    )
    window.move(100.0, 0.0)
    assert window.rollouts_per_s == pytest.approx(0.1)
    assert window.failures == {"oom": 1, "unknown": 1}


def test_the_same_rollout_twice_counts_once():
    window = Window(10.0)
    window.add_ended([ended("a", 99.0)])
    window.add_ended([ended("a", 99.0)])
    window.move(100.0, 0.0)
    assert window.rollouts_per_s == pytest.approx(0.1)
