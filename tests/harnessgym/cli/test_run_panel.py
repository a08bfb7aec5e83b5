import io
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from harnessgym.cli.live_view import Dashboard
from harnessgym.cli.run_panel import clock, line, panel, size
from harnessgym.metrics.feed import SinkStatus
from harnessgym.metrics.window import StageUse, WorkerUse
from harnessgym.store.policies import PolicyVersion
from harnessgym.store.workers import WorkerRow
from harnessgym.supervisor.progress import PolicyProgress, RunProgress, TrainerUse


def engine(number, busy=0.8, state="ready", version=6):
    return WorkerRow(f"engine-{number}", "r", "embedded", "", version, state), WorkerUse(busy, 2.5, 1234.0)


PROGRESS = RunProgress(
    name="demo",
    status="training",
    done=6,
    total=24,
    left_s=95.0,
    steps=6,
    metrics={"step": 6, "reward": 0.625, "staleness": 1, "time": 1000.0},
    rewards=(0.1, 0.3, 0.2, 0.5, 0.55, 0.625),
    trainer=TrainerUse(0.25, 1.0, 3.0, 5.0),
    engines=(engine(0), engine(1, 0.5)),
    stages={
        "prepare": (4, StageUse(1.0, 0.0, 0.2)),
        "run": (16, StageUse(12.0, 1.5, 3.5)),
        "reconstruct": (2, StageUse(0.5, 0.0, 0.1)),
        "evaluate": (4, StageUse(0.25, 0.0, 0.05)),
    },
    processors={"trainer": 0.9, "engine-0": 0.7, "engine-1": 0.4, "node": None, "proxy": 0.25},
    recorded=True,
    nodes=1,
    running=18,
    pending=40,
    failed=0,
    failures={},
    groups={"open": 12, "complete": 4, "dropped": 0},
    eta=2,
    staleness=Counter({0: 100, 1: 300}),
    staleness_of_step=Counter({1: 30}),
    versions=(PolicyVersion(6, 5, "full", "", 6, "", 2_500_000, committed=True, orphaned=False),),
    counters={},
    sinks={},
    tokens_per_s=2468.0,
    rollouts_per_s=4.5,
    restarts=0,
)


def drawn(progress, width=100, height=30):
    console = Console(file=io.StringIO(), width=width, height=height, color_system=None)
    console.print(panel(progress, width, height))
    return console.file.getvalue().rstrip("\n").split("\n")


def test_everything_is_there_on_a_terminal_of_100_by_30():
    text = "\n".join(drawn(PROGRESS))
    for part in (
        "HarnessGym demo: training", "6/24 steps, 1:35 left", "reward 0.625", "staleness 1 of at most 2", "4.5 rollouts/s",
        "2,468 tokens/s", "reward by step", "trainer   25 %", "waits 1.0 s, works 3.0 s a step",
        "engine-0  20 %", "v6 ready, 2.5 calls, 1,234 tokens/s", "node      25 %", "12.0 of 16 harnesses", "proxy     75 %",
        "reconstruct", "300", "75 %", "18 running, 40 pending", "12 open, 4 complete, 0 dropped", "v6 full 2.5 MB",
    ):  # fmt: skip
        assert part in text
    assert "failed" not in text


@settings(max_examples=40)
@given(
    width=st.integers(20, 200),
    height=st.integers(5, 80),
    engines=st.integers(0, 12),
    lags=st.integers(0, 12),
    done=st.integers(0, 24),
    trouble=st.booleans(),
)
def test_it_fits_any_terminal(width, height, engines, lags, done, trouble):
    progress = replace(
        PROGRESS,
        done=done,
        engines=tuple(engine(number) for number in range(engines)),
        staleness=Counter(dict.fromkeys(range(lags), 5)),
        failed=7 * trouble,
        restarts=2 * trouble,
        counters={"dropped_groups": 3.0} if trouble else {},
        sinks={"wandb": SinkStatus(3, 4)} if trouble else {},
    )
    picture = drawn(progress, width, height)
    assert all(len(row) <= width for row in picture)
    assert len(picture) <= height - 1
    assert any(f"{done}/24" in row for row in picture)


def test_silent_processes_are_shown_as_such():
    silent = replace(PROGRESS, silent={"trainer": 21.4, "engine-1": 17.0, "node-3": 16.0})
    rows = drawn(silent)
    assert next(row for row in rows if " trainer " in row).rstrip(" │").endswith("silent for 21 s")
    assert next(row for row in rows if " engine-1 " in row).rstrip(" │").endswith("silent for 17 s")
    assert "v6 ready" in next(row for row in rows if " engine-0 " in row)
    whole = "silent: engine-1 for 17 s, node-3 for 16 s, trainer for 21 s"
    assert any(whole in row for row in rows)
    assert whole in line(silent)


def test_a_low_terminal_keeps_what_matters_most():
    text = "\n".join(drawn(PROGRESS, 100, 13))
    assert "trainer" in text
    assert "reconstruct" not in text


def test_many_engines_share_a_row():
    progress = replace(
        PROGRESS, engines=tuple(engine(n, 0.5, "ready" if n % 2 else "draining", 6 - n % 3) for n in range(9))
    )
    text = "\n".join(drawn(progress))
    assert "engine-3" in text
    assert "engine-4" not in text
    assert "5 more" in text
    assert "v4 or newer, 2 ready" in text


@pytest.mark.parametrize(("bias", "shown"), [(0.93, True), (1.02, True), (0.995, False), (1.0, False)])
def test_a_length_bias_is_shown_where_there_is_one(bias, shown):
    picture = "\n".join(drawn(replace(PROGRESS, metrics=PROGRESS.metrics | {"length_bias": bias}), 200))
    assert (f"length bias: {bias:.2f}" in picture) == shown
    assert ("length bias" in picture) == shown


def test_several_policies_have_a_trainer_each_and_engines_that_say_whose_they_are():
    helper = PolicyProgress("helper", 5, 4, {}, TrainerUse(0.5, 1.0, 1.0, 2.0))
    known = {"a": PolicyProgress("scout", 6, 6, {}, PROGRESS.trainer), "b": helper}
    (first, use), (second, _) = PROGRESS.engines
    engines = ((replace(first, policy_id="a"), use), (replace(second, policy_id="b", version=5), use))
    text = "\n".join(drawn(replace(PROGRESS, policies=known, engines=engines)))
    for part in ("trainer-helper", "4 steps, published v5", "scout v6 ready", "helper v5 ready"):
        assert part in text


def test_trouble_is_named():
    progress = replace(
        PROGRESS,
        failed=7,
        failures={"sandbox_lost": 2},
        restarts=1,
        counters={"dropped_groups": 3.0},
        sinks={"wandb": SinkStatus(3, 4)},
    )
    text = "\n".join(drawn(progress, 200))
    assert "attempts failed: 7 (last minute: 2 sandbox_lost)" in text
    assert "processes restarted: 1" in "\n".join(drawn(replace(PROGRESS, restarts=1)))
    for part in ("dropped groups: 3", "sink wandb failed 4 times"):
        assert part in "\n".join(drawn(replace(progress, failed=0, failures={})))


def test_many_lags_share_a_row():
    text = "\n".join(drawn(replace(PROGRESS, staleness=Counter(dict.fromkeys(range(8), 10)))))
    assert "4-7" in text
    assert "50 %" in text


def test_a_run_that_nobody_serves_says_so():
    assert "no process of it runs here" in drawn(replace(PROGRESS, processors={}))[0]
    assert "demo [/x]" in drawn(replace(PROGRESS, name="demo [/x]"))[0]
    assert "no process" not in drawn(replace(PROGRESS, processors={}, status="done"))[0]
    cluster = replace(PROGRESS, processors={}, recorded=False, nodes=0)
    assert "no node of it takes rollouts" in drawn(cluster)[0]
    assert "(no" not in drawn(replace(cluster, status="done"))[0]


def test_a_run_on_several_machines_is_served_where_its_nodes_are():
    text = "\n".join(drawn(replace(PROGRESS, processors={}, recorded=False, nodes=3)))
    assert "(no" not in text
    assert "3 nodes" in text


def test_before_the_first_step_nothing_is_invented():
    bare = replace(
        PROGRESS,
        done=0,
        steps=0,
        left_s=None,
        metrics={},
        rewards=(),
        trainer=None,
        staleness=Counter(),
        versions=(),
    )
    text = "\n".join(drawn(bare))
    assert "0/24 steps " in text
    assert "reward -" in text
    assert "has taken no step" in text
    assert "reward by step" not in text


def test_one_line_says_the_essence():
    said = line(PROGRESS)
    assert said == (
        "training: 6/24 steps  reward 0.62, staleness 1  4.5 rollouts/s, 2468 tokens/s  "
        "idle: trainer 25 %, engines 35 %  1:35 left"
    )
    evaluating = replace(PROGRESS, status="evaluating_before", metrics={}, engines=(), left_s=None)
    assert line(evaluating) == "evaluating the start: 6/24 groups  4.5 rollouts/s, 2468 tokens/s"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "0:00"), (7, "0:07"), (59.7, "1:00"), (750, "12:30"), (11_045, "3:04:05")]
)
def test_durations(seconds, text):
    assert clock(seconds) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (532_058, "532.1 kB"), (3.2e12, "3200.0 GB")],
)
def test_sizes(number, text):
    assert size(number) == text


def console_of(**options):
    return Console(file=io.StringIO(), width=100, height=30, **options)


def test_elsewhere_than_on_a_terminal_a_line_comes_now_and_then():
    console, looks = console_of(), []

    def look():
        looks.append(1)
        return replace(PROGRESS, rollouts_per_s=float(len(looks)))

    with Dashboard(console, look) as dashboard:
        for _ in range(50):
            dashboard()
        assert len(looks) == 1
        dashboard.draw(replace(PROGRESS, rollouts_per_s=9.0))  # too soon
        dashboard.draw(replace(PROGRESS, status="evaluating_after"))  # another phase
        dashboard.say("A process [ended].")
        dashboard.finish()
    said = console.file.getvalue().splitlines()
    assert [text.split(":")[0] for text in said] == [
        "training",
        "evaluating the result",
        "A process [ended].",
        "training",
    ]
    assert "\x1b" not in console.file.getvalue()


def test_on_a_terminal_the_panel_is_drawn_again_in_place():
    console = console_of(force_terminal=True)
    with Dashboard(console, lambda: PROGRESS) as dashboard:
        dashboard()
        dashboard.say("Engine-0 is started again.")
        dashboard.finish()
    text = console.file.getvalue()
    assert text.count("HarnessGym demo: training") >= 2
    assert "Engine-0 is started again." in text
    assert "\x1b[2K" in text
