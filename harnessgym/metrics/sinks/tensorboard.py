"""TensorBoard event files in the run's `tensorboard/`. Needs only the `tensorboard` package, not torch.

`tensorboard --logdir runs` shows all runs below `runs`.
"""

from collections.abc import Mapping
from typing import ClassVar

from harnessgym.metrics.sink import SinkPlace


class TensorBoard:
    """One event file per start of the run; TensorBoard reads them as one series."""

    needs: ClassVar[str] = "tensorboard"

    def __init__(self, place: SinkPlace) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._folder = place.folder / "tensorboard"
        self._last = self._held()
        self._writer = EventFileWriter(str(self._folder))

    def last_step(self) -> int | None:
        """See `Sink`. Read from the event files, so that a killed run writes no step twice."""
        return self._last

    def write(self, step: int, at: float, values: Mapping[str, float]) -> None:
        """See `Sink`."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        scalars = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._writer.add_event(Event(wall_time=at, step=step, summary=Summary(value=scalars)))

    def flush(self) -> None:
        """See `Sink`."""
        self._writer.flush()

    def close(self) -> None:
        """See `Sink`."""
        self._writer.close()

    def _held(self) -> int:
        """The highest step in the event files. A truncated file is read up to its last whole event."""
        from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
        from tensorboard.compat.proto.event_pb2 import Event

        steps = [
            event.step
            for path in sorted(self._folder.glob("*.tfevents.*"))
            for raw in RawEventFileLoader(str(path)).Load()
            if (event := Event.FromString(raw)).HasField("summary")
        ]
        return max(steps, default=-1)
