"""Verifies the ledger: every sampled token is trained or excluded, and trained rollouts respect the limits.

The limits are those on reuse, staleness and the minimum size of groups.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection

from harnessgym.scheduling.staleness import VersionChain
from harnessgym.store import advantages, audit, policies, runs
from harnessgym.store.advantages import SegmentAdvantage
from harnessgym.store.audit import AuditedCompletion, AuditedRollout, ExcludedRange, LedgerEntry
from harnessgym.traces.verification.findings import Tally
from harnessgym.traces.verification.session import stored_spans

_CLOSED_STATES = ("consumed", "dropped")


@dataclass(slots=True)
class _Books:
    """The stored rows about one rollout's tokens."""

    rollout: AuditedRollout
    calls: list[AuditedCompletion] = field(default_factory=list)
    exclusions: list[ExcludedRange] = field(default_factory=list)
    trained: list[LedgerEntry] = field(default_factory=list)
    advantages: dict[str, list[SegmentAdvantage]] = field(default_factory=dict)
    """Advantages by id of their ledger row."""

    def of_policy(self, policy_id: str) -> "_Books":
        """Return the part about tokens that one policy sampled."""
        own = {call.call_id for call in self.calls if call.policy_id == policy_id}
        trained = [row for row in self.trained if row.policy_id == policy_id]
        return _Books(
            self.rollout,
            [call for call in self.calls if call.call_id in own],
            [item for item in self.exclusions if item.call_id in own],
            trained,
            {row.id: self.advantages[row.id] for row in trained if row.id in self.advantages},
        )

    @property
    def policies(self) -> list[str]:
        """Ids of the policies that sampled or were trained, the rollout's own first."""
        others = {call.policy_id for call in self.calls} | {row.policy_id for row in self.trained}
        return [self.rollout.policy_id, *sorted(others - {self.rollout.policy_id})]

    @property
    def sampled(self) -> int:
        """Completion tokens of all calls."""
        return sum(call.length for call in self.calls)

    @property
    def excluded(self) -> int:
        """Tokens in excluded ranges."""
        return sum(item.end - item.start for item in self.exclusions)


@dataclass(frozen=True, slots=True)
class LedgerCheck:
    """The books of one run, and the tally for findings about them."""

    books: Mapping[str, _Books]
    chains: Mapping[str, VersionChain]
    """Version chains by policy."""
    max_staleness: int | None
    """η; None if the run's configuration does not set it."""
    reuse: int
    """How many more times a rollout may be trained after the first."""
    ended: bool
    tally: Tally

    @classmethod
    def load(cls, conn: Connection, run_id: str, tally: Tally) -> "LedgerCheck":
        """Read the books of a run."""
        run = runs.get(conn, run_id)
        assert run is not None
        books = {rollout.id: _Books(rollout) for rollout in audit.rollouts_of(conn, run_id)}
        for call in audit.sampled(conn, run_id):
            books[call.rollout_id].calls.append(call)
        for item in audit.excluded(conn, run_id):
            books[item.rollout_id].exclusions.append(item)
        for entry in audit.ledger(conn, run_id):
            books[entry.rollout_id].trained.append(entry)
        for advantage in advantages.of_run(conn, run_id):
            books[advantage.rollout_id].advantages.setdefault(advantage.trained_id, []).append(advantage)
        named = {policy for book in books.values() for policy in book.policies}
        chains = {policy: VersionChain(policies.versions(conn, policy)) for policy in named}
        return cls(
            books,
            chains,
            _setting(run.config, "trainer", "max_staleness"),
            max(_setting(run.config, "replay", name) or 0 for name in ("reuse", "success_pool")),
            run.status == "done",
            tally,
        )

    def check_groups(self, conn: Connection, run_id: str) -> None:
        """Check that complete groups have enough graded rollouts, and those given up as too small did not."""
        for group in audit.training_groups(conn, run_id):
            least = min(group.min_members, group.size)
            graded = group.graded
            where = f"group {group.id}"
            of = f"{graded} graded rollouts of {group.size}; {least} are enough"
            if group.state in ("complete", "consumed") and graded < least:
                self.tally.find("min_group", where, f"is {group.state} with {of}.")
            elif group.given_up == "too_few" and graded >= least:
                self.tally.find("min_group", where, f"was given up as too small with {of}.")

    def run(self) -> None:
        """Check every rollout's books."""
        for rollout_id, book in self.books.items():
            where = f"rollout {rollout_id}"
            if book.rollout.purpose == "train":
                self._check_ranges(book)
            elif book.trained:
                self.tally.find(
                    "trained_purpose", where, f"has the purpose {book.rollout.purpose!r} and was trained."
                )
            several = len(book.policies) > 1
            for policy in book.policies:
                self._check_policy(
                    book.of_policy(policy), policy, f"{where}, policy {policy}" if several else where
                )

    def _check_policy(self, book: _Books, policy: str, where: str) -> None:
        """Check the ledger of one policy."""
        chain = self.chains[policy]
        counted = [row for row in book.trained if chain.survives(row.version)]
        if len(counted) > 1 + self.reuse:
            steps = ", ".join(f"step {row.step} into version {row.version}" for row in counted)
            message = f"was trained in {steps}, all of which survive; the run allows {1 + self.reuse}."
            self.tally.find("trained_twice", where, message)
        if book.rollout.purpose != "train":
            return
        if self._must_close(book, counted):
            self.tally.count("rollouts", policy == book.rollout.policy_id)
            self._check_closed(book, counted, where)
        for row in counted:
            self._check_staleness(book, row.version, chain)
            self._check_advantages(book, row, where)

    def _must_close(self, book: _Books, counted: Sequence[LedgerEntry]) -> bool:
        """Return whether the account must be closed: the rollout was trained or dropped, or the run ended."""
        # A rollout that only orphaned steps trained on may be trained again while the run continues, so its
        # account may still be open.
        settled = book.rollout.group_state in _CLOSED_STATES and not book.trained
        return bool(counted) or settled or self.ended

    def _check_closed(self, book: _Books, counted: Sequence[LedgerEntry], where: str) -> None:
        in_rows = max((row.tokens for row in counted), default=0)
        self.tally.count("trained_tokens", in_rows)
        self.tally.count("excluded_tokens", book.excluded)
        uneven = any(row.tokens != in_rows for row in counted)
        if in_rows + book.excluded != book.sampled or uneven:
            message = (
                f"{in_rows} trained + {book.excluded} excluded tokens are not the "
                f"{book.sampled} sampled ones."
            )
            self.tally.find("account", where, message)

    def _check_ranges(self, book: _Books) -> None:
        lengths = {call.call_id: call.length for call in book.calls}
        reached: dict[str, int] = {}
        for item in sorted(book.exclusions, key=lambda item: (item.call_id, item.start, item.end)):
            where = f"call {item.call_id}"
            start = item.start
            end = item.end
            if item.call_id not in lengths:
                self.tally.find(
                    "exclusion_range", where, "is excluded under a rollout that it does not belong to."
                )
            elif not 0 <= start < end <= lengths[item.call_id]:
                sampled = lengths[item.call_id]
                self.tally.find(
                    "exclusion_range",
                    where,
                    f"excluded tokens [{start}, {end}) are not within its {sampled}.",
                )
            elif start < reached.get(item.call_id, 0):
                self.tally.find(
                    "exclusion_range",
                    where,
                    f"excluded tokens [{start}, {end}) overlap an earlier exclusion.",
                )
            reached[item.call_id] = end

    def _check_advantages(self, book: _Books, row: LedgerEntry, where: str) -> None:
        """Check that each trained token has exactly one advantage and no other token has any.

        A step without recorded advantages is skipped.
        """
        segment_advantages = book.advantages.get(row.id, [])
        step = f"step {row.step} into version {row.version}"
        covered = sum(item.end - item.start for item in segment_advantages)
        if segment_advantages and covered != row.tokens:
            self.tally.find(
                "advantage", where, f"{step} has advantages of {covered} tokens and trained {row.tokens}."
            )
        lengths = {call.segment_id: (call.call_id, call.length) for call in book.calls}
        # Excluded ranges and the ranges seen so far: an advantage must not overlap any of them.
        ranges_by_call: dict[str, list[tuple[int, int]]] = {}
        for item in book.exclusions:
            ranges_by_call.setdefault(item.call_id, []).append((item.start, item.end))
        for advantage in segment_advantages:
            call_id, length = lengths.get(advantage.segment_id, ("", 0))
            start, end = advantage.start, advantage.end
            ranges = ranges_by_call.setdefault(call_id, [])
            if not 0 <= start < end <= length or any(start < last and first < end for first, last in ranges):
                message = (
                    f"{step} has an advantage of tokens [{start}, {end}) of segment {advantage.segment_id}, "
                    "which are not"
                )
                self.tally.find("advantage", where, f"{message} all sampled, trained and without another.")
            ranges.append((start, end))

    def _check_staleness(self, book: _Books, version: int, chain: VersionChain) -> None:
        ranges: dict[str, list[tuple[int, int]]] = {}
        for item in book.exclusions:
            ranges.setdefault(item.call_id, []).append((item.start, item.end))
        for call in book.calls:
            for start, end, sampled in stored_spans(call.version_spans) or ():
                excluded = sum(
                    max(0, min(end, last) - max(start, first)) for first, last in ranges.get(call.call_id, ())
                )
                age = chain.staleness(version, sampled)
                too_old = self.max_staleness is not None and age > self.max_staleness
                if excluded < end - start and (age < 0 or too_old):
                    message = (
                        f"tokens [{start}, {end}) of version {sampled} were {age} versions old "
                        f"in the step into {version}."
                    )
                    self.tally.find("staleness", f"call {call.call_id}", message)


def _setting(config: Any, section: str, name: str) -> int | None:
    """Return a number from a run's configuration; None if it is not set."""
    table = config.get(section) if isinstance(config, dict) else None
    setting = table.get(name) if isinstance(table, dict) else None
    return setting if isinstance(setting, int) else None
