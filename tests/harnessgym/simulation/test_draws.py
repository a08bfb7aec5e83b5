import numpy as np
import pytest

from harnessgym.simulation.draws import Draws, WorkTable

BLOCK = 4_096


def test_a_draw_depends_on_the_seed_and_its_index_alone(make_config):
    forward, backward = Draws(make_config()), Draws(make_config())
    numbers = [0, 5, BLOCK - 1, BLOCK, BLOCK + 7]
    first = [forward.rollout(number) for number in numbers]
    assert first == [backward.rollout(number) for number in reversed(numbers)][::-1]
    assert Draws(make_config(seed=1)).rollout(5) != first[1]


def test_blocks_differ(make_config):
    draws = Draws(make_config())
    assert draws.rollout(0) != draws.rollout(BLOCK)


def test_a_rollout_has_one_number_a_call_and_each_call_samples_a_token(make_config):
    draws = Draws(make_config(work={"turns": "lognormal:1:1.5", "tokens": "lognormal:1:2.0"}))
    for number in range(200):
        work = draws.rollout(number)
        assert len(work.tokens) == len(work.read) == len(work.environment_s) >= 1
        assert min(work.tokens) >= 1


def test_the_number_of_environments_does_not_change_the_work(make_config):
    few, many = Draws(make_config(work={"environments": 1})), Draws(make_config(work={"environments": 99}))
    assert few.rollout(3) == many.rollout(3)


def test_transfers_and_installs_are_drawn_apart(make_config):
    updates = {"transfer_s": "lognormal:10:0.3", "install_s": "lognormal:1:0.3"}
    alone, mixed = Draws(make_config(updates=updates)), Draws(make_config(updates=updates))
    transfers = [alone.transfer_s() for _ in range(5)]
    interleaved = [(mixed.install_s(), mixed.transfer_s())[1] for _ in range(5)]
    assert transfers == interleaved
    assert len(set(transfers)) == 5


def test_there_is_a_step_duration_for_each_step(make_config):
    draws = Draws(make_config(trainer={"steps": 12, "step_s": "lognormal:30:0.2"}))
    assert len(draws.step_s) == 12
    assert len(set(draws.step_s)) == 12


@pytest.mark.parametrize("count", [1, 10, BLOCK, BLOCK + 3])
def test_a_table_has_the_totals_of_the_first_rollouts(make_config, count):
    config = make_config(engines={"prefill_cost": 0.5})
    draws = Draws(config)
    table = draws.table(count)
    assert len(table.tokens) == len(table.decoding) == len(table.grading_s) == count
    work = draws.rollout(count - 1)
    assert table.tokens[-1] == sum(work.tokens)
    assert table.decoding[-1] == pytest.approx(sum(work.tokens) + 0.5 * sum(work.read))
    assert table.environment_s[-1] == pytest.approx(sum(work.environment_s))
    assert table.grading_s[-1] == work.grading_s


def test_a_rollout_without_contention_decodes_waits_and_is_graded(make_config):
    config = make_config(
        engines={"tokens_per_s": 10, "prefill_cost": 0.1},
        work={"turns": 3, "tokens": 50, "read": 20, "environment_s": 2, "grading_s": 4},
    )
    table = WorkTable.of(config, 5)
    assert table.alone_s(config).tolist() == pytest.approx([3 * (50 + 2) / 10 + 3 * 2 + 4] * 5)


def test_waits_are_ascending(make_config):
    waits = WorkTable.of(make_config(), 4).waits_s
    assert (np.diff(waits) >= 0).all()


def test_a_pause_gains_what_a_wait_of_that_length_would_have_cost(make_config):
    """All waits are 4 s and half of a rollout's time: a pause of 2 s gains 2 s with probability 1/2."""
    config = make_config(
        engines={"tokens_per_s": 10, "prefill_cost": 0},
        work={"turns": 1, "tokens": 80, "environment_s": 4, "grading_s": 4},
    )
    table = WorkTable.of(config, 4)
    assert table.gained_s(2.0, 0.1) == pytest.approx(1.0)
    assert table.gained_s(100.0, 0.1) == pytest.approx(2.0)
    assert table.gained_s(0.0, 0.1) == 0.0


def test_long_waits_are_met_in_proportion_to_their_length():
    waits = np.array([1.0, 3.0])
    half = np.array([2.0])
    table = WorkTable(half, half, half, np.zeros(1), half, waits)
    # A wait of 1 s is met with probability 1/4, one of 3 s with 3/4; half of the time is waiting.
    assert table.gained_s(2.0, 1.0) == pytest.approx((1 / 4 * 1 + 3 / 4 * 2) / 2)


def test_a_pause_gains_nothing_without_waits(make_config):
    table = WorkTable.of(make_config(work={"environment_s": 0, "grading_s": 0}), 4)
    assert table.gained_s(10.0, 0.1) == 0.0
