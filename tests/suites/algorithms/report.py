"""Compares every algorithm with its reference and writes docs/algorithms.md.

    python -m tests.suites.algorithms.report

A module of this folder whose `MEASURES` has, by kind and name, functions that give the greatest difference is
found by itself.
"""

import importlib
import math
import pkgutil
from collections.abc import Callable
from pathlib import Path

import tests.suites.algorithms as folder
from trainers.algorithms import algorithms

PAGE = Path(__file__).parents[3] / "docs" / "algorithms.md"
Measure = Callable[[], float]

_PAGE = """\
<!-- Written by `python -m tests.suites.algorithms.report`. -->
# Advantages, losses and corrections

Each is a small function with its formula beside it, and is compared with a reference on random tensors whenever the tests
run. *Evidence* says where the formula was read: in the authors' code or a library's (source), in the paper, in somebody
else's account of it (third party), or in its abstract. *Difference* is the power of ten that the greatest difference from
the reference stays below, as a share of the value where that is above 1. *Mean* is the `normalisation` that a loss was
compared with. It is a setting of its own, and its default is "token" for every loss. A group of which no token has an advantage
other than 0 is left out of the step and of what it divides by, as with DAPO's refill; the libraries' GRPO and Dr. GRPO count
it.

![Final reward and collapse rate over the lag](results/stability.png)

Six choices of these on toys, and three of them on the quickstart's task: the final reward, over how many updates old the
rollouts are that they learn from; all in one process (figures: docs/results.md).
"""
_HEAD = "| name | formula | source | evidence | compared with | difference |\n|---|---|---|---|---|---|\n"
_LOSS_HEAD = "| name | formula | mean | source | evidence | compared with | difference |\n|---|---|---|---|---|---|---|\n"
_TITLES = {"advantage": "Advantages", "loss": "Losses", "correction": "Corrections"}


def measures() -> dict[tuple[str, str], Measure]:
    """Of all modules in this folder."""
    found: dict[tuple[str, str], Measure] = {}
    for info in pkgutil.iter_modules(folder.__path__, f"{folder.__name__}."):
        if not info.name.rpartition(".")[2].startswith("test_") and info.name != __name__:
            found |= getattr(importlib.import_module(info.name), "MEASURES", {})
    return found


def page() -> str:
    """The text of docs/algorithms.md. Raises `KeyError` for an algorithm that nothing measures."""
    measured, out = measures(), _PAGE
    for kind, title in _TITLES.items():
        rows = [item for item in algorithms() if item.kind == kind]
        if rows:
            out += f"\n## {title}\n\n{_LOSS_HEAD if kind == 'loss' else _HEAD}"
        for item in rows:
            mean = (item.mean or "-",) if kind == "loss" else ()
            cells = (f"`{item.name}`", item.formula, *mean, item.source, item.evidence, item.reference)
            bound = below(measured[kind, item.name]())
            out += "| " + " | ".join(cell.replace("|", "\\|") for cell in (*cells, bound)) + " |\n"
        if notes := [f"- `{item.name}`: {item.left_out}\n" for item in rows if item.left_out]:
            out += "\nWhat the name alone does not give of its source:\n\n" + "".join(notes)
    return out


def below(difference: float) -> str:
    """The power of ten that it stays below; equal beyond what float64 can tell apart is 1e-12."""
    return f"1e{max(-12, math.floor(math.log10(max(difference, 1e-300))) + 1)}"


def main() -> None:
    """Write the page."""
    PAGE.write_text(page())
    print(f"{PAGE} has {len(algorithms())} algorithms.")


if __name__ == "__main__":
    main()
