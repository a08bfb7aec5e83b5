"""The account of sampled tokens: trained, excluded with a reason, or open.

It is closed when `trained + excluded == sampled`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from sqlalchemy import Column, Connection, Select, delete, func, select

from harnessgym.scheduling.staleness import VersionChain
from harnessgym.store import policies
from harnessgym.store.ledger import ExcludedTokens, exclude_tokens
from harnessgym.store.tables import calls, exclusions, groups, rollouts, trained

_Trained: TypeAlias = tuple[str, str]
"""Ids of a rollout and a policy."""
_POLICY = func.coalesce(calls.c.policy_id, rollouts.c.policy_id).label("policy")
"""The policy that sampled a call's tokens. The query must join the call's rollout."""


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
    counted = select(func.count(), func.coalesce(func.sum(calls.c.completion_len), 0)).select_from(calls)
    number, sampled = conn.execute(_of_groups(counted, calls.c.rollout_id, run_id, purpose)).one()
    tokens = func.sum(exclusions.c.end - exclusions.c.start)
    reasons = _of_groups(select(exclusions.c.reason, tokens), exclusions.c.rollout_id, run_id, purpose)
    by_reason = {
        str(reason): int(total) for reason, total in conn.execute(reasons.group_by(exclusions.c.reason))
    }
    steps = _surviving(conn, run_id, purpose)
    staleness = _staleness(conn, run_id, purpose, steps)
    by_policy: Counter[str] = Counter()
    for (_, policy_id), found in steps.items():
        by_policy[policy_id] += found[0].tokens
    again = sum(step.tokens for found in steps.values() for step in found[1:])
    return TokenAccount(number, sampled, by_policy.total(), again, by_reason, staleness, by_policy)


def exclude_rest(conn: Connection, run_id: str, reason: str = "run_ended") -> int:
    """At the end of a run, exclude all tokens of training rollouts that were neither trained nor excluded.

    Returns how many. The account is then closed, unless a step trained fewer tokens than exclusions leave.
    """
    steps = _surviving(conn, run_id, "train")
    taken = _excluded_ranges(conn, run_id, "train")
    found = select(calls.c.id, calls.c.rollout_id, calls.c.completion_len, _POLICY).where(
        calls.c.completion_len > 0
    )
    rest = [
        ExcludedTokens(call.rollout_id, call.id, start, end, reason)
        for call in conn.execute(_of_groups(found, calls.c.rollout_id, run_id, "train"))
        if (call.rollout_id, call.policy) not in steps
        for start, end in _gaps(taken.get(call.id, ()), call.completion_len)
    ]
    exclude_tokens(conn, rest)
    return sum(item.end - item.start for item in rest)


def readmit_rest(conn: Connection, run_id: str, reason: str = "run_ended") -> None:
    """Undo `exclude_rest` for groups that may still be trained, because the run continues."""
    waiting = (groups.c.run_id == run_id) & groups.c.state.in_(("open", "complete"))
    of_groups = select(rollouts.c.id).join(groups, groups.c.id == rollouts.c.group_id).where(waiting)
    conn.execute(
        delete(exclusions).where(exclusions.c.reason == reason, exclusions.c.rollout_id.in_(of_groups))
    )


def _of_groups(query: Select[Any], rollout_id: Column[Any], run_id: str, purpose: str) -> Select[Any]:
    """Narrow a query to the rollouts in a run's groups of a purpose."""
    joined = query.join(rollouts, rollouts.c.id == rollout_id).join(
        groups, groups.c.id == rollouts.c.group_id
    )
    return joined.where(groups.c.run_id == run_id, groups.c.purpose == purpose)


def _surviving(conn: Connection, run_id: str, purpose: str) -> dict[_Trained, list[_Step]]:
    """Return by rollout and policy the steps in which the policy trained its own tokens of the rollout.

    Only steps on the policy's surviving version chain count, in order of version.
    """
    chains: dict[str, VersionChain] = {}
    query = select(trained.c.rollout_id, trained.c.policy_id, trained.c.version, trained.c.tokens)
    out: dict[_Trained, list[_Step]] = {}
    for row in conn.execute(
        _of_groups(query, trained.c.rollout_id, run_id, purpose).order_by(trained.c.version)
    ):
        if row.policy_id not in chains:
            chains[row.policy_id] = VersionChain(policies.versions(conn, row.policy_id))
        if chains[row.policy_id].survives(row.version):
            out.setdefault((row.rollout_id, row.policy_id), []).append(
                _Step(row.version, row.tokens, chains[row.policy_id])
            )
    return out


def _staleness(
    conn: Connection, run_id: str, purpose: str, steps: Mapping[_Trained, Sequence[_Step]]
) -> dict[int, int]:
    """Count trained tokens by staleness: the tokens of trained rollouts that are not excluded."""
    taken = _excluded_ranges(conn, run_id, purpose)
    histogram: Counter[int] = Counter()
    columns = (calls.c.id, calls.c.rollout_id, calls.c.completion_len, calls.c.version_spans, _POLICY)
    query = select(*columns).where(calls.c.completion_len > 0)
    for call in conn.execute(_of_groups(query, calls.c.rollout_id, run_id, purpose)):
        if (call.rollout_id, call.policy) not in steps:
            continue
        kept = np.zeros(call.completion_len, dtype=bool)
        for start, end in _gaps(taken.get(call.id, ()), call.completion_len):
            kept[start:end] = True
        for start, end, version in call.version_spans:
            for step in steps[call.rollout_id, call.policy]:
                histogram[step.chain.staleness(step.version, version)] += int(kept[start:end].sum())
    return {age: tokens for age, tokens in sorted(histogram.items()) if tokens}


def _excluded_ranges(conn: Connection, run_id: str, purpose: str) -> dict[str, list[tuple[int, int]]]:
    """Return the excluded ranges by call."""
    query = select(exclusions.c.call_id, exclusions.c.start, exclusions.c.end)
    out: dict[str, list[tuple[int, int]]] = {}
    for row in conn.execute(_of_groups(query, exclusions.c.rollout_id, run_id, purpose)):
        out.setdefault(row.call_id, []).append((row.start, row.end))
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
