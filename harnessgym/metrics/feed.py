"""Feeds a run's numbers to its sinks, each on its own thread, from the lines in the run's folder.

A sink's failure never stops the run: it is reported once, counted and retried. Each step is written once: the
sink is asked for its last step. If it cannot tell, the step is taken from `sinks.json` in the run's folder,
which also counts failures.
"""

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType

from harnessgym.metrics.lines import Entry, StepLines
from harnessgym.metrics.sink import Sink, SinkPlace
from harnessgym.run_folder import RunFolder, write_json


@dataclass(frozen=True, slots=True)
class SinkStatus:
    """The status of one sink."""

    step: int = -1
    """The last step written to it, -1 before the first."""
    failures: int = 0
    """Failures since the run was last started."""


def read_statuses(path: Path) -> dict[str, SinkStatus]:
    """Statuses by name. Empty if the file is missing or malformed."""
    try:
        return {name: SinkStatus(**entry) for name, entry in json.loads(path.read_text()).items()}
    except (FileNotFoundError, ValueError, TypeError, AttributeError):
        return {}


class SinkStatuses:
    """Writes the file. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock, self._known = path, threading.Lock(), read_statuses(path)

    def of(self, name: str) -> SinkStatus:
        """The status of a sink."""
        return self._known.get(name, SinkStatus())

    def note(self, name: str, standing: SinkStatus) -> None:
        """Record a sink's status. Ignores a file that cannot be written."""
        with self._lock:
            self._known[name] = standing
            with contextlib.suppress(OSError):
                write_json(self._path, {known: asdict(entry) for known, entry in self._known.items()})


_LOOK_S = 2.0
_RETRY_S = 60.0
_END_S = 20.0
"""Seconds that the end of a run waits for its sinks."""
_ABOUT = ("step", "time")


@dataclass
class SinkFeed:
    """One sink's thread."""

    name: str
    make: Callable[[], Sink]
    folder: RunFolder
    notify: Callable[[str], None]
    standings: SinkStatuses
    look_s: float = _LOOK_S
    retry_s: float = _RETRY_S
    failures: int = 0
    step: int = -1
    """The last step written to the sink."""
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.step = self.standings.of(self.name).step
        self._metrics = StepLines(self.folder.metrics_path)
        self._observed = StepLines(self.folder.observed_path)
        self._further: dict[str, StepLines] = {}
        self._thread = threading.Thread(target=self._run, name=f"sink-{self.name}", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Ask the thread to write what is left and stop."""
        self._stop.set()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread's end. Returns whether it has ended."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            try:
                self._serve()
            # A sink may be third-party code and raise anything. The run goes on.
            except Exception as error:  # noqa: BLE001
                self.failures += 1
                self.standings.note(self.name, SinkStatus(self.step, self.failures))
                if self.failures == 1:
                    self.notify(
                        f"The metrics sink {self.name!r} failed: {type(error).__name__}: {error}. The run "
                        f"goes on; the sink is retried every {self.retry_s:.0f} s, and "
                        f"{self.folder.sinks_path} counts the failures."
                    )
            else:
                return
            if self._stop.wait(self.retry_s):
                return

    def _serve(self) -> None:
        """Feed the sink until `end` is called. Raises what the sink raises."""
        sink = self.make()
        try:
            held = sink.last_step()
            # The sink's own answer wins: after a kill `sinks.json` may lag behind what was written.
            self.step = self.step if held is None else held
            while not self._stop.wait(self.look_s):
                self._feed(sink, final=False)
            self._feed(sink, final=True)
        except BaseException:
            with contextlib.suppress(Exception):
                sink.close()
            raise
        sink.close()

    def _feed(self, sink: Sink, *, final: bool) -> None:
        fed = False
        further = {name: lines.read() for name, lines in self._of_policies().items()}
        for step, at, values in merged(
            self._metrics.read(), self._observed.read(), self.step, further, final=final
        ):
            sink.write(step, at, values)
            self.step = step
            fed = True
        if fed:
            sink.flush()
            self.standings.note(self.name, SinkStatus(self.step, self.failures))

    def _of_policies(self) -> dict[str, StepLines]:
        """Metrics files of further policies' trainers, by policy."""
        for path in self.folder.policies.glob("*/metrics.jsonl"):
            self._further.setdefault(path.parent.name, StepLines(path))
        return self._further


def merged(
    metrics: Sequence[Entry],
    observed: Sequence[Entry],
    after: int,
    further: Mapping[str, Sequence[Entry]] = MappingProxyType({}),
    *,
    final: bool,
) -> Iterator[tuple[int, float, Mapping[str, float]]]:
    """Yield step, time and numbers of each step above `after`.

    The trainer's numbers are under `trainer/`, those of `further` policies under `trainer-NAME/`; observed
    numbers keep their names. A step waits until it or a later one has been observed, unless this is `final`.
    """
    seen = {int(entry["step"]): entry for entry in observed}
    others = {name: {int(entry["step"]): entry for entry in lines} for name, lines in further.items()}
    newest = max(seen, default=-1)
    for entry in metrics:
        step = int(entry["step"])
        if step <= after or (step > newest and not final):
            continue
        values = {f"trainer/{name}": value for name, value in entry.items() if name not in _ABOUT}
        for policy, lines in others.items():
            values |= {
                f"trainer-{policy}/{name}": value
                for name, value in lines.get(step, {}).items()
                if name not in _ABOUT
            }
        values |= {name: value for name, value in seen.get(step, {}).items() if name not in _ABOUT}
        yield (
            step,
            float(entry.get("time", 0.0)),
            {k: float(v) for k, v in values.items() if isinstance(v, (int, float))},
        )


@contextlib.contextmanager
def feeding(
    sinks: Mapping[str, Callable[[SinkPlace], Sink]],
    place: SinkPlace,
    notify: Callable[[str], None],
    end_s: float = _END_S,
) -> Iterator[Sequence[SinkFeed]]:
    """Feed sinks while the block runs, then write what is left. Waits at most `end_s` for sinks that hang."""
    folder = RunFolder(place.folder)
    known = SinkStatuses(folder.sinks_path)
    feeds = [
        SinkFeed(name, partial(factory, place), folder, notify, known) for name, factory in sinks.items()
    ]
    try:
        yield feeds
    finally:
        for feed in feeds:
            feed.end()
        # All are asked to end first and share one deadline, so that several hanging sinks cost no more than
        # one.
        deadline = time.monotonic() + end_s
        for feed in feeds:
            if not feed.join(max(0.0, deadline - time.monotonic())):
                notify(
                    f"The metrics sink {feed.name!r} had not finished after {end_s:.0f} s and is abandoned."
                )
