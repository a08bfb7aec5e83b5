"""The experts that computed the tokens of calls, as the database has them.

A call of a conversation adds the tokens from its parents' last one on: an engine computes the last sampled
token of an answer only when the conversation continues.
"""

import time

from sqlalchemy import Connection, insert, select

from harnessgym.routed_experts import RoutedExperts
from harnessgym.store.prepared import Prepared
from harnessgym.store.tables import calls, new_id, routed_experts


def add(conn: Connection, call_id: str, routed: RoutedExperts) -> None:
    """Store a call's experts."""
    tokens, layers, top_k = routed.experts.shape
    _INSERT.run(
        conn,
        {
            "id": new_id(),
            "call_id": call_id,
            "start": routed.start,
            "tokens": tokens,
            "layers": layers,
            "top_k": top_k,
            "width": routed.experts.itemsize,
            "experts": routed.pack(),
            "created_at": time.time(),
        },
    )


def of_rollout(conn: Connection, rollout_id: str) -> dict[str, RoutedExperts]:
    """Return the experts of a rollout's calls by call. Raises `TraceError` for bytes that are not experts."""
    query = select(routed_experts).join(calls, calls.c.id == routed_experts.c.call_id)
    return {
        row.call_id: RoutedExperts.unpack(
            row.experts, row.start, (row.tokens, row.layers, row.top_k), row.width
        )
        for row in conn.execute(query.where(calls.c.rollout_id == rollout_id))
    }


_INSERT = Prepared(insert(routed_experts), routed_experts.c.keys())
