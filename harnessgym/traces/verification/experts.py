"""Verifies the routed experts of one session's calls: as many numbers as their rows say, of tokens that the
calls have, in one shape for all calls of a policy.
"""

import zlib
from collections.abc import Sequence

from sqlalchemy import Connection

from harnessgym.store import audit
from harnessgym.store.audit import AuditedCall, AuditedExperts
from harnessgym.traces.verification.findings import Tally


def check_experts(conn: Connection, session_id: str, calls: Sequence[AuditedCall], tally: Tally) -> None:
    """Check what engines reported for a session's calls."""
    by_id = {call.id: call for call in calls}
    shapes = dict[str | None, tuple[int, int]]()
    for row in audit.experts_of(conn, session_id):
        call = by_id[row.call_id]
        where = f"call {row.call_id}"
        tally.count("routed_tokens", row.tokens)
        problem = _problem(row, call)
        if problem:
            tally.find("routed_experts", where, problem)
        shape = shapes.setdefault(call.policy_id, (row.layers, row.top_k))
        if shape != (row.layers, row.top_k):
            tally.find(
                "routed_experts",
                where,
                f"a token has {row.layers} x {row.top_k} experts, before it had {shape[0]} x {shape[1]}.",
            )


def _problem(row: AuditedExperts, call: AuditedCall) -> str:
    """Return what is wrong with a row; "" if nothing is."""
    tokens = call.prompt_len + (call.completion_len or 0)
    if row.start < 0 or row.start + row.tokens > tokens:
        return f"has the experts of tokens [{row.start}, {row.start + row.tokens}) of {tokens}."
    size = row.tokens * row.layers * row.top_k * row.width
    try:
        number = len(zlib.decompress(row.experts))
    except zlib.error as error:
        return f"its experts cannot be decompressed: {error}."
    return "" if number == size else f"{number} bytes of experts, and its row says {size}."
