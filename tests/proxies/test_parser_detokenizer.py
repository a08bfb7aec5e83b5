from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from proxies.detokenizer import Detokenizer, TokenTable

POLICY = Path(__file__).parents[2] / "environments" / "lookup" / "policy"
TOKENIZER = Tokenizer.from_file(str(POLICY / "tokenizer.json"))
TABLE = TokenTable(TOKENIZER)


@given(st.lists(st.integers(0, TOKENIZER.get_vocab_size() - 1), max_size=40), st.data())
def test_pieces_concatenate_to_the_text_of_the_whole(ids: list[int], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(ids)))
    detokenizer = Detokenizer(TABLE)
    text = detokenizer.feed(ids[:cut]) + detokenizer.feed(ids[cut:]) + detokenizer.flush()
    one_by_one = Detokenizer(TABLE)
    assert "".join(one_by_one.feed([token]) for token in ids) + one_by_one.flush() == text
    assert text == b"".join(TABLE[token] for token in ids).decode(errors="replace")


@given(st.text())
def test_text_comes_back(text: str) -> None:
    ids = TOKENIZER.encode(text, add_special_tokens=False).ids
    detokenizer = Detokenizer(TABLE)
    assert (
        detokenizer.feed(ids) + detokenizer.flush()
        == text
        == TOKENIZER.decode(ids, skip_special_tokens=False)
    )


def test_an_id_beyond_the_vocabulary_says_nothing() -> None:
    assert Detokenizer(TABLE).feed([10**6]) == ""
