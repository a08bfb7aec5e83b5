import pytest
from rich.console import Console

from harnessgym.simulation.bound import Bound
from harnessgym.simulation.outcome import SimulationOutcome
from harnessgym.simulation.report import figures, most_stale, tables


def outcome(seed=0, **fields):
    defaults = {
        "name": "arm",
        "virtual_s": 100.0,
        "rollouts_per_s": 2.0,
        "tokens_per_s": 1234.0,
        "bound": Bound(engines=4.0, graders=float("inf"), trainer=5.0, path=6.0),
        "idle": {"engines": 0.25, "environments": 0.5, "graders": 0.75, "trainer": 0.0},
        "staleness": {0: 60, 2: 40},
        "versions": {1: 3, 2: 1},
        "queues": {
            "rollouts queued": 1.0,
            "calls waiting": 2.0,
            "rollouts ungraded": 3.0,
            "groups complete": 4.0,
        },
        "longest": {},
        "out_of_service": 0.125,
        "serving_nobody": 0.0,
        "length_bias": 0.9,
        "counts": {"groups dropped": 2, "tokens dropped": 70, "tokens failed": 30},
        "events": 10,
    }
    return SimulationOutcome(seed=seed, **(defaults | fields))


def printed(table):
    console = Console(width=250, record=True, file=None, quiet=False)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def cells(table, name):
    """The cells of a variant's row, in order."""
    row = next(line for line in printed(table).splitlines() if f"│ {name} " in line)
    return [cell.strip() for cell in row.strip("│").split("│")][1:]


def test_a_figure_is_its_median_with_its_interval():
    speeds = [outcome(seed, rollouts_per_s=speed) for seed, speed in enumerate((3.0, 1.0, 2.0))]
    made = figures(speeds)
    assert made["seeds"] == 3
    assert made["rollouts_per_s"] == {"median": 2.0, "low": 1.0, "high": 3.0}
    assert made["of_bound"] == {"median": 0.5, "low": 0.25, "high": 0.75}


def test_every_kind_queue_and_count_has_a_figure():
    made = figures([outcome()])
    assert made["idle_graders"]["median"] == 0.75
    assert made["queue_groups_complete"]["median"] == 4.0
    assert made["groups_dropped"]["median"] == 2.0
    assert made["groups_requeued"]["median"] == 0.0
    assert made["max_staleness"]["median"] == 2.0
    assert made["mean_staleness"]["median"] == pytest.approx(0.8)
    assert made["versions_per_rollout"]["median"] == pytest.approx(5 / 4)


def test_the_limit_is_the_one_of_most_seeds():
    trainer = Bound(engines=9.0, graders=9.0, trainer=1.0, path=9.0)
    assert figures([outcome(), outcome(1, bound=trainer), outcome(2, bound=trainer)])["limit"] == "trainer"


def test_shares_of_staleness_are_over_the_tokens_of_all_seeds():
    made = figures([outcome(staleness={0: 30}), outcome(1, staleness={1: 60, 12: 10})])
    assert made["staleness"] == {"0": 0.3, "1": 0.6, "12": 0.1}


def test_a_run_without_trained_tokens_has_figures_of_zero():
    made = figures([outcome(staleness={}, versions={})])
    assert made["staleness"] == {}
    for name in ("mean_staleness", "max_staleness", "off_policy", "versions_per_rollout"):
        assert made[name]["median"] == 0.0


def test_the_most_stale_token_of_any_seed_counts():
    assert most_stale({"0": 0.9, "10": 0.05, "9": 0.05}) == 10
    assert most_stale({}) == 0


@pytest.mark.parametrize(
    ("seeds", "title"),
    [
        (1, "Throughput (simulated, 1 seed)"),
        (5, "Throughput (simulated, 5 seeds: median [range])"),
        (6, "Throughput (simulated, 6 seeds: median [95 % interval])"),
    ],
)
def test_a_title_says_what_stands_in_brackets(seeds, title):
    throughput, *_ = tables({"sync": [outcome(seed) for seed in range(seeds)]})
    assert throughput.title == title


def test_the_table_of_throughput_has_a_row_a_variant():
    throughput, *_ = tables({"sync": [outcome()], "eta-2": [outcome(rollouts_per_s=3.0)]})
    assert cells(throughput, "sync") == ["2.00", "1,234", "0.500", "engines", "0.25", "0.50", "0.75", "0.00"]
    assert cells(throughput, "eta-2")[0] == "3.00"


def test_the_table_of_staleness_adds_up_lost_tokens():
    _, staleness, *_ = tables({"sync": [outcome()]})
    assert cells(staleness, "sync") == ["0.80", "2", "0.40", "1.25", "0.900", "0.125", "2", "0", "100"]


def test_the_histogram_sums_up_the_stalest_tokens():
    *_, histogram, _ = tables({"sync": [outcome(staleness={0: 50, 7: 25, 8: 15, 30: 10})]})
    assert cells(histogram, "sync") == ["0.50", *[""] * 6, "0.25", "0.25"]


def test_a_histogram_without_stale_tokens_has_empty_cells():
    *_, histogram, _ = tables({"sync": [outcome(staleness={0: 3})]})
    assert cells(histogram, "sync") == ["1.00", *[""] * 8]


def test_the_table_of_queues_has_mean_lengths():
    *_, queues = tables({"sync": [outcome()]})
    assert cells(queues, "sync") == ["1", "2", "3", "4"]
