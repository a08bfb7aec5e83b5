"""`observed.jsonl`: the dashboard's numbers, one line per training step, beside the trainer's metrics.

Names are `kind/what`: `idle/trainer`, `busy/engine-0`, `staleness/1`. Shares are 0 to 1. Rates and shares
cover the minute before the step was seen.
"""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from harnessgym.metrics.lines import Entry, StepLines, append
from harnessgym.supervisor.progress import RunProgress


@dataclass
class StepLog:
    """Writes a line for each new training step."""

    path: Path
    _last: int | None = field(default=None)

    def recording(self, look: Callable[[], RunProgress]) -> Callable[[], RunProgress]:
        """Wrap `look` so that each progress it returns is noted. Ignores a file that cannot be written."""

        def looked() -> RunProgress:
            progress = look()
            with contextlib.suppress(OSError):
                self.note(progress)
            return progress

        return looked

    def note(self, progress: RunProgress) -> None:
        """Write a line if there is a new step. Raises `OSError` if the file cannot be written."""
        if self._last is None:
            self._last = max((int(entry["step"]) for entry in StepLines(self.path).read()), default=0)
        if progress.steps > self._last:
            append(self.path, {"step": progress.steps, "time": time.time()} | numbers(progress))
            self._last = progress.steps


def numbers(progress: RunProgress) -> Entry:
    """A run's progress as flat numbers. Unknown values are left out."""
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
