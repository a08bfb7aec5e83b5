"""The results of checking tasks: `baseline.json` beside the tasks, with one entry for each.

An entry is valid only for the task as it was checked. It has a digest of everything that a rollout depends
on, and a task that has changed since counts as unchecked. Several processes may write one file: each merges
its results into it.
"""

import fcntl
import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from harnessgym.config import Config, validate
from harnessgym.errors import ConfigError
from harnessgym.run_folder import write_json
from harnessgym.sandbox import CONTEXT
from harnessgym.task import Integrity, Task, TaskSet
from harnessgym.tasks.format import BASELINE_FILE
from harnessgym.tasks.payload import payload_of

_SHARE = 20.0
"""Pause between two writes, as a multiple of the time of the last: a large file is not rewritten for each
task."""

State = Literal["passed", "failed", "no solution"]
Outcome = float | Literal["tampered", "error"]
"""A reward, or why there is no valid one."""


class BaselineEntry(Config):
    """The results for one task."""

    digest: str
    """Digest of the task: see `digest_of`."""
    state: State
    """passed: gold scored 1 every time, doing nothing 0, and no cheat got anything. A task without a
    solution never passes."""
    problems: dict[str, str] = Field(default_factory=dict)
    """Why it failed: what was run, and a sentence."""
    sandbox: str
    """Backend in which it was checked."""
    gold: tuple[Outcome, ...] = ()
    """One outcome for each run of the solution."""
    expected_flaky: bool = False
    """Whether the outcomes of the solution differ."""
    nothing: Outcome | None = None
    cheats: dict[str, Outcome | Literal["got something", "does not apply"]] = Field(default_factory=dict)
    integrity: Integrity | None = None
    """How the task's rewards are decided; None if its checks cannot be read, or if it was never noted."""
    by_value: tuple[int, ...] | str | None = None
    """Judged by value alone, the differences between the initial files and the solution for each seed of
    fresh inputs; or why the task cannot be judged by value. None if that was not checked."""

    @property
    def fewest_differences(self) -> int | None:
        """The smallest number of differences of any seed; None if there is no seed."""
        return min(self.by_value, default=None) if isinstance(self.by_value, tuple) else None

    @property
    def no_opinion(self) -> str:
        """Why the task cannot be judged by value, as its check found; empty if it can, or nobody tried."""
        return self.by_value if isinstance(self.by_value, str) else ""

    @property
    def flake_rate(self) -> float | None:
        """Fraction of the solution's runs without full reward; None if there is no solution."""
        return sum(outcome != 1.0 for outcome in self.gold) / len(self.gold) if self.gold else None


class Baseline:
    """The entries of one file. New ones are written from time to time, and by `flush`."""

    def __init__(self, path: Path) -> None:
        """Raises `ConfigError` for a file that is no baseline."""
        self.path = path
        self._entries = _read(path)
        self._fresh: dict[str, BaselineEntry] = {}
        self._next = 0.0

    def __bool__(self) -> bool:
        """Whether there is any entry."""
        return bool(self._entries)

    def of(self, task: Task) -> BaselineEntry | None:
        """The entry of a task; None if it was never checked or has changed since."""
        entry = self._entries.get(task.id)
        return entry if entry is not None and entry.digest == digest_of(task) else None

    def stale(self, task: Task) -> bool:
        """Whether the task was checked but has changed since."""
        return task.id in self._entries and self.of(task) is None

    def put(self, task_id: str, entry: BaselineEntry) -> None:
        """Replaces the entry of a task."""
        self._entries[task_id] = self._fresh[task_id] = entry
        if time.monotonic() >= self._next:
            began = time.monotonic()
            self.flush()
            self._next = time.monotonic() + _SHARE * (time.monotonic() - began)

    def flush(self) -> None:
        """Writes new entries to the file. Raises `ConfigError` if it cannot be written."""
        if not self._fresh:
            return
        # Read again under the lock: another process may have added entries since. Only our new ones replace
        # them.
        try:
            with _locked(self.path.parent):
                entries = {**_read(self.path), **self._fresh}
                dumped = {key: _dumped(entries[key]) for key in sorted(entries)}
                write_json(self.path, {"tasks": dumped})
        except OSError as error:
            raise ConfigError(
                f"{self.path} cannot be written: {error.strerror}. Copy the tasks to a folder of yours."
            ) from error
        self._fresh.clear()


def baseline_path(tasks: TaskSet) -> Path:
    """Path of a set's baseline: its `baseline` attribute, else beside the module of its class.

    Raises `ConfigError` if neither exists.
    """
    path = getattr(tasks, "baseline", None)
    if path is not None:
        return Path(path)
    module = sys.modules.get(type(tasks).__module__)
    source = getattr(module, "__file__", None)
    if source is None:
        raise ConfigError(
            f"The task set {tasks.name!r} comes from no file. Give it an attribute `baseline` with a path."
        )
    return Path(source).parent / BASELINE_FILE


def digest_of(task: Task) -> str:
    """A digest (16 hex digits) of all that a rollout of the task depends on, folders it names included.

    Default values do not count, so a new field in `Task` does not change the digests of existing tasks.
    """
    fields = _beside(payload_of(task), payload_of(Task("", "")))
    text = json.dumps(_portable(fields), sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _beside(payload: Mapping[str, Any], plain: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a payload that differ from the plain one, recursively."""
    out = {}
    for key, value in payload.items():
        other = plain.get(key)
        if value != other:
            out[key] = _beside(value, other) if isinstance(value, dict) and isinstance(other, dict) else value
    return out


def _portable(payload: Any) -> Any:
    """Replaces the paths of image and asset folders by digests of their content."""
    if isinstance(payload, dict):
        return {
            key: _context(value) if key == "image" and isinstance(value, str) else _portable(value)
            for key, value in payload.items()
            if key not in ("files", "metadata")
        } | {
            key: _assets(payload[key]) if key == "metadata" else payload[key]
            for key in ("files", "metadata")
            if key in payload
        }
    return [_portable(each) for each in payload] if isinstance(payload, list) else payload


def _assets(metadata: dict[str, Any]) -> dict[str, Any]:
    """Replaces the path of the tests' binary files (`harnessgym.tasks.swe_bench_repo`) by a digest."""
    spec = metadata.get("swe_bench")
    if not isinstance(spec, dict) or not spec.get("assets"):
        return metadata
    return {**metadata, "swe_bench": {**spec, "assets": _context(f"{CONTEXT}{spec['assets']}")}}


def _context(image: str) -> str:
    folder = Path(image.removeprefix(CONTEXT))
    if not image.startswith(CONTEXT) or not folder.is_dir():
        return image
    hasher = hashlib.blake2b(digest_size=8)
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            data = path.read_bytes()
            executable = path.stat().st_mode & 0o100
            hasher.update(
                f"{path.relative_to(folder).as_posix()}\0{len(data)}\0{executable}\0".encode() + data
            )
    return CONTEXT + hasher.hexdigest()


def _read(path: Path) -> dict[str, BaselineEntry]:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}. Remove it, and check the tasks again.") from error
    entries: Any = raw.get("tasks") if isinstance(raw, dict) else None
    if not isinstance(entries, dict):
        raise ConfigError(f'{path} is no baseline: it has no "tasks". Remove it, and check the tasks again.')
    return {key: validate(BaselineEntry, value, f"{path}: {key}") for key, value in entries.items()}


def _dumped(entry: BaselineEntry) -> Mapping[str, Any]:
    payload = entry.model_dump(mode="json", exclude_defaults=True)
    return payload | {"cheats": dict(sorted(entry.cheats.items()))} if entry.cheats else payload


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Allows one writer at a time. Locks the folder itself, so that no lock file remains."""
    # The file cannot be the lock: `write_json` replaces it, and a waiting process would lock the old one.
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


_NAMED = 5
"""Most tasks that one message names."""


@dataclass(frozen=True, slots=True)
class Fitness:
    """Which tasks of a set can be trained on, by its baseline."""

    spec: str
    """The spec that named the set."""
    failed: Mapping[str, BaselineEntry]
    """Task id to the entry of a failed task."""
    unchecked: tuple[str, ...]
    """Tasks that were never checked or have changed since."""
    no_opinion: Mapping[str, str] = field(default_factory=dict)
    """Task id to why the task cannot be judged by value."""
    untried: tuple[str, ...] = ()
    """Tasks of which nobody tried whether they can be judged by value."""

    def of(self, tasks: Sequence[Task]) -> "Fitness":
        """The same for these tasks only."""
        ids = {task.id for task in tasks}
        failed = {task: entry for task, entry in self.failed.items() if task in ids}
        no_opinion = {task: why for task, why in self.no_opinion.items() if task in ids}
        unchecked, untried = (
            tuple(task for task in each if task in ids) for each in (self.unchecked, self.untried)
        )
        return Fitness(self.spec, failed, unchecked, no_opinion, untried)

    @property
    def refusal(self) -> str:
        """Why training on these tasks is refused; empty if none failed."""
        if not self.failed:
            return ""
        problems = {task: " ".join(entry.problems.values()) for task, entry in self.failed.items()}
        what = f"{_count(problems)} of {self.spec!r} failed when checked"
        return f"{what}:{_lines(problems)}\nSee why: {self.command}"

    @property
    def opinion_refusal(self) -> str:
        """Why a run that requires a second opinion cannot use these tasks; empty if it can."""
        if not self.no_opinion:
            return ""
        what = (
            f"{_count(self.no_opinion)} of {self.spec!r} cannot have the second opinion that the run requires"
        )
        return f"{what}:{_lines(self.no_opinion)}\nSee why: {self.opinion_command}"

    @property
    def opinion_warning(self) -> str:
        """One line on tasks of which it is not known whether they can have one; empty if there is none."""
        if not self.untried:
            return ""
        return (
            f"{_count(self.untried)} of {self.spec!r} never checked for the second opinion that the run "
            f"requires: {self.opinion_command}"
        )

    @property
    def opinion_command(self) -> str:
        """The command that checks whether tasks can have a second opinion."""
        return f"{self.command} --second-opinion"

    @property
    def warning(self) -> str:
        """One line that says how many tasks are unchecked; empty if none is."""
        if not self.unchecked:
            return ""
        return f"{_count(self.unchecked)} of {self.spec!r} never checked, or changed since: {self.command}"

    @property
    def command(self) -> str:
        """The command that checks the set."""
        return f"harnessgym tasks check {self.spec}"


def fitness(spec: str, task_set: TaskSet, tasks: Sequence[Task]) -> Fitness:
    """Looks up tasks of a set in its baseline. Raises ConfigError if the baseline cannot be read."""
    book = Baseline(baseline_path(task_set))
    if not book:
        every = tuple(task.id for task in tasks)
        return Fitness(spec, {}, every, untried=every)
    entries = {task.id: book.of(task) for task in tasks}
    failed = {task: entry for task, entry in entries.items() if entry is not None and entry.state == "failed"}
    unchecked = tuple(task for task, entry in entries.items() if entry is None)
    no_opinion = {
        task: entry.no_opinion for task, entry in entries.items() if entry is not None and entry.no_opinion
    }
    untried = tuple(task for task, entry in entries.items() if entry is None or entry.by_value is None)
    return Fitness(spec, failed, unchecked, no_opinion, untried)


def _count(tasks: Sized) -> str:
    return f"{len(tasks)} task{'s' * (len(tasks) > 1)}"


def _lines(reasons: Mapping[str, str]) -> str:
    """The first tasks and their reasons, each on a line of its own."""
    lines = [f"{task}: {why}" for task, why in list(reasons.items())[:_NAMED]]
    lines += [f"... and {len(reasons) - _NAMED} more"] * (len(reasons) > _NAMED)
    return "".join(f"\n  {line}" for line in lines)
