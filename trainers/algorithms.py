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

_HOMES = ("trainers.advantages", "trainers.losses", "trainers.corrections")


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
    for home in _HOMES:
        package = importlib.import_module(home)
        for info in pkgutil.iter_modules(package.__path__, f"{home}."):
            module = importlib.import_module(info.name)
            for item in {
                id(value): value for value in vars(module).values() if isinstance(value, AlgorithmRow)
            }.values():
                if found.setdefault((item.kind, item.name), item) is not item:
                    raise ValueError(f"Two algorithms are called {item.name} ({item.kind}).")
    return [found[key] for key in sorted(found)]
