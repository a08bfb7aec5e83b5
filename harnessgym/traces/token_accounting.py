"""The account of sampled tokens: trained, excluded with a reason, or open.

It is closed when `trained + excluded == sampled`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from sqlalchemy import Connection

from harnessgym.scheduling.staleness import VersionChain
from harnessgym.store import audit, policies
from harnessgym.store.audit import AuditedCompletion, ExcludedRange
from harnessgym.store.ledger import RUN_ENDED, ExcludedTokens, exclude_tokens

_Trained: TypeAlias = tuple[str, str]
"""Ids of a rollout and a policy."""


@dataclass(frozen=True, slots=True)
class TokenAccount:
    """The account of a run's rollouts of one purpose. Steps into orphaned versions do not count."""

    calls: int
    sampled: int
    trained: int
    """Tokens trained at least once."""
    replayed: int
    """Tokens trained again, counted each time."""
    excluded_by_reason: Mapping[str, int]
    """Tokens by reason."""
    staleness: Mapping[int, int]
    """Trained tokens by staleness in versions, counted each time they were trained."""
    trained_by_policy: Mapping[str, int] = field(default_factory=dict)
    """Trained tokens by the policy that sampled them, counted once."""

    @property
    def excluded(self) -> int:
        """Tokens with a stored reason for not being trained."""
        return sum(self.excluded_by_reason.values())

    @property
    def unaccounted(self) -> int:
        """Tokens that are neither trained nor excluded; negative if some are both."""
        return self.sampled - self.trained - self.excluded


@dataclass(frozen=True, slots=True)
class _Step:
    """A rollout's part in a surviving step of a policy that trained on it."""

    version: int
    tokens: int
    chain: VersionChain


def account(conn: Connection, run_id: str, purpose: str = "train") -> TokenAccount:
    """Count the tokens of all rollouts in a run's groups of a purpose, including failed attempts."""
    sampled = audit.sampled(conn, run_id, purpose)
    excluded = audit.excluded(conn, run_id, purpose)
    by_reason: Counter[str] = Counter()
    for item in excluded:
        by_reason[item.reason] += item.end - item.start
    trainings = _surviving(conn, run_id, purpose)
    by_policy: Counter[str] = Counter()
    for (_, policy_id), steps in trainings.items():
        by_policy[policy_id] += steps[0].tokens
    return TokenAccount(
        calls=len(sampled),
        sampled=sum(call.length for call in sampled),
        trained=by_policy.total(),
        replayed=sum(step.tokens for steps in trainings.values() for step in steps[1:]),
        excluded_by_reason=dict(sorted(by_reason.items())),
        staleness=_staleness(sampled, _ranges(excluded), trainings),
        trained_by_policy=by_policy,
    )


def exclude_rest(conn: Connection, run_id: str, reason: str = RUN_ENDED) -> int:
    """At the end of a run, exclude all tokens of training rollouts that were neither trained nor excluded.

    Returns how many. The account is then closed, unless a step trained fewer tokens than exclusions leave.
    `ledger.readmit_rest` undoes it.
    """
    trainings = _surviving(conn, run_id, "train")
    ranges = _ranges(audit.excluded(conn, run_id, "train"))
    rest = [
        ExcludedTokens(call.rollout_id, call.call_id, start, end, reason)
        for call in audit.sampled(conn, run_id, "train")
        if (call.rollout_id, call.policy_id) not in trainings
        for start, end in _gaps(ranges.get(call.call_id, ()), call.length)
    ]
    exclude_tokens(conn, rest)
    return sum(item.end - item.start for item in rest)


def _surviving(conn: Connection, run_id: str, purpose: str) -> dict[_Trained, list[_Step]]:
    """Return by rollout and policy the steps in which the policy trained its own tokens of the rollout.

    Only steps on the policy's surviving version chain count, in order of version.
    """
    chains: dict[str, VersionChain] = {}
    out: dict[_Trained, list[_Step]] = {}
    for entry in audit.ledger(conn, run_id, purpose):
        if entry.policy_id not in chains:
            chains[entry.policy_id] = VersionChain(policies.versions(conn, entry.policy_id))
        chain = chains[entry.policy_id]
        if chain.survives(entry.version):
            step = _Step(entry.version, entry.tokens, chain)
            out.setdefault((entry.rollout_id, entry.policy_id), []).append(step)
    return out


def _staleness(
    sampled: Iterable[AuditedCompletion],
    excluded: Mapping[str, Sequence[tuple[int, int]]],
    trainings: Mapping[_Trained, Sequence[_Step]],
) -> dict[int, int]:
    """Count trained tokens by staleness: the tokens of trained rollouts that are not excluded."""
    histogram: Counter[int] = Counter()
    for call in sampled:
        if not call.length or (call.rollout_id, call.policy_id) not in trainings:
            continue
        kept = np.zeros(call.length, dtype=bool)
        for start, end in _gaps(excluded.get(call.call_id, ()), call.length):
            kept[start:end] = True
        for start, end, version in call.version_spans:
            for step in trainings[call.rollout_id, call.policy_id]:
                histogram[step.chain.staleness(step.version, version)] += int(kept[start:end].sum())
    return {age: tokens for age, tokens in sorted(histogram.items()) if tokens}


def _ranges(excluded: Iterable[ExcludedRange]) -> dict[str, list[tuple[int, int]]]:
    """Return the excluded ranges by call."""
    out: dict[str, list[tuple[int, int]]] = {}
    for item in excluded:
        out.setdefault(item.call_id, []).append((item.start, item.end))
    return out


def _gaps(ranges: Iterable[tuple[int, int]], length: int) -> Sequence[tuple[int, int]]:
    """Return the parts of [0, length) that no range covers."""
    out = []
    reached = 0
    for start, end in sorted(ranges):
        if start > reached:
            out.append((reached, min(start, length)))
        reached = max(reached, end)
    if reached < length:
        out.append((reached, length))
    return out
