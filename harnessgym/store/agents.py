"""Agents of a session. Each call belongs to the lineage of one agent."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import Connection, insert, select

from harnessgym.store.tables import agents

AgentEvidence = Literal["header", "content"]


@dataclass(frozen=True, slots=True)
class AgentRow:
    """One stored agent."""

    id: str
    rollout_id: str
    session_id: str
    key: str
    """Identifies the agent within the session: the id its harness gave it, or a digest of its system text
    and tools."""
    name: str
    parent_agent_id: str | None
    evidence: AgentEvidence
    """header: the harness named the agent. content: inferred from the content of its calls."""


def add(conn: Connection, agent: AgentRow) -> None:
    """Insert an agent."""
    conn.execute(
        insert(agents).values({name: getattr(agent, name) for name in AgentRow.__dataclass_fields__})
    )


def of_sessions(conn: Connection, session_ids: Sequence[str]) -> list[AgentRow]:
    """Return the agents of some sessions in the order they appeared."""
    columns = [agents.c[name] for name in AgentRow.__dataclass_fields__]
    query = (
        select(*columns)
        .where(agents.c.session_id.in_(session_ids))
        .order_by(agents.c.created_at, agents.c.id)
    )
    return [AgentRow(**row) for row in conn.execute(query).mappings()]
