"""Bodies of calls: content-addressed texts, and rows that say how each body is assembled from them.

A harness sends the whole conversation with every turn, but only what the turn adds is stored. `split_body`
takes out the elements of the top-level list that holds the conversation, as the text that the client wrote. A
body is kept whole if it is not such an object, or if its elements are not all separated by the same text. A
row names an earlier body that has some of its elements, mostly the first ones, and holds the hashes of the
others. The remainder of a body (model, tools, options) is stored as a text too if it is long, so that it is
stored only once. A body that is read comes back byte for byte: `of_call` reads one, `StoredBodies` those of a
rollout.
"""

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Literal

from sqlalchemy import Connection, insert, literal, select

from harnessgym.store.prepared import Prepared
from harnessgym.store.tables import bodies, calls, messages, new_id

Direction = Literal["request", "answer"]
LISTS = ("messages", "input", "contents")
"""Names of the lists whose elements are taken out."""
_scan: Callable[[str, int], tuple[Any, int]] = json.JSONDecoder().scan_once  # type: ignore[attr-defined]
"""Parses the JSON value at an index of a text; returns it and the index where it ends."""
_SPACE = " \t\n\r"
_SHARED = 256
"""Remainders of at least this many bytes are stored as a text; a shorter one is hardly longer than a hash."""
_AT_ONCE = 5_000
"""Maximum number of texts in one query; databases limit the parameters of a statement."""


@dataclass(frozen=True, slots=True)
class BaseBody:
    """A stored request whose leading elements another request shares."""

    call_id: str
    elements: int
    """How many leading elements are shared."""
    runs: tuple[tuple[int, int, int], ...] = ()
    """Further elements that are shared: (index in the request, index in this body, how many), in order."""


@dataclass(frozen=True, slots=True)
class SplitBody:
    """A body that was split."""

    parts: tuple[tuple[str, str], ...]
    """(hash, text) of the elements that `base` does not have, in order."""
    remainder: bytes
    """One header line that says where the elements go, then the body without them."""
    base: BaseBody | None = None
    """The stored request that has the other elements."""


def split_body(body: bytes) -> SplitBody:
    """Split a body."""
    try:
        text = body.decode()
        layout = _find_elements(text)
    except (ValueError, StopIteration, IndexError):
        layout = None
    # An empty header line marks a body that is kept whole.
    if layout is None:
        return SplitBody((), b"\n" + body)
    start, end, separator, elements = layout
    parts = tuple((text_hash(part), part) for part in elements)
    header = json.dumps([start, separator])
    return SplitBody(parts, f"{header}\n{text[:start]}{text[end:]}".encode())


def text_hash(text: str) -> str:
    """Return the key under which a text is stored: blake2b-128 of its UTF-8, in hex."""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def join_body(texts: Iterable[tuple[str, str]], hashes: Sequence[str], remainder: bytes) -> bytes:
    """Return the original body from the (hash, text) pairs of its elements, which may be in any order."""
    header, _, rest = remainder.partition(b"\n")
    if not header:
        return rest
    start, separator = json.loads(header)
    known = dict(texts)
    text = rest.decode()
    elements: str = separator.join(known[key] for key in hashes)
    return (text[:start] + elements + text[start:]).encode()


def _find_elements(text: str) -> tuple[int, int, str, list[str]] | None:
    """Return start, end, separator and texts of the elements; None if the body is kept whole."""
    at = _skip(text, 0)
    if text[at] != "{":
        return None
    at = _skip(text, at + 1)
    while text[at] == '"':
        key, at = _scan(text, at)
        at = _skip(text, _skip(text, at) + 1)
        if key in LISTS and text[at] == "[":
            return _elements(text, _skip(text, at + 1))
        _, at = _scan(text, at)
        at = _skip(text, _skip(text, at) + 1)
    return None


def _elements(text: str, start: int) -> tuple[int, int, str, list[str]] | None:
    elements: list[str] = []
    separators: set[str] = set()
    at = end = start
    while text[at] != "]":
        if elements:
            after = _skip(text, at + 1)
            separators.add(text[end:after])
            at = after
        _, end = _scan(text, at)
        elements.append(text[at:end])
        at = _skip(text, end)
    if not elements or len(separators) > 1:
        return None
    return start, end, separators.pop() if separators else ",", elements


def _skip(text: str, at: int) -> int:
    while text[at] in _SPACE:
        at += 1
    return at


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
        "base_runs": None if body.base is None else body.base.runs or None,
        "message_hashes": [key for key, _ in body.parts],
        "remainder": remainder,
        "remainder_hash": key,
        "created_at": time.time(),
    }
    _INSERT_BODY.run(conn, row)


def of_call(conn: Connection, call_id: str, direction: Direction = "request") -> bytes | None:
    """Return a call's body, byte for byte; None if the store has none."""
    query = select(bodies, literal(0).label("depth")).where(
        bodies.c.call_id == call_id, bodies.c.direction == direction
    )
    chain = query.cte("chain", recursive=True)
    chain = chain.union_all(select(bodies, chain.c.depth + 1).where(bodies.c.id == chain.c.base_id))
    # From the oldest base to the call itself: each row keeps the leading elements of the body before it and
    # appends its own. The last row is the call's, and so is the remainder.
    hashes: list[str] = []
    row = None
    for row in conn.execute(select(chain).order_by(chain.c.depth.desc())):
        hashes = _elements_of(hashes, row.base_elements, row.message_hashes, row.base_runs or ())
    if row is None:
        return None
    texts = dict(_texts(conn, {*hashes, *([row.remainder_hash] if row.remainder_hash else [])}))
    remainder = texts[row.remainder_hash].encode() if row.remainder_hash else row.remainder
    return join_body(texts.items(), hashes, remainder)


@dataclass(frozen=True, slots=True)
class _Row:
    """How one body is assembled."""

    base_id: str | None
    base_elements: int
    hashes: tuple[str, ...]
    base_runs: Sequence[Sequence[int]]
    remainder: bytes
    remainder_hash: str | None


@dataclass
class StoredBodies:
    """The bodies of a rollout's requests or answers, by call."""

    _rows: dict[str, _Row]
    """Rows by body id."""
    _body_of: dict[str, str]
    """Maps a call to its body."""
    _texts: dict[str, str]
    _latest: tuple[str, list[str]] = field(default=("", []))
    """The last body and the hashes of its elements. The next body usually begins with it."""

    @classmethod
    def load(cls, conn: Connection, rollout_id: str, direction: Direction) -> "StoredBodies":
        """Read all bodies of a direction.

        Only answers of outside models have bodies; answers of the policy are stored as tokens.
        """
        of_rollout = (
            select(bodies).join(calls, calls.c.id == bodies.c.call_id).where(calls.c.rollout_id == rollout_id)
        )
        rows = {}
        body_of = {}
        for row in conn.execute(of_rollout.where(bodies.c.direction == direction)):
            hashes = tuple(row.message_hashes)
            rows[row.id] = _Row(
                row.base_id,
                row.base_elements,
                hashes,
                row.base_runs or (),
                row.remainder,
                row.remainder_hash,
            )
            body_of[row.call_id] = row.id
        wanted = {key for row in rows.values() for key in row.hashes}
        wanted |= {row.remainder_hash for row in rows.values() if row.remainder_hash is not None}
        return cls(rows, body_of, dict(_texts(conn, sorted(wanted))))

    def of_call(self, call_id: str) -> bytes | None:
        """Return a call's body, byte for byte; None if the store has none."""
        body_id = self._body_of.get(call_id)
        if body_id is None:
            return None
        row = self._rows[body_id]
        hashes = self._hashes(body_id)
        remainder = row.remainder if row.remainder_hash is None else self._texts[row.remainder_hash].encode()
        return join_body(self._texts.items(), hashes, remainder)

    def _hashes(self, body_id: str) -> list[str]:
        """Return the hashes of a body's elements, following the bodies that it begins with."""
        # Stops at the last body that was read, so that a conversation of n turns costs n steps, not n².
        chain = list[str]()
        at = body_id
        while at != self._latest[0]:
            chain.append(at)
            base = self._rows[at].base_id
            if base is None:
                break
            at = base
        hashes = list(self._latest[1]) if at == self._latest[0] else []
        for name in reversed(chain):
            row = self._rows[name]
            hashes = _elements_of(hashes, row.base_elements, row.hashes, row.base_runs)
        self._latest = (body_id, hashes)
        return hashes


def _elements_of(
    base: Sequence[str], leading: int, own: Sequence[str], runs: Iterable[Sequence[int]]
) -> list[str]:
    """Return the hashes of a body's elements: its own, and those that it shares with its base."""
    out = list(base[:leading])
    taken = 0
    for at, start, count in runs:
        between = at - len(out)
        out += [*own[taken : taken + between], *base[start : start + count]]
        taken += between
    return [*out, *own[taken:]]


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
