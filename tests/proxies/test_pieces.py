"""Prompts that are tokenised piece by piece have the tokens that they would have as a whole."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, trainers

from harnessgym.tokens import TokenArray
from proxies.renderers.pieces import Pieces
from tests.proxies.conftest import POLICY
from tests.proxies.npm_tokenizer import qwen3_folder

CONTROL = ("<|im_start|>", "<|im_end|>", "<s>", "</s>", "<mask>", "<word>", "<|im_start|><mask>")
TEXTS = st.lists(
    st.sampled_from(
        [
            *CONTROL,
            "user\n",
            "\n",
            " ",
            "  \n\n",
            "word",
            "Word",
            "é",
            "\u0301",
            "漢字",
            "\U0001f600",
            "<|im",
            "_start|>",
        ]
    )
    | st.text(max_size=5),
    max_size=12,
).map("".join)


def trained(normalizer: Any, pre_tokenizer: Any, **flags: bool) -> Tokenizer:
    """A tokenizer of another kind than the shipped one."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<unk>"], show_progress=False)
    tokenizer.train_from_iterator(
        ["user word Word the words are here é 漢字 system assistant " * 20], trainer
    )
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in CONTROL[:4]])
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, rstrip=True, normalized=False)])
    tokenizer.add_tokens([AddedToken("<word>", **flags), AddedToken("<|im_start|><mask>", normalized=False)])
    return tokenizer


def shipped() -> Tokenizer:
    return Tokenizer.from_file(str(POLICY / "tokenizer.json"))


def qwen3() -> Tokenizer:
    return Tokenizer.from_file(str(qwen3_folder() / "tokenizer.json"))


def first_words() -> Tokenizer:
    """The first word of a text is treated in its own way, as by Llama's tokenizers."""
    return trained(normalizers.NFC(), pre_tokenizers.Metaspace(prepend_scheme="first"))


def prepending() -> Tokenizer:
    """Every stretch between control tokens begins with a space, as with older ones of SentencePiece."""
    normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return trained(normalizer, pre_tokenizers.Split("▁", "merged_with_next"))


def single_words() -> Tokenizer:
    return trained(normalizers.NFKC(), pre_tokenizers.Metaspace(), single_word=True, normalized=False)


TOKENIZERS = (shipped, qwen3, first_words, prepending, single_words)


@pytest.fixture(scope="module", params=TOKENIZERS, ids=lambda make: make.__name__)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    made: Tokenizer = request.param()
    return made


def pieces_of(tokenizer: Tokenizer, **options: int) -> Pieces:
    return Pieces(tokenizer, lambda text: tokenizer.encode(text, add_special_tokens=False).ids, **options)


@given(data=st.data())
def test_the_tokens_are_those_of_the_whole_text(tokenizer: Tokenizer, data: st.DataObject) -> None:
    pieces = pieces_of(tokenizer)
    for text in data.draw(st.lists(TEXTS, min_size=1, max_size=3)):
        whole = tokenizer.encode(text, add_special_tokens=False).ids
        for _ in range(2):
            assert list(pieces.tokens(pieces.cut(text))) == whole
        assert "".join(pieces.cut(text)) == text


def test_prompts_share_their_pieces() -> None:
    tokenizer = shipped()
    pieces, read = pieces_of(tokenizer), list[str]()
    pieces = Pieces(
        tokenizer, lambda text: read.append(text) or tokenizer.encode(text, add_special_tokens=False).ids
    )
    first = "<|im_start|>system\nIt is nine.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n"
    second = first.replace("nine", "ten")
    one, other = (pieces.tokens(pieces.cut(text)) for text in (first, second))
    assert one.pieces[0] is not other.pieces[0]
    assert all(mine is theirs for mine, theirs in zip(one.pieces[1:], other.pieces[1:], strict=True))
    assert read.count("<|im_start|>user\nHello") == 1
    assert pieces.unknown(pieces.cut(first)) == 0
    assert pieces.unknown(pieces.cut(first.replace("Hello", "Bye"))) == len("<|im_start|>user\nBye")


def test_where_no_seam_is_safe_a_text_is_one_piece() -> None:
    text = "<|im_start|>user\nHello<|im_end|>\n"
    assert pieces_of(single_words()).cut(text) == [text]
    raw = json.loads(shipped().to_str())
    for token in raw["added_tokens"]:
        token["rstrip"] = True
    assert pieces_of(Tokenizer.from_str(json.dumps(raw))).cut(text) == [text]


def test_what_was_not_used_for_long_is_forgotten() -> None:
    pieces = pieces_of(shipped(), kept=100)
    texts = ["a" * 40, "b" * 40, "c" * 40]
    tokens = dict[str, TokenArray]()
    for text in (*texts[:2], texts[0], texts[2]):
        (tokens[text],) = pieces.tokens([text]).pieces
    assert [pieces.unknown([text]) for text in texts] == [0, 40, 0]
    assert pieces.tokens([texts[0]]).pieces[0] is tokens[texts[0]]
    assert pieces.unknown(["d" * 200]) == 200
