"""Weights & Biases, in the run's `wandb/`. Offline unless `WANDB_MODE=online` is set.

`wandb sync runs/NAME/wandb/offline-run-*` uploads what was written offline. All starts of a run share its id.
"""

import os
from collections.abc import Mapping
from typing import ClassVar

from harnessgym.metrics.sink import SinkPlace


class Wandb:
    """One W&B run, resumed by its id."""

    needs: ClassVar[str] = "wandb"

    def __init__(self, place: SinkPlace) -> None:
        import wandb

        mode = os.environ.get("WANDB_MODE", "offline")
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", place.project),
            dir=str(place.folder),
            id=place.run_id,
            name=place.name,
            config=dict(place.config),
            resume="allow" if mode == "online" else None,
            mode=mode,
            settings=wandb.Settings(
                silent=True, console="off", x_disable_stats=True, x_disable_meta=True, disable_git=True
            ),
        )

    def last_step(self) -> int | None:
        """See `Sink`. Only the server knows, so it is None offline."""
        return int(self._run.step) - 1 if self._run.resumed else None

    def write(self, step: int, at: float, values: Mapping[str, float]) -> None:
        """See `Sink`."""
        self._run.log({**values, "time": at}, step=step)

    def flush(self) -> None:
        """See `Sink`. Does nothing: W&B's own process has the data and outlives this one to write it."""

    def close(self) -> None:
        """See `Sink`."""
        self._run.finish()
