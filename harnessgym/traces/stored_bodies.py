"""Reads the bodies of a rollout's calls from the store. Each stored text is fetched only once."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from sqlalchemy import Connection, select

from harnessgym.store.bodies import Direction
from harnessgym.store.body_parts import join_body
from harnessgym.store.tables import bodies, calls, messages

_AT_ONCE = 5_000
"""Maximum number of texts in one query; databases limit the parameters of a statement."""


@dataclass(frozen=True, slots=True)
class _Row:
    """How one body is assembled."""

    base_id: str | None
    base_elements: int
    hashes: tuple[str, ...]
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
            rows[row.id] = _Row(row.base_id, row.base_elements, hashes, row.remainder, row.remainder_hash)
            body_of[row.call_id] = row.id
        wanted = {key for row in rows.values() for key in row.hashes}
        wanted |= {row.remainder_hash for row in rows.values() if row.remainder_hash is not None}
        return cls(rows, body_of, _texts(conn, wanted))

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
            hashes = [*hashes[: row.base_elements], *row.hashes]
        self._latest = (body_id, hashes)
        return hashes


def _texts(conn: Connection, hashes: Iterable[str]) -> dict[str, str]:
    wanted = sorted(hashes)
    out = dict[str, str]()
    for start in range(0, len(wanted), _AT_ONCE):
        query = select(messages.c.hash, messages.c.body).where(
            messages.c.hash.in_(wanted[start : start + _AT_ONCE])
        )
        out.update((row.hash, row.body) for row in conn.execute(query))
    return out
