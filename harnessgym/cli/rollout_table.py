"""The live view of a campaign: a table on a terminal, a line every few seconds elsewhere."""

import time

from rich.console import Console, Group
from rich.padding import Padding
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from harnessgym.batch_rollout.batch_rollout import BatchProgress
from harnessgym.cli.live_view import LiveView


class RolloutTable(LiveView):
    """Shows a batch rollout's progress. May be called at any rate; it redraws only every so often."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._next = 0.0
        self._over = False

    def __call__(self, progress: BatchProgress) -> None:
        """Draw if it is time."""
        finished = 0 < progress.total <= progress.done
        # The finished state is drawn at once, and only once.
        if self._over or (time.monotonic() < self._next and not finished):
            return
        self._over = finished
        self._next = time.monotonic() + (0.5 if self.live else 5.0)
        if self.live is not None:
            self.redraw(panel(progress))
        else:
            self.add_line(line_of(progress))


def line_of(progress: BatchProgress) -> str:
    """The progress in one line."""
    stages = ", ".join(f"{stage.name} {stage.running}+{stage.waiting}" for stage in progress.stages)
    parts = [
        f"{progress.done}/{progress.total} done",
        f"{progress.not_graded} not graded",
        *_figures(progress),
        stages,
    ]
    return "  ".join(parts)


def panel(progress: BatchProgress) -> Panel:
    """The progress as a panel."""
    stages = Table("stage", "running", "of", "waiting", "done", "mean wait", box=None, padding=(0, 2))
    for stage in progress.stages:
        wait = f"{stage.waited_s / max(1, stage.done + stage.running):.2f} s"
        stages.add_row(stage.name, *map(str, (stage.running, stage.limit, stage.waiting, stage.done)), wait)
    counts = f"{progress.done}/{progress.total} done   {progress.by_status.get('running', 0)} running   "
    counts += f"{progress.by_status.get('failed', 0)} attempts failed   {progress.not_graded} not graded"
    bar = ProgressBar(total=max(progress.total, 1), completed=progress.done)
    return Panel(
        # The padding ends the line: without colours rich draws only the completed part of a bar.
        Group(Padding(bar, 0), Text(counts), stages, Text("   ".join(_figures(progress)))),
        title="HarnessGym rollouts",
        width=78,
    )


def _figures(progress: BatchProgress) -> list[str]:
    reward = "-" if progress.reward is None else f"{progress.reward:.3f}"
    eta = "-" if progress.eta_s is None else f"{progress.eta_s:.0f} s"
    return [f"reward {reward}", f"{progress.tokens_per_s:.0f} tok/s", f"ETA {eta}"]
