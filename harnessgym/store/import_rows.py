"""Writes the rows of one imported rollout."""

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, insert, select, update

from harnessgym.store import policies, rollouts, runs, sessions
from harnessgym.store.policies import PolicyVersion
from harnessgym.store.rollouts import GroupSpec
from harnessgym.store.tables import agents, calls, edges, events, new_id, rewards
from harnessgym.store.tables import rollouts as rollouts_table
from harnessgym.store.tables import sessions as sessions_table
from harnessgym.task import Task

Json = dict[str, Any]
_OURS = re.compile(r"[0-9a-f]{24}")
SOURCE = "import"
"""The `source` of imported rows."""


@dataclass(frozen=True, slots=True)
class ImportedFacts:
    """Facts about an imported rollout as a whole."""

    id: str
    task_set: str
    task_key: str
    harness: str
    policy: str = "policy"
    seed: int = 0
    status: str = "finished"
    stop_reason: str | None = None
    verdict: str | None = None
    created_at: float | None = None
    ended_at: float | None = None


@dataclass
class ImportRows:
    """Writes the rows of one rollout."""

    conn: Connection
    run_id: str
    facts: ImportedFacts
    rollout_id: str = field(init=False)
    group_id: str = field(init=False)
    policy_id: str = field(init=False)
    _keep: bool = field(init=False)
    """Whether ids of ours are kept. They are not if the rollout is in the store already."""
    _names: dict[str, str] = field(default_factory=dict)
    _versions: set[tuple[str, int]] = field(default_factory=set)
    _policies: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        conn = self.conn
        facts = self.facts
        row = conn.execute(select(rollouts_table.c.id).where(rollouts_table.c.id == facts.id)).first()
        self._keep = row is None
        self.policy_id = self.policy(facts.policy)
        task_id = runs.add_task(conn, facts.task_set, Task(facts.task_key, ""))
        group = GroupSpec(
            self.run_id, task_id, self.policy_id, SOURCE, 0, 0, {}, (facts.harness,), "none", (facts.seed,)
        )
        made = rollouts.start(conn, group, SOURCE, 0.0)
        self.group_id = conn.execute(
            select(rollouts_table.c.group_id).where(rollouts_table.c.id == made)
        ).scalar_one()
        self.rollout_id = self.name(facts.id)
        values = {name: getattr(facts, name) for name in ("status", "stop_reason", "verdict", "ended_at")}
        if facts.created_at is not None:
            values["created_at"] = facts.created_at
        values |= {"id": self.rollout_id, "holder": None, "lease_expires": None}
        conn.execute(update(rollouts_table).where(rollouts_table.c.id == made).values(values))

    def name(self, foreign: str) -> str:
        """Return the store's id for a foreign id: the same id if it may be kept, else a new one."""
        if foreign not in self._names:
            self._names[foreign] = foreign if self._keep and _OURS.fullmatch(foreign) else new_id()
        return self._names[foreign]

    def known(self, foreign: str | None) -> str | None:
        """Return the store's id for a foreign id that `name` has seen before; None for any other."""
        return None if foreign is None else self._names.get(foreign)

    def session(self, foreign: str) -> str:
        """Return the id of a session. Inserts it on first use."""
        if foreign not in self._names:
            row = sessions.add(self.conn, self.rollout_id, new_id(), sampling={}, options={})
            self.conn.execute(
                update(sessions_table)
                .where(sessions_table.c.id == row.id)
                .values(id=self.name(foreign), key_hash=new_id())
            )
        return self._names[foreign]

    def policy(self, name: str) -> str:
        """Return the id of a policy of the run. Registers it on first use."""
        if name not in self._policies:
            self._policies[name] = policies.register(self.conn, self.run_id, name)
        return self._policies[name]

    def seal(self) -> None:
        """Seal the rollout's sessions: nothing is added after the import."""
        for session_id in sessions.of_rollout(self.conn, self.rollout_id):
            sessions.seal(self.conn, session_id)

    def agent(self, foreign: str, name: str, session_id: str | None, created_at: float, **about: Any) -> str:
        """Insert an agent. `about`: role, parent_agent_id, evidence. Ids are those of the store."""
        agent_id = self.name(foreign)
        row = {
            "id": agent_id,
            "rollout_id": self.rollout_id,
            "name": name,
            "session_id": session_id,
            "created_at": created_at,
        }
        self.conn.execute(insert(agents).values({**row, "key": agent_id, **about}))
        return agent_id

    def spawned_by(self, agent_id: str, event_id: str) -> None:
        """Record the event that spawned an agent."""
        self.conn.execute(update(agents).where(agents.c.id == agent_id).values(spawn_event_id=event_id))

    def version(self, version: int, policy_id: str | None = None) -> None:
        """Publish a version that sampled tokens, once. It is the rollout's policy's unless one is given."""
        own = policy_id or self.policy_id
        if (own, version) not in self._versions:
            self._versions.add((own, version))
            row = PolicyVersion(version, None, "full", SOURCE, 0, "", 0, committed=True, orphaned=False)
            policies.publish(self.conn, own, row)

    def began(self, call_id: str, created_at: float) -> None:
        """Set the time at which a call began."""
        self.conn.execute(update(calls).where(calls.c.id == call_id).values(created_at=created_at))

    def event(self, foreign: str, kind: str, t: float, attributes: Mapping[str, Any], **about: Any) -> str:
        """Insert an event.

        `about`: agent_id, target_agent_id, call_id, evidence, confidence, source, span_id. Ids are those of
        the store.
        """
        event_id = self.name(foreign)
        row = {
            "id": event_id,
            "rollout_id": self.rollout_id,
            "kind": kind,
            "t": t,
            "attributes": dict(attributes),
        }
        self.conn.execute(
            insert(events).values({**row, "source": SOURCE, "created_at": time.time(), **about})
        )
        return event_id

    def edge(
        self, kind: str, source: str, target: str, evidence: str | None, confidence: float | None
    ) -> None:
        """Insert an edge between two events of the store."""
        row = {
            "id": new_id(),
            "rollout_id": self.rollout_id,
            "kind": kind,
            "evidence": evidence,
            "confidence": confidence,
        }
        ends = {"source_event_id": source, "target_event_id": target}
        self.conn.execute(insert(edges).values({**row, **ends, "created_at": time.time()}))

    def reward(
        self,
        unit: str,
        target: str,
        channel: str,
        value: float,
        source: str = SOURCE,
        detail: str | None = None,
    ) -> None:
        """Insert a reward, with the target translated to ids of the store."""
        name, colon, index = target.partition(":")
        known = {"rollout": self.rollout_id, "team": self.group_id}.get(
            unit
        ) or f"{self._names.get(name, name)}{colon}{index}"
        row = {
            "id": new_id(),
            "rollout_id": self.rollout_id,
            "unit": unit,
            "target": known,
            "channel": channel,
        }
        values = {**row, "value": value, "source": source, "detail": detail, "created_at": time.time()}
        self.conn.execute(insert(rewards).values(values))
