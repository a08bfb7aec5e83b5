r"""Trace contracts: TOML rules for what a rollout must not do, and the first step that violates each rule.

```toml
[[contracts]]
kind = "never_before"                       # no commit before the tests have run
never = { tool = "git_commit" }
before = { tool = "bash", arguments = { command = "pytest" } }

[[contracts]]
kind = "at_most"
what = { tool = "web_search" }
n = 5
per = "agent"

[[contracts]]
kind = "must_return"                        # every agent that is started comes back
what = "agents"

[[contracts]]
kind = "budget"
tokens = 20_000
calls = 40

[[contracts]]
kind = "forbidden_tool"
tool = "bash|shell"
arguments = { command = 'rm\s+-rf\s+/' }
```

Patterns are regular expressions. A tool's whole name must match; in an argument the pattern may match
anywhere. The check is pure and takes one step at a time, so the same contracts can judge a recorded rollout
and stop a running one. After "Trace-Based Assurance" of agents: a contract says what is wrong, the trace says
where.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal, Protocol, Self, assert_never

from pydantic import Field, model_validator

from harnessgym.config import Config
from harnessgym.traces.step import Pattern, RolloutStep, StepKind

Scope = Literal["rollout", "agent"]
ONLINE: frozenset[StepKind] = frozenset({"llm_call", "tool_call"})
"""Kinds of steps that the proxy sees while the rollout runs."""


class _Named(Config):
    name: str = ""
    """Name of the contract in reports; its kind by default."""


class NeverBefore(_Named):
    """`never` must not happen before `before` has happened."""

    kind: Literal["never_before"]
    never: Pattern
    before: Pattern


class AtMost(_Named):
    """`what` may happen at most `n` times."""

    kind: Literal["at_most"]
    what: Pattern
    n: int = Field(ge=0)
    per: Scope = "rollout"


class MustReturn(_Named):
    """Every started agent must return, or every tool call must get a result."""

    kind: Literal["must_return"]
    what: Literal["agents", "tools"] = "agents"
    tool: str = ""
    """Regular expression: applies only to tools with a matching name and to agents started through them."""


class Budget(_Named):
    """Limits on what may be used."""

    kind: Literal["budget"]
    tokens: int | None = Field(None, ge=0)
    """Maximum number of sampled tokens."""
    calls: int | None = Field(None, ge=0)
    """Maximum number of model calls."""
    wall_s: float | None = Field(None, gt=0)
    """Seconds after the first step within which all steps must happen."""
    per: Scope = "rollout"

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if (self.tokens, self.calls, self.wall_s) == (None, None, None):
            raise ValueError("a budget needs tokens, calls or wall_s")
        return self


class ForbiddenTool(_Named):
    """A tool must not be called; with `arguments`, only not with matching ones."""

    kind: Literal["forbidden_tool"]
    tool: str = Field(min_length=1)
    arguments: Mapping[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _readable(self) -> Self:
        self.pattern  # noqa: B018 - raises if it is not a valid regular expression
        return self

    @property
    def pattern(self) -> Pattern:
        """The pattern of the forbidden calls."""
        return Pattern(tool=self.tool, arguments=self.arguments)


Contract = Annotated[NeverBefore | AtMost | MustReturn | Budget | ForbiddenTool, Field(discriminator="kind")]


class Contracts(Config):
    """A file of contracts."""

    contracts: tuple[Contract, ...] = Field(min_length=1)


@dataclass(frozen=True, slots=True)
class Violation:
    """The first step that violates a contract."""

    contract: str
    step: RolloutStep
    ordinal: int
    """Index of the step among those checked, from 0."""
    what: str

    def __str__(self) -> str:
        agent = f" by agent {self.step.agent_id}" if self.step.agent_id else ""
        return f"{self.contract}: step {self.ordinal} ({self.step.kind} {self.step.id}{agent}) {self.what}"


class ContractMonitor:
    """Checks contracts while a rollout runs. Keeps only the first violation of each contract.

    ```python
    watch = ContractMonitor(contracts)
    for step in steps:
        watch.see(step)
    print(watch.end())
    ```
    """

    def __init__(self, contracts: Iterable[Contract]) -> None:
        self._rules = [(contract.name or contract.kind, _rule(contract)) for contract in contracts]
        self._seen = 0
        self._broken: dict[int, Violation] = {}
        """Violations by index of the rule, in the order they happened."""

    @property
    def violation(self) -> Violation | None:
        """The first violation so far."""
        return next(iter(self._broken.values()), None)

    def see(self, step: RolloutStep) -> None:
        """Check a step and record it."""
        # Check before recording it: a step must not satisfy or count against the rule that judges it.
        for index, (name, rule) in enumerate(self._rules):
            if index not in self._broken and (what := rule.breaks(step)) is not None:
                self._broken[index] = Violation(name, step, self._seen, what)
            rule.take(step, self._seen)
        self._seen += 1

    def end(self) -> list[Violation]:
        """Finish the rollout. Returns all violations, ordered by step."""
        for index, (name, rule) in enumerate(self._rules):
            if index not in self._broken and (open_ := rule.left_open()) is not None:
                self._broken[index] = Violation(name, *open_)
        violations = sorted(self._broken.items(), key=lambda item: (item[1].ordinal, item[0]))
        return [violation for _, violation in violations]


def check(contracts: Iterable[Contract], steps: Iterable[RolloutStep]) -> list[Violation]:
    """Return the first violation of each contract, ordered by step. `steps` must be in order of time."""
    watch = ContractMonitor(contracts)
    for step in steps:
        watch.see(step)
    return watch.end()


def online(contracts: Sequence[Contract]) -> list[Contract]:
    """Return the contracts that can be checked from model calls and tool calls alone."""
    return [contract for contract in contracts if _kinds(contract) <= ONLINE]


def _kinds(contract: Contract) -> frozenset[StepKind]:
    match contract:
        case NeverBefore():
            return frozenset({contract.never.step, contract.before.step})
        case AtMost():
            return frozenset({contract.what.step})
        case MustReturn():
            return frozenset({"return"})
        case Budget() | ForbiddenTool():
            return ONLINE
        case _:
            assert_never(contract)


class _Rule(Protocol):
    """The state of one contract."""

    def breaks(self, step: RolloutStep) -> str | None:
        """Say what is wrong with the next step; None if nothing is. Does not change the state."""
        ...

    def take(self, step: RolloutStep, ordinal: int) -> None:
        """Record a step."""
        ...

    def left_open(self) -> tuple[RolloutStep, int, str] | None:
        """Return the first step that still waits for another one, its index, and what is wrong."""
        ...


@dataclass
class _Order:
    contract: NeverBefore
    happened: bool = False

    def breaks(self, step: RolloutStep) -> str | None:
        if self.happened or not self.contract.never.meets(step):
            return None
        return f"comes before any {self.contract.before}."

    def take(self, step: RolloutStep, ordinal: int) -> None:  # noqa: ARG002
        self.happened = self.happened or self.contract.before.meets(step)

    def left_open(self) -> None:
        return None


@dataclass
class _Count:
    contract: AtMost
    counts: Counter[str] = field(default_factory=Counter)

    def breaks(self, step: RolloutStep) -> str | None:
        if (
            not self.contract.what.meets(step)
            or self.counts[_scope(self.contract.per, step)] < self.contract.n
        ):
            return None
        return f"is {self.contract.what} number {self.contract.n + 1}; at most {self.contract.n} are allowed."

    def take(self, step: RolloutStep, ordinal: int) -> None:  # noqa: ARG002
        if self.contract.what.meets(step):
            self.counts[_scope(self.contract.per, step)] += 1

    def left_open(self) -> None:
        return None


@dataclass
class _Pending:
    contract: MustReturn
    open: dict[str, tuple[RolloutStep, int]] = field(default_factory=dict)
    """Open steps and their indices, by step id."""

    def breaks(self, step: RolloutStep) -> str | None:  # noqa: ARG002
        return None

    def take(self, step: RolloutStep, ordinal: int) -> None:
        opening, closing = (
            ("spawn", "return") if self.contract.what == "agents" else ("tool_call", "tool_result")
        )
        if step.kind == opening and (not self.contract.tool or re.fullmatch(self.contract.tool, step.tool)):
            self.open[step.id] = step, ordinal
        elif step.kind == closing:
            done = next((key for key, (opened, _) in self.open.items() if _answers(step, opened)), None)
            self.open.pop(done or "", None)

    def left_open(self) -> tuple[RolloutStep, int, str] | None:
        first = next(iter(self.open.values()), None)
        what = "never came back." if self.contract.what == "agents" else "has no result."
        return None if first is None else (*first, what)


@dataclass
class _Spending:
    contract: Budget
    tokens: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    started: dict[str, float] = field(default_factory=dict)

    def breaks(self, step: RolloutStep) -> str | None:
        who = _scope(self.contract.per, step)
        limit = self.contract
        calling = step.kind == "llm_call"
        if limit.calls is not None and calling and self.calls[who] >= limit.calls:
            return f"is model call number {self.calls[who] + 1}; the budget is {limit.calls}."
        total = self.tokens[who] + step.tokens
        if limit.tokens is not None and calling and total > limit.tokens:
            return f"makes it {total} sampled tokens; the budget is {limit.tokens}."
        elapsed = step.t - self.started.get(who, step.t)
        if limit.wall_s is not None and elapsed > limit.wall_s:
            return f"comes after {elapsed:.1f} s; the budget is {limit.wall_s:g} s."
        return None

    def take(self, step: RolloutStep, ordinal: int) -> None:  # noqa: ARG002
        who = _scope(self.contract.per, step)
        self.started.setdefault(who, step.t)
        if step.kind == "llm_call":
            self.calls[who] += 1
            self.tokens[who] += step.tokens

    def left_open(self) -> None:
        return None


@dataclass
class _Ban:
    pattern: Pattern

    def breaks(self, step: RolloutStep) -> str | None:
        return f"is a forbidden {self.pattern}." if self.pattern.meets(step) else None

    def take(self, step: RolloutStep, ordinal: int) -> None:
        pass

    def left_open(self) -> None:
        return None


def _rule(contract: Contract) -> _Rule:
    match contract:
        case NeverBefore():
            return _Order(contract)
        case AtMost():
            return _Count(contract)
        case MustReturn():
            return _Pending(contract)
        case Budget():
            return _Spending(contract)
        case ForbiddenTool():
            return _Ban(contract.pattern)
        case _:
            assert_never(contract)


def _scope(per: Scope, step: RolloutStep) -> str:
    return "" if per == "rollout" else step.agent_id or ""


def _answers(step: RolloutStep, opened: RolloutStep) -> bool:
    """Return whether a return or result closes `opened`: the spawn of its agent, or its tool call."""
    if opened.kind == "spawn" and opened.target_agent_id is not None:
        return step.agent_id == opened.target_agent_id
    return bool(opened.tool_call_id) and step.tool_call_id == opened.tool_call_id
