"""Trackio's local database. Nothing is uploaded unless `TRACKIO_SPACE_ID` or `TRACKIO_SERVER_URL` is set.

`trackio show` displays it. Trackio's own setting `TRACKIO_DIR` says where it is.
"""

from collections.abc import Mapping
from typing import ClassVar

from harnessgym.metrics.sink import SinkPlace


class Trackio:
    """One Trackio run, resumed by its name."""

    needs: ClassVar[str] = "trackio"

    def __init__(self, place: SinkPlace) -> None:
        import trackio

        name = f"{place.name}-{place.run_id[-8:]}"
        self._run = trackio.init(
            place.project,
            name=name,
            config=dict(place.config),
            resume="allow",
            embed=False,
            auto_log_cpu=False,
            auto_log_gpu=False,
        )
        self._last = int(getattr(self._run, "_next_step", 0)) - 1  # no public API returns it

    def last_step(self) -> int | None:
        """See `Sink`."""
        return self._last

    def write(self, step: int, at: float, values: Mapping[str, float]) -> None:
        """See `Sink`. Trackio adds its own timestamps."""
        self._run.log({**values, "time": at}, step=step)

    def flush(self) -> None:
        """See `Sink`. A thread of Trackio writes within half a second."""

    def close(self) -> None:
        """See `Sink`."""
        self._run.finish()
