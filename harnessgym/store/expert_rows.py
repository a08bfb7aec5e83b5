"""The experts that computed the tokens of calls, as the database has them.

A call of a conversation adds the tokens from its parents' last one on: an engine computes the last sampled
token of an answer only when the conversation continues.
"""

import time

from sqlalchemy import Connection, insert, select

from harnessgym.routed_experts import PackedExperts, RoutedExperts
from harnessgym.store.prepared import Prepared
from harnessgym.store.tables import calls, new_id, routed_experts


def add(conn: Connection, call_id: str, packed: PackedExperts) -> None:
    """Store a call's experts."""
    values = {name: getattr(packed, name) for name in PackedExperts.__dataclass_fields__}
    _INSERT.run(conn, {"id": new_id(), "call_id": call_id, **values, "created_at": time.time()})


def of_rollout(conn: Connection, rollout_id: str) -> dict[str, RoutedExperts]:
    """Return the experts of a rollout's calls by call. Raises `TraceError` for bytes that are not experts."""
    columns = (routed_experts.c[name] for name in PackedExperts.__dataclass_fields__)
    query = select(routed_experts.c.call_id, *columns).join(calls, calls.c.id == routed_experts.c.call_id)
    rows = conn.execute(query.where(calls.c.rollout_id == rollout_id))
    return {call_id: PackedExperts(*packed).unpacked() for call_id, *packed in rows}


_INSERT = Prepared(insert(routed_experts), routed_experts.c.keys())
