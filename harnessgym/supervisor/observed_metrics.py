"""`observed.jsonl`: what the dashboard shows, kept beside the trainer's metrics, one line per training step.

Names are `kind/what`: `idle/trainer`, `busy/engine-0`, `staleness/1`. Shares are 0 to 1; rates and shares are
those of the minute before the step was seen.
"""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from harnessgym.metrics.lines import Entry, StepLines, append
from harnessgym.supervisor.progress import RunProgress


@dataclass
class Journal:
    """Writes a line whenever a step is seen that has none."""

    path: Path
    _last: int | None = field(default=None)

    def kept(self, look: Callable[[], RunProgress]) -> Callable[[], RunProgress]:
        """Looks like `look`, and notes what is seen. A disk that takes nothing is for others to notice."""

        def looked() -> RunProgress:
            progress = look()
            with contextlib.suppress(OSError):
                self.note(progress)
            return progress

        return looked

    def note(self, progress: RunProgress) -> None:
        """Look whether there is a step to write about. Raises `OSError` if the file cannot be written."""
        if self._last is None:
            self._last = max((int(entry["step"]) for entry in StepLines(self.path).read()), default=0)
        if progress.steps > self._last:
            append(self.path, {"step": progress.steps, "time": time.time()} | numbers(progress))
            self._last = progress.steps


def numbers(progress: RunProgress) -> Entry:
    """A look as flat numbers. What is not known is left out."""
    out: Entry = {
        "rate/tokens_per_s": progress.tokens_per_s,
        "rate/rollouts_per_s": progress.rollouts_per_s,
        "rollouts/running": progress.running,
        "rollouts/pending": progress.pending,
        "rollouts/failed": progress.failed,
    }
    out |= {f"groups/{state}": number for state, number in progress.groups.items()}
    out |= {f"staleness/{lag}": tokens for lag, tokens in sorted(progress.staleness_of_step.items())}
    if progress.trainer is not None:
        out |= {"idle/trainer": progress.trainer.idle, "rate/step_s": progress.trainer.interval_s}
    for other in list(progress.policies.values())[1:]:
        if other.trainer is not None:
            out[f"idle/trainer-{other.name}"] = other.trainer.idle
    for worker, use in progress.engines:
        out |= {
            f"busy/{worker.id}": use.busy,
            f"calls/{worker.id}": use.calls,
            f"version/{worker.id}": worker.version,
            f"tokens_per_s/{worker.id}": use.tokens_per_s,
        }
    for name, (places, stage) in progress.stages.items():
        out |= {
            f"busy/{name}": stage.running / places,
            f"running/{name}": stage.running,
            f"waiting/{name}": stage.waiting,
            f"seconds/{name}": stage.mean_s,
        }
    out |= {f"processor/{name}": cores for name, cores in progress.processors.items() if cores is not None}
    if progress.versions:
        out["publish/bytes"] = progress.versions[-1].bytes
    if progress.restarts is not None:
        out["processes/restarts"] = progress.restarts
    return {name: round(value, 6) for name, value in out.items()}
