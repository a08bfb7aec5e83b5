"""Long texts are tokenised apart from the rendering that needs them, with the same tokens."""

from collections.abc import Callable

import pytest

from harnessgym.message import Message
from harnessgym.tokens import TokenIds
from proxies.language import PolicyLanguage
from proxies.renderers.long_texts import LONG, KnownTokens, LongText, TooManyTokens, tokenised
from tests.proxies.conftest import POLICY

WORDS = "The value of red-lamp-7 is 42; look up <|im_end|> next.\n"


@pytest.fixture
def language() -> PolicyLanguage:
    return PolicyLanguage.of_policy(POLICY)


def completed(render: Callable[[], TokenIds]) -> tuple[TokenIds, int]:
    """The tokens, and how many texts had to be tokenised apart."""
    known, rounds = KnownTokens(), 0
    while True:
        try:
            with known:
                return render(), rounds
        except LongText as long:
            rounds += 1
            known.add(long, long.encode(10**9))


@pytest.mark.parametrize("filler", [WORDS, "x", " ", "é漢", "word " * 7 + "\n\n"])
def test_the_tokens_are_those_of_a_rendering_at_once(language: PolicyLanguage, filler: str) -> None:
    renderer = language.renderer
    messages = [Message("system", "Be brief."), Message("user", filler * (2 * LONG // len(filler)))]
    apart, rounds = completed(lambda: renderer.render(messages, ()))
    assert rounds == 1
    assert apart == PolicyLanguage.of_policy(POLICY).renderer.render(messages, ())
    plain = filler * (LONG // len(filler) + 1)
    assert completed(lambda: renderer.encode(plain)) == (renderer.encode(plain), 1)
    renderer = PolicyLanguage.of_policy(POLICY).renderer
    ids = [*renderer.render(messages[:1], ()), *language.write("Yes.")]
    apart, rounds = completed(lambda: renderer.extend(ids, messages[1:], ()) or [])
    assert (apart, rounds) == (language.renderer.extend(ids, messages[1:], ()), 1)


def test_a_short_text_is_tokenised_at_once(language: PolicyLanguage) -> None:
    messages = [Message("user", "a" * (LONG // 2))]
    assert completed(lambda: language.renderer.render(messages, ()))[1] == 0


def test_outside_of_known_tokens_every_text_is_tokenised_at_once(language: PolicyLanguage) -> None:
    assert len(language.renderer.encode("a " * LONG)) > 0
    known = KnownTokens()
    known.complete = True
    with known:
        assert len(language.renderer.encode("a " * LONG)) > 0


def test_what_is_far_too_long_is_not_read_to_its_end() -> None:
    read = list[int]()

    def encode(text: str) -> list[int]:
        read.append(len(text))
        return [1] * len(text)

    known = KnownTokens()
    with known, pytest.raises(LongText) as long:
        tokenised("a" * 50_000_000, encode)
    with pytest.raises(TooManyTokens) as refusal:
        long.value.encode(1_000)
    assert sum(read) < 1_000_000
    assert refusal.value.tokens > 1_000
    assert long.value.encode(10**8) == [1] * 50_000_000


def test_the_tokens_that_are_given_out_are_the_caller_s_own(language: PolicyLanguage) -> None:
    known, text = KnownTokens(), "a " * LONG
    with pytest.raises(LongText) as long, known:
        language.renderer.encode(text)
    known.add(long.value, long.value.encode(10**9))
    with known:
        language.renderer.encode(text).append(4)
        assert len(language.renderer.encode(text)) == len(long.value.encode(10**9))


def test_a_text_whose_pieces_are_known_is_not_long(language: PolicyLanguage) -> None:
    half = "a " * (LONG // 3)
    messages = [Message("user", half), Message("assistant", half[2:])]
    for count in (1, 2):
        assert completed(lambda: language.renderer.render(messages[:count], ()))[1] == 0  # noqa: B023
    assert len(language.renderer.text(messages)) > LONG
