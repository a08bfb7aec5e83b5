"""The report of a second opinion. It stands beside a grade; no reward depends on it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from harnessgym.grading.differential.suite import SuiteResult
from harnessgym.task import Grade

KEY = "second_opinion"
"""Key of the opinion in a grade's evidence."""
_SHOWN = 20

Kind = Literal["result", "exception", "arguments", "output", "crash", "hang", "import"]
"""How two versions differ: in what they return, raise, change in their arguments, or print; or the candidate
crashes, hangs, or cannot be imported."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One input on which the candidate and the gold solution differ."""

    function: str
    kind: Kind
    arguments: str = ""
    gold: str = ""
    candidate: str = ""

    def told(self) -> dict[str, Any]:
        """As JSON values."""
        found = {"function": self.function, "kind": self.kind, "arguments": self.arguments}
        return {**found, "gold": self.gold, "candidate": self.candidate}


@dataclass(frozen=True, slots=True)
class Opinion:
    """Whether a candidate behaves as the gold solution does on the inputs that were tried."""

    agrees: bool | None
    """None if there is no opinion; `why` says why."""
    why: str = ""
    differs: tuple[Difference, ...] = ()
    inputs: int = 0
    """Calls whose outcomes were compared."""
    functions: tuple[str, ...] = ()
    """The functions that were called."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Functions and modules that were not compared, with the reason."""
    suite: SuiteResult | None = None
    """Result of the developers' own tests; None if the workspace has none."""

    def told(self) -> dict[str, Any]:
        """As JSON values."""
        found: dict[str, Any] = {
            "agrees": self.agrees,
            "differs": [difference.told() for difference in self.differs[:_SHOWN]],
            "differences": len(self.differs),
            "inputs": self.inputs,
            "functions": list(self.functions),
            "left_out": dict(self.left_out),
            "suite": None if self.suite is None else self.suite.told(),
        }
        return {**found, "why": self.why} if self.why else found


def with_opinion(grade: Grade, opinion: Opinion) -> Grade:
    """The same grade with the opinion among its evidence."""
    return replace(grade, evidence={**grade.evidence, KEY: opinion.told()})
