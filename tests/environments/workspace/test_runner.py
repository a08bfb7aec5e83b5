from hypothesis import given
from hypothesis import strategies as st

from environments.workspace.runner import OutputTail

PIECE = 1 << 16


@given(st.lists(st.binary(max_size=20), max_size=12), st.integers(1, 30))
def test_the_last_bytes_of_a_stream_are_kept_and_all_are_counted(pieces, most):
    kept = OutputTail(most)
    for piece in pieces:
        kept.add(piece)
    stream = b"".join(pieces)
    assert kept.size == len(stream)
    assert kept.last() == stream[-most:]


def test_a_long_stream_is_cut_while_it_comes():
    kept = OutputTail(1_000)
    for number in range(20):
        kept.add(bytes([number]) * PIECE)
    assert kept.size == 20 * PIECE
    assert kept.last() == bytes([19]) * 1_000


def test_the_end_of_a_cut_stream_spans_pieces():
    kept = OutputTail(1_000)
    kept.add(b"a" * 3 * PIECE)
    kept.add(b"b" * 400)
    assert kept.last() == b"a" * 600 + b"b" * 400
