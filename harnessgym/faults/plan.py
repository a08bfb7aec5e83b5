"""Decides which command of a rollout meets which fault, and records the faults that were applied.

The draw for the n-th command that matches a fault depends only on the run's seed, the rollout's seed, the
fault's index and n. So a repeated rollout meets the same faults, and an additional command that matches no
fault changes nothing.
"""

import random
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import PurePath
from typing import Any, Literal

from sqlalchemy import Connection

from harnessgym.faults.fault import Fault, FaultsSection, InjectionFault
from harnessgym.store import events
from harnessgym.store.events import EventRow

Where = Literal["exec", "path", "relay"]
"""exec: around a step of an environment. path: by a shim on the PATH inside the sandbox. relay: on a
connection to the proxy."""
_SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh"})
_COMMAND = 300
"""Characters of a command that are recorded."""


@dataclass(frozen=True, slots=True)
class DrawnFault:
    """A fault that one command meets."""

    index: int
    """Index in the list of faults."""
    fault: Fault
    ordinal: int
    """Number of the command among those that match the fault, from 0."""
    amount: float
    """Seconds, bytes or an exit code, depending on the fault."""


@dataclass(frozen=True, slots=True)
class Applied:
    """A fault that was applied."""

    draw: DrawnFault
    command: str
    where: Where
    t: float = field(default_factory=time.time)
    """Unix seconds."""

    @property
    def label(self) -> str | None:
        """Ground truth of an injection."""
        return self.draw.fault.label if isinstance(self.draw.fault, InjectionFault) else None


class FaultPlan:
    """The faults of one rollout, planned and applied."""

    def __init__(self, section: FaultsSection, rollout_seed: int) -> None:
        self.section = section
        self._rollout_seed = rollout_seed
        self._seen = [0] * len(section.inject)
        self._done = [0] * len(section.inject)
        self.applied: list[Applied] = []

    @property
    def breaks_connections(self) -> bool:
        """Whether it may drop connections to the proxy."""
        return any(fault.kind == "dropped_connection" for fault in self.section.inject)

    def decide(self, command: Sequence[str], *, connection: bool = False) -> list[DrawnFault]:
        """Draws the faults of the next command, or of its next connection, and counts it.

        A drawn fault counts against the fault's `count`, even if it is not applied later.
        """
        drawn_faults = []
        for index, fault in enumerate(self.section.inject):
            if (fault.kind == "dropped_connection") is not connection or not matches(fault, command):
                continue
            ordinal, self._seen[index] = self._seen[index], self._seen[index] + 1
            draw = self._draw(index, ordinal)
            if draw is not None and (fault.count is None or self._done[index] < fault.count):
                self._done[index] += 1
                drawn_faults.append(draw)
        return drawn_faults

    def note(self, draw: DrawnFault, command: Sequence[str], where: Where) -> None:
        """Records that a fault was applied."""
        self.applied.append(Applied(draw, " ".join(command)[:_COMMAND], where))

    def schedule(self, index: int, length: int) -> list[DrawnFault]:
        """The draws for the first `length` commands that match a fault."""
        drawn = [draw for ordinal in range(length) if (draw := self._draw(index, ordinal)) is not None]
        return drawn[: self.section.inject[index].count]

    def _draw(self, index: int, ordinal: int) -> DrawnFault | None:
        fault = self.section.inject[index]
        # One generator per draw, seeded by its position: no draw depends on how many came before it.
        rng = random.Random(f"{self.section.seed}/{self._rollout_seed}/{index}/{ordinal}")
        return (
            DrawnFault(index, fault, ordinal, fault.amount(rng)) if rng.random() < fault.probability else None
        )


def matches(fault: Fault, command: Sequence[str]) -> bool:
    """Whether a fault matches a command, or one of the commands in the text of `sh -c TEXT`."""
    return any(
        fnmatchcase(PurePath(words[0]).name, fault.program)
        and fnmatchcase(" ".join(words[1:]), fault.arguments)
        for words in (list(command), *_inner(command))
        if words
    )


def _inner(command: Sequence[str]) -> list[list[str]]:
    if (
        len(command) < 3
        or PurePath(command[0]).name not in _SHELLS
        or not re.fullmatch(r"-[a-z]*c", command[1])
    ):
        return []
    return [part.split() for part in re.split(r"[;&|\n]+", command[2])]


KIND = "fault"
SOURCE = "sandbox"


def record(conn: Connection, rollout_id: str, applied: Sequence[Applied], doubt: str | None = None) -> None:
    """Writes the applied faults as events of a rollout.

    `doubt` says why the list may be incomplete or wrong; it becomes a separate event.
    """
    rows = [EventRow(rollout_id, KIND, _attributes(each), t=each.t, source=SOURCE) for each in applied]
    if doubt is not None:
        rows.append(EventRow(rollout_id, KIND, {"doubt": doubt}, source=SOURCE))
    events.add_many(conn, rows)


def _attributes(applied: Applied) -> dict[str, Any]:
    fault = applied.draw.fault
    return {
        "fault": fault.kind,
        "label": applied.label,
        "command": applied.command,
        "where": applied.where,
        "index": applied.draw.index,
        "ordinal": applied.draw.ordinal,
        "amount": applied.draw.amount,
        "settings": fault.model_dump(mode="json"),
    }
