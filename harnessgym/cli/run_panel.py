"""The panel of a run, fitted to the width and height of the terminal."""

import time
from collections.abc import Iterable, Mapping

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from harnessgym.supervisor.progress import RunProgress

TITLES = {
    "evaluating_before": "evaluating the start",
    "training": "training",
    "evaluating_after": "evaluating the result",
    "done": "done",
    "failed": "failed",
}
_SPARKS = "▁▂▃▄▅▆▇█"
_BAR = 10
_WIDE = 90
_WIDEST = 110
_HALF = 50
_ENGINES = 4
"""Engines with their own row; the others share one."""
_FRAME = 2
_BIAS = 0.01
"""A length bias is shown if it differs from 1 by this much."""


def panel(progress: RunProgress, width: int, height: int) -> Panel:
    """The panel. If it is too high, the least important sections are left out."""
    wide = width >= _WIDE
    room = height - _FRAME - 1
    sections = [  # most important first; the number is the place on the screen
        (0, _facts(progress, wide, min(width, _WIDEST) - 2 * _FRAME, room)),
        (2, _processes(progress, wide)),
        (3, _staleness(progress, wide)),
        (5, _more(progress)),
        (4, _stages(progress, wide)),
        (1, _curve(progress, width)),
    ]
    shown: list[tuple[int, RenderableType]] = []
    for place, (renderable, lines) in sections:
        if lines and lines <= room:
            shown.append((place, renderable))
            room -= lines
    title = f"HarnessGym {progress.name}: {TITLES.get(progress.status, progress.status)}"
    if progress.status not in ("done", "failed"):
        title += _nobody(progress)
    return Panel(
        Group(*(each for _, each in sorted(shown, key=lambda item: item[0]))),
        title=Text(title),
        width=min(width, _WIDEST),
    )


def _nobody(progress: RunProgress) -> str:
    """A note if no process serves the run: by this machine's processes or, on a cluster, by the store."""
    if progress.recorded:
        return "" if progress.processors else " (no process of it runs here)"
    return "" if progress.nodes else " (no node of it takes rollouts)"


def line(progress: RunProgress) -> str:
    """The run in one line."""
    unit = "groups" if progress.status.startswith("evaluating") else "steps"
    parts = [f"{TITLES.get(progress.status, progress.status)}: {progress.done}/{progress.total} {unit}"]
    if "reward" in progress.metrics:
        parts.append(f"{_reward(progress.metrics, 2)}, staleness {progress.metrics.get('staleness', 0):.0f}")
    parts.append(f"{progress.rollouts_per_s:.1f} rollouts/s, {progress.tokens_per_s:.0f} tokens/s")
    idle = (
        [f"trainer {share(progress.trainer.idle)}"]
        if progress.trainer and progress.status == "training"
        else []
    )
    if progress.engines:
        busy = sum(use.busy for _, use in progress.engines) / len(progress.engines)
        idle.append(f"engines {share(max(0.0, 1 - busy))}")
    if idle:
        parts.append("idle: " + ", ".join(idle))
    if progress.left_s is not None:
        parts.append(f"{clock(progress.left_s)} left")
    if progress.silent:
        parts.append(_silent(progress))
    return "  ".join(parts)


def share(value: float) -> str:
    """A share in per cent."""
    return f"{100 * value:.0f} %"


def clock(seconds: float) -> str:
    """A duration as text: 0:07, 12:30, 3:04:05."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def size(number: float) -> str:
    """A number of bytes as text."""
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000 or unit == "GB":
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    raise AssertionError


def _reward(metrics: Mapping[str, float], digits: int) -> str:
    """The trained reward of the last step, and the grader's part if it is a weighted sum."""
    graded = f" (grader's {metrics['graded']:.{digits}f})" if "graded" in metrics else ""
    return f"reward {metrics['reward']:.{digits}f}{graded}"


def _facts(progress: RunProgress, wide: bool, width: int, room: int) -> tuple[RenderableType, int]:
    """Progress, reward and speed."""
    unit = "groups" if progress.status.startswith("evaluating") else "steps"
    left = "" if progress.left_s is None else f", {clock(progress.left_s)} left"
    m = progress.metrics
    facts = [
        f"{progress.done}/{progress.total} {unit}{left}",
        _reward(m, 3) if "reward" in m else "reward -",
        f"staleness {m['staleness']:.0f} of at most {progress.eta}"
        if "staleness" in m
        else f"staleness at most {progress.eta}",
        f"{progress.rollouts_per_s:.1f} rollouts/s",
        f"{progress.tokens_per_s:,.0f} tokens/s",
    ]
    if progress.status == "training" and "time" in m:
        facts.append(f"last step {clock(max(0.0, time.time() - m['time']))} ago")
    columns = 3 if wide else 2 if width >= _HALF else 1
    table = Table.grid(padding=(0, 3))
    for _ in range(columns):
        table.add_column(no_wrap=True)
    rows = [facts[start : start + columns] for start in range(0, len(facts), columns)][: max(0, room - 1)]
    for row in rows:
        table.add_row(*row)
    filled = width * min(progress.done, progress.total) // max(progress.total, 1)
    bar = Text.assemble(
        ("━" * filled, "bar.complete"), ("─" * (width - filled), "bar.back"), no_wrap=True, overflow="crop"
    )
    return Group(bar, table), 1 + len(rows)


def _curve(progress: RunProgress, width: int) -> tuple[RenderableType, int]:
    """Rewards by step as a sparkline."""
    shown = progress.rewards[-max(10, min(width, _WIDEST) - 40) :]
    if not shown:
        return Text(""), 0
    low, high = min(shown), max(shown)
    sparks = "".join(_SPARKS[min(7, int(8 * (value - low) / ((high - low) or 1.0)))] for value in shown)
    text = Text(f"reward by step  {sparks}  {low:.2f} to {high:.2f}", no_wrap=True, overflow="ellipsis")
    return text, 1


def _processes(progress: RunProgress, wide: bool) -> tuple[RenderableType, int]:
    """The processes and how busy they are."""
    heads = ["process", "idle", "", "cores", ""] if wide else ["process", "idle", "cores", ""]
    table = _table(heads, right=("idle", "cores"))
    rows = list(_process_rows(progress))
    for name, idle, about in rows:
        cores = progress.processors.get(name)
        cells = [name, "-" if idle is None else share(idle)]
        cells += [_bar(1 - idle) if idle is not None else ""] if wide else []
        silent_s = progress.silent.get(name)
        cells += ["-" if cores is None else f"{cores:.2f}"]
        table.add_row(*cells, about if silent_s is None else f"silent for {silent_s:.0f} s")
    return table, 1 + len(rows)


def _process_rows(progress: RunProgress) -> Iterable[tuple[str, float | None, str]]:
    """Name, idle share and details of each process."""
    if progress.trainer is not None:
        use = progress.trainer
        yield "trainer", use.idle, f"waits {use.wait_s:.1f} s, works {use.step_s:.1f} s a step"
    elif "trainer" in progress.processors:
        yield "trainer", None, "has taken no step"
    for other in list(progress.policies.values())[1:]:
        idle = None if other.trainer is None else other.trainer.idle
        yield f"trainer-{other.name}", idle, f"{other.steps} steps, published v{other.version}"
    for worker, engine in progress.engines[:_ENGINES]:
        served = progress.policies.get(worker.policy_id or "")
        about = f"{served.name} " if served else ""
        about += (
            f"v{worker.version} {worker.state}, {engine.calls:.1f} calls, {engine.tokens_per_s:,.0f} tokens/s"
        )
        yield worker.id, max(0.0, 1 - engine.busy), about
    if others := progress.engines[_ENGINES:]:
        busy = sum(engine.busy for _, engine in others) / len(others)
        oldest = min(worker.version for worker, _ in others)
        ready = sum(worker.state == "ready" for worker, _ in others)
        yield f"{len(others)} more", max(0.0, 1 - busy), f"v{oldest} or newer, {ready} ready"
    places, run = progress.stages["run"]
    name = "node" if progress.nodes < 2 else f"{progress.nodes} nodes"
    yield name, max(0.0, 1 - run.running / places), f"{run.running:.1f} of {places} harnesses"
    if (cores := progress.processors.get("proxy")) is not None:
        yield "proxy", max(0.0, 1 - cores), ""


def _stages(progress: RunProgress, wide: bool) -> tuple[RenderableType, int]:
    """The pipeline: running and waiting rollouts by stage."""
    # A narrow terminal has no room for the bars.
    heads = (
        ["stage", "running", "of", "", "waiting", "mean"]
        if wide
        else ["stage", "running", "of", "waiting", "mean"]
    )
    table = _table(heads, right=("running", "of", "waiting", "mean"))
    for name, (places, use) in progress.stages.items():
        bar = [_bar(use.running / places)] if wide else []
        table.add_row(
            name, f"{use.running:.1f}", str(places), *bar, f"{use.waiting:.1f}", f"{use.mean_s:.2f} s"
        )
    return table, 1 + len(progress.stages)


def _staleness(progress: RunProgress, wide: bool) -> tuple[RenderableType, int]:
    """Trained tokens by staleness."""
    total = sum(progress.staleness.values())
    if not total:
        return Text(""), 0
    table = _table(
        ["staleness", "tokens", "", ""] if wide else ["staleness", "tokens", ""],
        right=("staleness", "tokens"),
    )
    lags = sorted(progress.staleness)
    kept = lags if len(lags) <= 5 else lags[:4]
    rows = [(str(lag), progress.staleness[lag]) for lag in kept]
    if len(kept) < len(lags):
        rows.append((f"{lags[4]}-{lags[-1]}", sum(progress.staleness[lag] for lag in lags[4:])))
    for lag, tokens in rows:
        table.add_row(lag, f"{tokens:,}", *([_bar(tokens / total)] if wide else []), share(tokens / total))
    return table, 1 + len(rows)


def _more(progress: RunProgress) -> tuple[RenderableType, int]:
    """Counts, published versions and problems, one line each."""
    groups = ", ".join(f"{number} {state}" for state, number in progress.groups.items())
    lines = [f"rollouts: {progress.running} running, {progress.pending} pending   groups: {groups}"]
    if progress.versions:
        newest = progress.versions[-1]
        mean = sum(item.bytes for item in progress.versions) / len(progress.versions)
        lines.append(
            f"published: v{newest.version} {newest.kind} {size(newest.bytes)}   mean of the last: "
            f"{size(mean)}"
        )
    trouble = _trouble(progress)
    lines += [trouble] if trouble else []
    return Text("\n".join(lines), no_wrap=True, overflow="ellipsis"), len(lines)


def _trouble(progress: RunProgress) -> str:
    parts = [_silent(progress)] if progress.silent else []
    if progress.failed:
        parts.append(f"attempts failed: {progress.failed}{_list(progress.failures)}")
    if progress.restarts:
        parts.append(f"processes restarted: {progress.restarts}")
    parts += [f"{name.replace('_', ' ')}: {value:,.0f}" for name, value in progress.counters.items() if value]
    if abs(progress.metrics.get("length_bias", 1.0) - 1) >= _BIAS:
        parts.append(f"length bias: {progress.metrics['length_bias']:.2f}")
    parts += [
        f"sink {name} failed {each.failures} times" for name, each in progress.sinks.items() if each.failures
    ]
    return "   ".join(parts)


def _silent(progress: RunProgress) -> str:
    return "silent: " + ", ".join(
        f"{name} for {seconds:.0f} s" for name, seconds in sorted(progress.silent.items())
    )


def _list(failures: Mapping[str, int]) -> str:
    return (
        f" (last minute: {', '.join(f'{number} {cause}' for cause, number in failures.items())})"
        if failures
        else ""
    )


def _table(heads: Iterable[str], right: Iterable[str]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for head in heads:
        table.add_column(
            head, justify="right" if head in right else "left", no_wrap=True, overflow="ellipsis"
        )
    return table


def _bar(part: float) -> str:
    filled = round(_BAR * min(1.0, max(0.0, part)))
    return "█" * filled + "░" * (_BAR - filled)
