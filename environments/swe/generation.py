"""From a package to its manifest: draw faults, prove them, keep the good ones, tell what is wrong.

The same seed gives the same manifest, however many sandboxes prove at once: faults are taken in the order
they were drawn. Fewer tasks of the same seed are the first ones of more.
"""

import asyncio
import tempfile
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from random import Random

from environments.swe.faults import Fault, faults
from environments.swe.manifest import ManifestTask, PackageManifest
from environments.swe.problem_statement import Fact, statement
from environments.swe.proof import Proof, Proofs, stable_of
from environments.swe.source import Source
from environments.swe.test_validation import LIMITS, FaultBench
from environments.swe.tree import Tree
from harnessgym.sandbox import Equipment, SandboxBackend


def drawn(tree: Tree, seed: int) -> Iterator[Fault]:
    """Every fault of a package that leaves its file Python and means something else, each once, in the
    seed's order.
    """
    random = Random(f"swe {tree.package.name} {tree.package.version} {seed}")
    kinds: dict[str, list[Fault]] = {}
    for path in tree.code:
        for fault in faults(path, tree.files[path]):
            kinds.setdefault(fault.kind, []).append(fault)
    for kind in sorted(kinds):
        random.shuffle(kinds[kind])
    sources = {path: Source(path, tree.files[path]) for path in tree.code}
    for turn in zip_longest(*(kinds[kind] for kind in sorted(kinds))):
        found = [fault for fault in turn if fault is not None]
        random.shuffle(found)
        yield from (fault for fault in found if sources[fault.edit.path].parses_with(fault.edit))


_TRIES = 14
"""Faults tried for each task wanted, at most."""
_PAIRS = 5
"""Every so-many-th task has two faults."""
_PER_FUNCTION = 3
"""Faults that one function may have, over all tasks."""

Progress = Callable[[int, int], None]
"""Told how many tasks there are and how many faults were tried."""


Proved = tuple[Fault, Proof]


@dataclass
class Chosen:
    """What has been taken so far, and what may be."""

    counts: dict[tuple[str, str], int] = field(default_factory=dict)
    seen: set[tuple[str, str, frozenset[str]]] = field(default_factory=set)
    """File, function and failing tests."""

    def is_full(self, fault: Fault) -> bool:
        """Whether its function has had enough faults."""
        return self.counts.get((fault.edit.path, fault.function), 0) >= _PER_FUNCTION

    def takes(self, proved: Proved) -> bool:
        """Whether it makes a task, and none of its function makes the same tests fail; then it is counted."""
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
    """The manifest of a package, of as many tasks as are wanted or can be had. Proofs are kept in
    `folder`.
    """
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
    """Faults with their proofs, in the order they were drawn; `jobs` are proved at once."""
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
    """What fails with both faults, if each adds something and both are in functions of their own."""
    (one, alone), (other, also) = first, second
    apart = (one.edit.path, one.function) != (other.edit.path, other.function)
    if not apart or set(alone.facts) <= set(also.facts) or set(also.facts) <= set(alone.facts):
        return None
    proof = await proofs.of(sorted((one.edit, other.edit)))
    return None if proof.refused or not {*alone.facts, *also.facts} <= {*proof.facts} else proof.facts


def _entry(tree: Tree, number: int, faults: tuple[Fault, ...], facts: Mapping[str, Fact]) -> ManifestTask:
    told = statement(tree, facts, Random(f"{tree.package.name} {number}"))
    assert told is not None, "a fault that cannot be told was not taken"
    return ManifestTask(
        number=number,
        kinds=tuple(fault.kind for fault in faults),
        functions=tuple(fault.function for fault in faults),
        edits=tuple(sorted(fault.edit for fault in faults)),
        failing=tuple(sorted(facts)),
        statement=told,
    )
