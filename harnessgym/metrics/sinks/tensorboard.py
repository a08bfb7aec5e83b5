"""TensorBoard event files in the run's `tensorboard/`, written by the `tensorboard` package alone: no torch,
no TensorFlow.

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
        """See `Sink`. Read from the files themselves, so that a step is there once whenever a run was
        killed.
        """
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
        """Steps are written whole, so the highest of any event is the last one. A file cut off is read as
        far as it goes.
        """
        from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
        from tensorboard.compat.proto.event_pb2 import Event

        steps = [
            event.step
            for path in sorted(self._folder.glob("*.tfevents.*"))
            for raw in RawEventFileLoader(str(path)).Load()
            if (event := Event.FromString(raw)).HasField("summary")
        ]
        return max(steps, default=-1)
