"""Proofs of what a fault does, cached on this machine so that an interrupted generation can resume."""

import asyncio
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from environments.swe.clock import clocked
from environments.swe.edit import SourceEdit, edited, undone
from environments.swe.test_validation import FaultBench, Stable, version

MOST = 0.4
"""Largest fraction of tests that may fail. With more, the package is broken and not faulty."""
_CRUDE = frozenset(
    {
        "NameError",
        "UnboundLocalError",
        "SyntaxError",
        "ImportError",
        "ModuleNotFoundError",
        "RecursionError",
        "MemoryError",
    }
)
"""Errors that reveal where a fault is, or that nobody would overlook."""


@dataclass(frozen=True, slots=True)
class Proof:
    """The result of running the tests with a fault."""

    refused: str
    """Why the fault cannot make a task; empty if it can."""
    facts: Mapping[str, Mapping[str, Any]]
    """Failing test to the facts of its failure."""


async def stable_of(bench: FaultBench, folder: Path) -> Stable:
    """The reliable tests of the package without a fault, from the cache in `folder` or from new runs."""
    tree = bench.tree
    about = [tree.package.model_dump(mode="json"), version(), sorted(clocked(tree))]
    kept = _file(folder, about)
    if not kept.is_file():
        found = await bench.pristine()
        _keep(kept, {"tests": found.tests, "without": found.without, "seconds": found.seconds})
    told = json.loads(kept.read_text(encoding="utf-8"))
    return Stable(tuple(told["tests"]), tuple(told["without"]), told["seconds"])


class Proofs:
    """The cached proofs of one package. New ones are made in the next free sandbox."""

    def __init__(self, benches: Sequence[FaultBench], stable: Stable, folder: Path) -> None:
        self._free: asyncio.Queue[FaultBench] = asyncio.Queue()
        for bench in benches:
            self._free.put_nowait(bench)
        self._stable = stable
        self._folder = folder
        self._about = json.dumps([benches[0].tree.package.sha256, version(), stable.tests, stable.without])

    async def of(self, edits: Sequence[SourceEdit]) -> Proof:
        """The cached proof, or a new one, which is then cached."""
        kept = _file(
            self._folder, [self._about, [[edit.path, edit.start, edit.old, edit.new] for edit in edits]]
        )
        if not kept.is_file():
            bench = await self._free.get()
            try:
                proof = await prove(bench, self._stable, edits)
            finally:
                self._free.put_nowait(bench)
            _keep(kept, {"refused": proof.refused, "facts": proof.facts})
        # Read it back even if it is new, so that cached and new proofs have the same JSON types.
        return Proof(**json.loads(kept.read_text(encoding="utf-8")))


def _file(folder: Path, about: Sequence[Any]) -> Path:
    return folder / f"{hashlib.sha256(json.dumps(about).encode()).hexdigest()}.json"


def _keep(path: Path, told: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(f".{os.getpid()}")
    new.write_text(json.dumps(told), encoding="utf-8")
    os.replace(new, path)


async def prove(bench: FaultBench, stable: Stable, edits: Sequence[SourceEdit]) -> Proof:
    """Runs the tests with the edits, and again as grading runs them. The same tests must fail both times."""
    before = bench.tree.files
    after = edited(before, edits)
    assert edited(after, undone(edits)) == {path: before[path] for path in after}, (
        "the gold patch restores every byte"
    )
    await bench.change(after)
    run = await bench.run(stable.without, stable.limit_s)
    failing = frozenset(stable.tests) - run.passed
    refused = _refused(stable, run.ended, run.uncollected, failing)
    if not refused and any(run.facts.get(test, {}).get("error", "NameError") in _CRUDE for test in failing):
        refused = "a crude error"
    if not refused:
        again = await bench.run(stable.without, stable.limit_s, seed=None)
        if again.ended or frozenset(stable.tests) - again.passed != failing:
            refused = "other tests fail when it is run again"
    return Proof(refused, {} if refused else {test: run.facts[test] for test in sorted(failing)})


def _refused(stable: Stable, ended: str, uncollected: Sequence[str], failing: frozenset[str]) -> str:
    if uncollected:
        return "a test file cannot be imported"
    if ended:
        return "the run does not come to its end"
    if not failing:
        return "no test fails"
    return f"more than {MOST:.0%} of the tests fail" if len(failing) > MOST * len(stable.tests) else ""
