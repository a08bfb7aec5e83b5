"""Makes the manifest of a package: draws faults, proves them, keeps the good ones, describes the problems.

The same seed gives the same manifest, whatever the number of sandboxes: faults are used in the order in
which they were drawn. A smaller number of tasks gives the first tasks of a larger one. Proofs of what a
fault does are cached on this machine, so that an interrupted generation can resume.
"""

import asyncio
import hashlib
import json
import os
import tempfile
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from random import Random
from typing import Any

from environments.swe.edit import SourceEdit, edited, undone
from environments.swe.faults import Fault, faults
from environments.swe.manifest import ManifestTask, PackageManifest
from environments.swe.problem_statement import Fact, statement
from environments.swe.source import Source
from environments.swe.test_validation import LIMITS, FaultBench, Stable, version
from environments.swe.tree import Tree, clocked
from harnessgym.sandbox import Equipment, SandboxBackend

MOST = 0.4
"""Largest fraction of tests that may fail. If more fail, the fault is too crude for a task."""
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
        stable = await bench.pristine()
        _keep(kept, {"tests": stable.tests, "without": stable.without, "seconds": stable.seconds})
    record = json.loads(kept.read_text(encoding="utf-8"))
    return Stable(tuple(record["tests"]), tuple(record["without"]), record["seconds"])


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


def _keep(path: Path, record: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(f".{os.getpid()}")
    new.write_text(json.dumps(record), encoding="utf-8")
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
        refused = "an error that gives the fault away"
    if not refused:
        again = await bench.run(stable.without, stable.limit_s, seed=None)
        if again.ended or frozenset(stable.tests) - again.passed != failing:
            refused = "other tests fail when it is run again"
    return Proof(refused, {} if refused else {test: run.facts[test] for test in sorted(failing)})


def _refused(stable: Stable, ended: str, uncollected: Sequence[str], failing: frozenset[str]) -> str:
    if uncollected:
        return "a test file cannot be imported"
    if ended:
        return "the test run does not finish"
    if not failing:
        return "no test fails"
    return f"more than {MOST:.0%} of the tests fail" if len(failing) > MOST * len(stable.tests) else ""


def drawn(tree: Tree, seed: int) -> Iterator[Fault]:
    """Every fault of a package that gives valid Python with another meaning, once, in the seed's order."""
    # The kinds take turns. A plain shuffle would be dominated by the most frequent kinds.
    random = Random(f"swe {tree.package.name} {tree.package.version} {seed}")
    kinds: dict[str, list[Fault]] = {}
    for path in tree.code:
        for fault in faults(path, tree.files[path]):
            kinds.setdefault(fault.kind, []).append(fault)
    for kind in sorted(kinds):
        random.shuffle(kinds[kind])
    sources = {path: Source(path, tree.files[path]) for path in tree.code}
    for turn in zip_longest(*(kinds[kind] for kind in sorted(kinds))):
        turn_faults = [fault for fault in turn if fault is not None]
        random.shuffle(turn_faults)
        yield from (fault for fault in turn_faults if sources[fault.edit.path].parses_with(fault.edit))


_TRIES = 14
"""Most faults to try for each wanted task."""
_PAIRS = 5
"""Every fifth task has two faults."""
_PER_FUNCTION = 3
"""Most faults of one function, over all tasks."""

Progress = Callable[[int, int], None]
"""Called with the number of tasks and the number of faults tried so far."""


Proved = tuple[Fault, Proof]


@dataclass
class Chosen:
    """The faults that were chosen so far, and which others may be."""

    counts: dict[tuple[str, str], int] = field(default_factory=dict)
    seen: set[tuple[str, str, frozenset[str]]] = field(default_factory=set)
    """File, function and failing tests."""

    def is_full(self, fault: Fault) -> bool:
        """Whether the fault's function has enough faults."""
        return self.counts.get((fault.edit.path, fault.function), 0) >= _PER_FUNCTION

    def takes(self, proved: Proved) -> bool:
        """Counts a fault and returns True, unless its proof is refused or repeats another of its function.

        It repeats one that makes the same tests fail.
        """
        fault, proof = proved
        place = fault.edit.path, fault.function
        mark = (*place, frozenset(proof.facts))
        if proof.refused or mark in self.seen:
            return False
        self.counts[place] = self.counts.get(place, 0) + 1
        self.seen.add(mark)
        return True


async def generate(
    backend: SandboxBackend,
    tree: Tree,
    *,
    seed: int,
    wanted: int,
    jobs: int,
    folder: Path,
    progress: Progress,
) -> PackageManifest:
    """Makes the manifest of a package, with up to `wanted` tasks. Proofs are cached in `folder`."""
    async with AsyncExitStack() as stack:
        benches = [await _bench(stack, backend, tree) for _ in range(jobs)]
        stable = await stable_of(benches[0], folder)
        proofs = Proofs(benches, stable, folder)
        chosen = Chosen()
        entries: list[ManifestTask] = []
        held: Proved | None = None
        tried = 0
        stream = await stack.enter_async_context(aclosing(_proved(proofs, jobs, chosen, drawn(tree, seed))))
        async for one in stream:
            if len(entries) == wanted or tried == wanted * _TRIES:
                break
            tried += 1
            progress(len(entries), tried)
            if not chosen.takes(one) or statement(tree, one[1].facts, Random(0)) is None:
                continue
            if (len(entries) + 1) % _PAIRS:
                entries.append(_entry(tree, len(entries), (one[0],), one[1].facts))
            elif held is None:
                held = one
            else:
                both = await _pair(proofs, held, one)
                if both is not None:
                    entries.append(_entry(tree, len(entries), (held[0], one[0]), both))
                held = one if both is None else None
    made = tree.package
    return PackageManifest(
        made.name, made.version, made.sha256, seed, stable.tests, stable.without, tuple(entries)
    )


async def _bench(stack: AsyncExitStack, backend: SandboxBackend, tree: Tree) -> FaultBench:
    sandbox = await stack.enter_async_context(backend.open(LIMITS, Equipment(proxy=False)))
    bench = FaultBench(tree, sandbox)
    with tempfile.TemporaryDirectory(prefix="harnessgym-swe-") as folder:
        await bench.furnish(Path(folder))
    return bench


async def _proved(
    proofs: Proofs, jobs: int, chosen: Chosen, faults: Iterator[Fault]
) -> AsyncGenerator[Proved, None]:
    """Faults with their proofs, in the order in which they were drawn. Proves `jobs` at once."""
    # Proofs are awaited in order, whichever ends first. `is_full` is checked again after a proof, because the
    # caller may have chosen faults meanwhile. So the result does not depend on `jobs`.
    ahead: deque[tuple[Fault, asyncio.Task[Proof]]] = deque()
    try:
        while True:
            while len(ahead) < jobs and (
                fault := next((each for each in faults if not chosen.is_full(each)), None)
            ):
                ahead.append((fault, asyncio.create_task(proofs.of([fault.edit]))))
            if not ahead:
                return
            fault, proving = ahead.popleft()
            proof = await proving
            if not chosen.is_full(fault):
                yield fault, proof
    finally:
        for _, proving in ahead:
            proving.cancel()
        await asyncio.gather(*(proving for _, proving in ahead), return_exceptions=True)


async def _pair(proofs: Proofs, first: Proved, second: Proved) -> Mapping[str, Fact] | None:
    """The facts for both faults together, if they are in different functions and each adds failures."""
    (one, alone), (other, also) = first, second
    apart = (one.edit.path, one.function) != (other.edit.path, other.function)
    if not apart or set(alone.facts) <= set(also.facts) or set(also.facts) <= set(alone.facts):
        return None
    proof = await proofs.of(sorted((one.edit, other.edit)))
    return None if proof.refused or not {*alone.facts, *also.facts} <= {*proof.facts} else proof.facts


def _entry(tree: Tree, number: int, faults: tuple[Fault, ...], facts: Mapping[str, Fact]) -> ManifestTask:
    issue = statement(tree, facts, Random(f"{tree.package.name} {number}"))
    assert issue is not None, "a fault without a problem statement was taken"
    return ManifestTask(
        number=number,
        kinds=tuple(fault.kind for fault in faults),
        functions=tuple(fault.function for fault in faults),
        edits=tuple(sorted(fault.edit for fault in faults)),
        failing=tuple(sorted(facts)),
        statement=issue,
    )
