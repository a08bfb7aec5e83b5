"""Which faults are tried, in which order: by a seed, every kind in turn, so that common kinds do not crowd
out the others.
"""

from collections.abc import Iterator
from itertools import zip_longest
from random import Random

from environments.swe.faults import Fault, faults
from environments.swe.source import Source
from environments.swe.tree import Tree


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
