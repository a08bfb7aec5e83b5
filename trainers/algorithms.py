"""A record of each advantage, loss and correction: its formula, the formula's source, and the test reference.

Each is a constant beside its function: `GRPO = AlgorithmRow("advantage", "grpo", ...)`. Together they make up
docs/algorithms.md, which `python -m tests.suites.algorithms.report` writes with the differences that it
measures.
"""

import importlib
import pkgutil
from dataclasses import dataclass
from typing import Literal

Kind = Literal["advantage", "loss", "correction"]
Evidence = Literal["source", "paper", "third party", "abstract", "memory"]
"""Where the formula was read: in code of the authors or a library, in the paper, in a third party's account
of the paper, in its abstract, or nowhere (it was written from memory)."""

_PACKAGES = ("trainers.advantages", "trainers.losses", "trainers.corrections")
_MODULES = ("trainers.proximal", "trainers.value_function")


@dataclass(frozen=True, slots=True)
class AlgorithmRow:
    """One row of the table."""

    kind: Kind
    name: str
    """The name in a run file, if it can be chosen there."""
    formula: str
    """One line of plain text."""
    source: str
    """Paper or repository."""
    evidence: Evidence
    reference: str
    """What it is compared with: another package's code, or an independent transcription of the formula."""
    mean: str = ""
    """For a loss: the `normalisation` with which it was compared."""
    left_out: str = ""
    """Parts of its source that this name does not include."""


def algorithms() -> list[AlgorithmRow]:
    """All algorithms, sorted by kind and name. Raises `ValueError` if two share both."""
    found: dict[tuple[str, str], AlgorithmRow] = {}
    names = [*_MODULES]
    for package in _PACKAGES:
        path = importlib.import_module(package).__path__
        names += [info.name for info in pkgutil.iter_modules(path, f"{package}.")]
    for name in names:
        values = vars(importlib.import_module(name)).values()
        for item in {id(value): value for value in values if isinstance(value, AlgorithmRow)}.values():
            if found.setdefault((item.kind, item.name), item) is not item:
                raise ValueError(f"Two algorithms are called {item.name} ({item.kind}).")
    return [found[key] for key in sorted(found)]
