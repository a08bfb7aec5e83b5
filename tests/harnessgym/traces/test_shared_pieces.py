"""What prompts of a session have in common is stored once, and every prompt comes back as it was."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessgym.errors import TraceError
from harnessgym.store.calls import Segment
from harnessgym.store.token_copies import StoredTokens, TokenCopy, own_tokens, restored
from harnessgym.tokens import PieceTokens, TokenArray, narrow_ids
from harnessgym.traces.shared_pieces import SharedPieces

POOL = [TokenArray([100 * number + index for index in range(30)]) for number in range(6)]
END = TokenArray([2, 3])
"""A piece that stands in every prompt many times."""


def changed(piece: TokenArray, at: int) -> TokenArray:
    """A piece that differs from another in one place."""
    return TokenArray([*piece[:at], 9_999, *piece[at + 1 :]])


PIECES = st.sampled_from([*POOL, END]) | st.builds(changed, st.sampled_from(POOL), st.integers(0, 29))
PROMPTS = st.lists(st.lists(PIECES, max_size=10), min_size=1, max_size=6)


def stored(segments: list[Segment]) -> dict[str, StoredTokens]:
    """The rows of segments."""
    return {
        segment.id: StoredTokens(
            len(segment.ids),
            narrow_ids(own_tokens(segment.ids, segment.copies)),
            [copy.to_json() for copy in segment.copies] or None,
        )
        for segment in segments
    }


def segments_of(prompts: list[list[TokenArray]], committed: list[bool] | None = None) -> list[Segment]:
    shared, out = SharedPieces(), list[Segment]()
    for number, pieces in enumerate(prompts):
        ids = PieceTokens(pieces)
        out.append(Segment(str(number), "s", "prompt", None, ids, copies=shared.copies(ids)))
        if committed is None or committed[number]:
            shared.add(out[-1])
    return out


@given(PROMPTS, st.lists(st.booleans(), min_size=6, max_size=6))
def test_every_prompt_comes_back(prompts: list[list[TokenArray]], committed: list[bool]) -> None:
    segments = segments_of(prompts, committed)
    for segment in segments:
        assert all(committed[int(copy.source)] for copy in segment.copies)
        assert all(copy.length >= 24 for copy in segment.copies)
    rows = stored(segments)
    for order in (list(rows), list(reversed(rows))):
        ids = restored({name: rows[name] for name in order})
        assert all(ids[segment.id] == list(segment.ids) for segment in segments)


def test_what_follows_a_changed_piece_is_one_range() -> None:
    tail = [piece for each in POOL[1:] for piece in (each, END)]
    first, second = segments_of([[POOL[0], END, *tail], [changed(POOL[0], 3), END, *tail]])
    assert first.copies == ()
    # The three tokens before the changed one are too few to be copied.
    assert second.copies == (TokenCopy(4, "0", 4, len(first.ids) - 4),)
    assert len(own_tokens(second.ids, second.copies)) == 4


def test_only_the_newest_prompts_are_looked_through() -> None:
    others = [[piece, END] for piece in POOL[1:5]]
    assert segments_of([[POOL[0]], *others[:3], [POOL[0]]])[-1].copies == (TokenCopy(0, "0", 0, 30),)
    assert segments_of([[POOL[0]], *others, [POOL[0]]])[-1].copies == ()


def test_ids_without_pieces_share_nothing() -> None:
    shared = SharedPieces()
    segment = Segment("0", "s", "prompt", None, POOL[0])
    shared.add(segment)
    assert shared.copies(POOL[0]) == ()


def test_restored_prompts_share_their_pieces_in_memory() -> None:
    tail = [piece for each in POOL[1:] for piece in (each, END)]
    rows = stored(segments_of([[POOL[0], *tail], [changed(POOL[0], 0), *tail], [POOL[0], *tail]]))
    ids = restored(rows)
    last = ids["2"]
    assert isinstance(last, PieceTokens)
    assert sum(len(piece) for piece in last.pieces) == len(last)
    assert max(map(len, last.pieces)) >= len(last) - len(POOL[0])


@pytest.mark.parametrize(
    ("copies", "said"),
    [
        ([[0, "gone", 0, 30]], "segment gone, which the store lacks"),
        ([[0, "1", 0, 30]], "has some of this one's"),
        ([[0, "0", 20, 30]], "10 tokens are stored, not 30"),
    ],
    ids=["a missing source", "itself", "a range beyond the source"],
)
def test_rows_that_do_not_fit_together_are_named(copies: list[list[object]], said: str) -> None:
    rows = {
        "0": StoredTokens(30, narrow_ids(POOL[0]), None),
        "1": StoredTokens(30, b"", copies),
    }
    with pytest.raises(TraceError, match="Segment 1") as refusal:
        restored(rows)
    assert said in str(refusal.value)
