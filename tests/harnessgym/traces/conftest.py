"""Recordings: databases written the way proxy, node and trainer write them, with tokens drawn at random."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from harnessgym.outcome.failure import StopReason
from harnessgym.routed_experts import RoutedExperts
from harnessgym.store import TraceStore, calls, ledger, new_id, policies, rollouts, runs, sessions
from harnessgym.store.advantages import AdvantageRange
from harnessgym.store.calls import CallIntent, CallKind, CallOutcome, CallStatus
from harnessgym.store.ledger import ExcludedTokens, StepRecord, TrainedRollout
from harnessgym.store.policies import PolicyVersion
from harnessgym.store.rollouts import GroupSpec, RolloutOutcome
from harnessgym.task import Task
from harnessgym.tokens import hash_ids, spans_of
from harnessgym.traces.forest import Forest
from harnessgym.traces.trajectories import rows_of


@dataclass
class SessionRecording:
    """One session, as the proxy writes it: an intent, then the outcome."""

    store: TraceStore
    rollout_id: str
    id: str
    random: random.Random
    forests: dict[str | None, Forest] = field(default_factory=dict)
    """By policy, where several take part."""
    calls: list[str] = field(default_factory=list)
    _ends: dict[str, str] = field(default_factory=dict)

    def draw(self, length: int) -> list[int]:
        return [self.random.randrange(1, 50_000) for _ in range(length)]

    def call(
        self,
        prompt: Sequence[int] | int = 5,
        *,
        after: str | None = None,
        versions: Sequence[int] = (0, 0, 0, 0),
        kind: CallKind = "policy",
        status: CallStatus = "committed",
        sampling: dict[str, object] | None = None,
        policy_id: str | None = None,
        experts: RoutedExperts | None = None,
    ) -> str:
        """A call whose prompt adds `prompt` tokens to all of `after`'s, and which samples one token per
        entry of `versions`. The engine reports `experts`.
        """
        call_id, forest = new_id(), self.forests.setdefault(policy_id, Forest(self.id))
        added = self.draw(prompt) if isinstance(prompt, int) else list(prompt)
        segment, new = forest.add_prompt(added, None if after is None else self._ends[after])
        ids = forest.ids(segment.id)
        intent = CallIntent(
            call_id, self.id, self.rollout_id, len(self.calls), "chat", kind, "keep", new_id(), new_id(), len(ids),
            hash_ids(ids), segment.id, "engine-0", sampling_applied=sampling or {"temperature": 1.0}, parent_call_id=after,
            parent_evidence="none" if after is None else "token_prefix", policy_id=policy_id,
        )  # fmt: skip
        self.store.write(lambda conn: calls.intend(conn, intent, segment if new else None))
        self.calls.append(call_id)
        if status in ("intent", "error"):
            self.store.write(lambda conn: calls.set_status(conn, call_id, status))
            return call_id
        logprobs = [-self.random.expovariate(1.0) for _ in versions]
        completion = forest.add_completion(call_id, segment.id, self.draw(len(versions)), logprobs, new_id())
        self._ends[call_id] = completion.id
        usage = {"prompt_tokens": len(ids), "completion_tokens": len(versions)}
        outcome = CallOutcome(
            call_id, completion, spans_of(versions), new_id(), "stop", 2, "engine-0", usage, {"total_s": 0.1}, status,
            routed_experts=None if experts is None else experts.packed(),
        )  # fmt: skip
        self.store.write(lambda conn: calls.finish(conn, outcome))
        return call_id

    def seal(self) -> None:
        self.store.write(lambda conn: sessions.seal(conn, self.id))


@dataclass
class Recording:
    """One run of one policy."""

    store: TraceStore
    run_id: str
    policy_id: str
    task_id: str
    random: random.Random
    groups: int = 0

    def publish(self, version: int, parent: int | None = None) -> None:
        self.store.write(lambda conn: policies.publish(conn, self.policy_id, self.version(version, parent)))

    def version(self, version: int, parent: int | None) -> PolicyVersion:
        return PolicyVersion(
            version, parent, "full", f"v{version}", version, "", 0, committed=True, orphaned=False
        )

    def group(self, size: int = 2, purpose: str = "train", version: int = 0) -> tuple[str, list[str]]:
        """A group and its rollouts, all of them claimed."""
        spec = GroupSpec(
            self.run_id, self.task_id, self.policy_id, purpose, self.groups, version, {}, ("agent",) * size, "process",
            tuple(range(size)),
        )  # fmt: skip
        self.groups += 1
        group_id = self.store.write(lambda conn: rollouts.submit(conn, spec))
        claimed = self.store.write(lambda conn: rollouts.claim(conn, self.run_id, "node", 60.0, size))
        return group_id, [row.id for row in claimed]

    def session(self, rollout_id: str) -> SessionRecording:
        row = self.store.write(lambda conn: sessions.add(conn, rollout_id, new_id(), sampling={}))
        return SessionRecording(self.store, rollout_id, row.id, self.random)

    def finish(self, rollout_ids: Sequence[str]) -> None:
        for rollout_id in rollout_ids:
            outcome = RolloutOutcome(rollout_id, StopReason.FINISHED, "valid", {"reward": 1.0})
            assert self.store.write(lambda conn, outcome=outcome: rollouts.finish(conn, outcome))

    def train(self, group_id: str, rollout_ids: Sequence[str], version: int, parent: int) -> None:
        """One step on a group that publishes `version`."""
        trained, excluded = [], []
        for rollout_id in rollout_ids:
            trajectory = self.store.read(lambda conn, name=rollout_id: rows_of(conn, name, group_id=group_id))
            ranges = [
                AdvantageRange(turn.call_id, 0, turn.end - turn.start, 0.5)
                for row in trajectory.rows
                for turn in row.turns
                if row.mask[turn.start]
            ]
            trained.append(TrainedRollout(rollout_id, trajectory.trained, 0, tuple(ranges)))
            excluded += [
                ExcludedTokens(rollout_id, item.call_id, item.start, item.end, item.reason)
                for item in trajectory.exclusions
            ]
        record = StepRecord(self.version(version, parent), (group_id,), tuple(trained), tuple(excluded))
        self.store.write(lambda conn: ledger.commit_step(conn, self.policy_id, record))


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "traces.db"


@pytest.fixture
def recording(database: Path) -> Iterator[Recording]:
    with TraceStore.create(f"sqlite:///{database}") as store:
        config = {"trainer": {"max_staleness": 1}}
        run_id = store.write(lambda conn: runs.add(conn, "demo", config, "test", "training"))
        policy_id = store.write(lambda conn: policies.register(conn, run_id, "policy"))
        task_id = store.write(lambda conn: runs.add_task(conn, "lookup", Task("t0", "Find it.")))
        yield Recording(store, run_id, policy_id, task_id, random.Random(7))
