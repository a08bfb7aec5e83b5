"""Bodies of calls: content-addressed texts, and rows that say how each body is assembled from them.

A harness sends the whole conversation with every turn, but only what the turn adds is stored. A row names the
earlier body that its own begins with, and holds the hashes of the elements that follow. The remainder of a
body (model, tools, options) is stored as a text too if it is long, so that it is stored only once.
"""

import time
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Literal

from sqlalchemy import Connection, insert, literal, select

from harnessgym.store.body_parts import SplitBody, join_body, text_hash
from harnessgym.store.prepared import Prepared
from harnessgym.store.tables import bodies, messages, new_id

Direction = Literal["request", "answer"]
_SHARED = 256
"""Remainders of at least this many bytes are stored as a text; a shorter one is hardly longer than a hash."""
_AT_ONCE = 5_000
"""Maximum number of texts in one query; databases limit the parameters of a statement."""


def add(conn: Connection, call_id: str, direction: Direction, body: SplitBody) -> None:
    """Store a call's body. A request's row has the id of its call."""
    texts = [{"hash": key, "body": text} for key, text in body.parts]
    remainder, key = _shared(body.remainder)
    if key is not None:
        texts.append({"hash": key, "body": body.remainder.decode()})
    if texts:
        # Concurrent writers of the same texts wait for each other's rows. A common order of the inserts keeps
        # two of them from deadlocking.
        texts.sort(key=itemgetter("hash"))
        _INSERT_MESSAGE.run_many(conn, texts)
    row = {
        "id": call_id if direction == "request" else new_id(),
        "call_id": call_id,
        "direction": direction,
        "base_id": None if body.base is None else body.base.call_id,
        "base_elements": 0 if body.base is None else body.base.elements,
        "message_hashes": [key for key, _ in body.parts],
        "remainder": remainder,
        "remainder_hash": key,
        "created_at": time.time(),
    }
    _INSERT_BODY.run(conn, row)


def of_call(conn: Connection, call_id: str, direction: Direction = "request") -> bytes | None:
    """Return a call's body, byte for byte; None if the store has none."""
    found = select(bodies, literal(0).label("depth")).where(
        bodies.c.call_id == call_id, bodies.c.direction == direction
    )
    chain = found.cte("chain", recursive=True)
    chain = chain.union_all(select(bodies, chain.c.depth + 1).where(bodies.c.id == chain.c.base_id))
    # From the oldest base to the call itself: each row keeps the leading elements of the body before it and
    # appends its own. The last row is the call's, and so is the remainder.
    hashes: list[str] = []
    row = None
    for row in conn.execute(select(chain).order_by(chain.c.depth.desc())):
        hashes = [*hashes[: row.base_elements], *row.message_hashes]
    if row is None:
        return None
    texts = dict(_texts(conn, {*hashes, *([row.remainder_hash] if row.remainder_hash else [])}))
    remainder = texts[row.remainder_hash].encode() if row.remainder_hash else row.remainder
    return join_body(texts.items(), hashes, remainder)


def _shared(remainder: bytes) -> tuple[bytes, str | None]:
    """Return the bytes of a remainder that the row stores, and the hash if the remainder becomes a text."""
    # A remainder with NUL stays in the row's binary column: PostgreSQL's text type cannot hold it.
    if len(remainder) >= _SHARED and b"\0" not in remainder:
        try:
            return b"", text_hash(remainder.decode())
        except UnicodeDecodeError:
            pass
    return remainder, None


def _texts(conn: Connection, hashes: Iterable[str]) -> Iterator[tuple[str, str]]:
    wanted = list(hashes)
    for start in range(0, len(wanted), _AT_ONCE):
        query = select(messages.c.hash, messages.c.body).where(
            messages.c.hash.in_(wanted[start : start + _AT_ONCE])
        )
        yield from ((key, text) for key, text in conn.execute(query))


_INSERT_BODY = Prepared(insert(bodies), bodies.c.keys())
_INSERT_MESSAGE = Prepared(lambda insert: insert(messages).on_conflict_do_nothing(), messages.c.keys())
