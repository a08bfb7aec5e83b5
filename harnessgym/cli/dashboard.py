"""The live view of a run: a panel that refreshes on a terminal, a line every few seconds elsewhere."""

import time
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from harnessgym.supervisor import Supervisor
from harnessgym.supervisor.progress import Observer, Progress

_TITLES = {
    "evaluating_before": "evaluating the start",
    "training": "training",
    "evaluating_after": "evaluating the result",
    "done": "done",
    "failed": "failed",
}
_SPARKS = "▁▂▃▄▅▆▇█"


class Dashboard:
    """Context manager; call it with the supervisor as often as you like, it draws as often as is useful."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._observer: Observer | None = None
        self._next = 0.0
        self._last_line = ""

    def __enter__(self) -> Self:
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.live is not None:
            self.live.stop()

    def say(self, message: str) -> None:
        """Print a line above the panel."""
        self.console.print(message, markup=False, highlight=False)

    def __call__(self, supervisor: Supervisor) -> None:
        """Draw, if it is time."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + (1.0 if self.live else 5.0)
        self._observer = self._observer or Observer(supervisor)
        progress = self._observer.look()
        if self.live is not None:
            self.live.update(_panel(progress), refresh=True)
        elif (line := _line(progress)) != self._last_line:
            self._last_line = line
            self.say(line)


def _line(progress: Progress) -> str:
    done, total = _done(progress)
    parts = [f"{_TITLES[progress.status]}: {done}/{total} groups", f"{progress.rollouts_per_s:.1f} rollouts/s"]
    if progress.metrics:
        m = progress.metrics
        parts.append(f"step {progress.steps}/{progress.total_steps}: reward {m['reward']:.2f}, staleness {m['staleness']:.0f}")
    return "  ".join(parts)


def _panel(progress: Progress) -> Panel:
    done, total = _done(progress)
    facts = Table.grid(padding=(0, 3))
    for _ in range(4):
        facts.add_column()
    m = progress.metrics
    facts.add_row("groups", f"{done}/{total}", "rollouts/s", f"{progress.rollouts_per_s:.1f}")
    facts.add_row("step", f"{progress.steps}/{progress.total_steps}", "tokens/s", f"{progress.tokens_per_s:.0f}")
    facts.add_row("reward", f"{m['reward']:.3f}" if m else "-", "staleness", f"{m['staleness']:.0f}" if m else "-")
    facts.add_row("running", str(progress.rollouts.get("running", 0)), "failed", str(progress.rollouts.get("failed", 0)))
    serving = Text("  ".join(f"{worker.id} v{worker.version} {worker.state}" for worker in progress.workers))
    curve = Text("reward by step  " + "".join(_SPARKS[min(7, int(8 * value))] for value in progress.rewards[-60:]))
    bar = ProgressBar(total=max(total, 1), completed=done)
    return Panel(Group(bar, facts, serving, curve), title=f"HarnessGym: {_TITLES[progress.status]}", width=78)


def _done(progress: Progress) -> tuple[int, int]:
    prefix = {"evaluating_before": "before", "evaluating_after": "after"}.get(progress.status, "train")
    states = [counts for purpose, counts in progress.groups.items() if purpose.startswith(prefix)]
    total = sum(sum(counts.values()) for counts in states)
    return total - sum(counts.get("open", 0) for counts in states), total
