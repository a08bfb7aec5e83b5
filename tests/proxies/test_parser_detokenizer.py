import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, trainers

from harnessgym.errors import PolicyError
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


def character_tokenizer() -> Tokenizer:
    """A vocabulary of characters that falls back to bytes, as Gemma's."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))],
        show_progress=False,
    )
    tokenizer.train_from_iterator(["a cat sat on the mat, and the rat ran. Ünïcode."] * 20, trainer)
    # As published: bytes are ordinary words of the vocabulary, not special tokens.
    raw = json.loads(tokenizer.to_str())
    raw["added_tokens"] = raw["added_tokens"][:1]
    return Tokenizer.from_str(json.dumps(raw))


CHARACTERS = character_tokenizer()


@given(st.text(st.characters(exclude_characters="\u2581", exclude_categories=["Cs"])), st.data())
def test_text_of_a_vocabulary_of_characters_comes_back(text: str, data: st.DataObject) -> None:
    ids = CHARACTERS.encode(text, add_special_tokens=False).ids
    cut = data.draw(st.integers(0, len(ids)))
    detokenizer = Detokenizer(TokenTable(CHARACTERS))
    found = detokenizer.feed(ids[:cut]) + detokenizer.feed(ids[cut:]) + detokenizer.flush()
    assert found == text == CHARACTERS.decode(ids, skip_special_tokens=False)


def test_a_space_at_the_beginning_of_an_answer_stays() -> None:
    ids = CHARACTERS.encode(" cat", add_special_tokens=False).ids
    assert Detokenizer(TokenTable(CHARACTERS)).feed(ids) == " cat"


def test_tokens_that_are_no_bytes_are_refused() -> None:
    with pytest.raises(PolicyError, match="do not stand for bytes"):
        TokenTable(Tokenizer(models.WordLevel({"a": 0}, unk_token="a")))
