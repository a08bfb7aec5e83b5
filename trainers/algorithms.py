"""What is known of each advantage, loss and correction: its formula, where that comes from, what it is tested
against.

Each stands beside its function, as a constant of the module: `GRPO = Algorithm("advantage", "grpo", ...)`.
Together they make up docs/algorithms.md, which `python -m tests.suites.algorithms.report` writes with the
differences that it measures.
"""

import importlib
import pkgutil
from dataclasses import dataclass
from typing import Literal

Kind = Literal["advantage", "loss", "correction"]
Evidence = Literal["source", "paper", "third party", "abstract", "memory"]
"""Where the formula was read: in its authors' code (or that of a library that has it), in the paper, in
somebody's account of the paper, in the paper's abstract alone, or nowhere: it was written down from
memory."""

_HOMES = ("trainers.advantages", "trainers.losses", "trainers.corrections")


@dataclass(frozen=True, slots=True)
class AlgorithmRow:
    """One row of the table."""

    kind: Kind
    name: str
    """As it is named in a run file, if it can be chosen there."""
    formula: str
    """On one line, in plain text."""
    source: str
    """Paper or repository."""
    evidence: Evidence
    reference: str
    """What it is compared with: another package's code, or a transcription of the formula by other means."""
    mean: str = ""
    """Of a loss: the `normalisation` that it was compared with."""
    left_out: str = ""
    """What its source has besides, and the name alone does not give."""


def algorithms() -> list[AlgorithmRow]:
    """All that there are, by kind and name. Raises `ValueError` if two share both."""
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
