"""Raw answers are text, in whatever pieces they come."""

from hypothesis import given
from hypothesis import strategies as st

from proxies.language import PolicyLanguage
from proxies.parsers.raw import RawParser


def parser(language: PolicyLanguage) -> RawParser:
    return RawParser(language.renderer.written, stop_token_ids=language.stop_token_ids)


@given(text=st.text(), cuts=st.lists(st.integers(1, 5)))
def test_pieces_concatenate_to_the_text(language: PolicyLanguage, text: str, cuts: list[int]) -> None:
    ids = language.renderer.encode(text)
    expected = language.renderer.written(
        [token for token in ids if token not in language.stop_token_ids]
    ).decode()
    reading, said, at = parser(language), "", 0
    for cut in (*cuts, len(ids)):
        said += "".join(delta.text for delta in reading.feed(ids[at : at + cut]))
        at += cut
    said += "".join(delta.text for delta in reading.flush())
    assert said == reading.finish().content == expected
    assert (reading.unparsed, reading.flush()) == (0, [])


def test_markup_is_text_and_ends_of_turns_are_not(language: PolicyLanguage) -> None:
    text = '<think>\na\n</think>\n\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    reading = parser(language)
    reading.feed(language.renderer.encode(f"{text}<|im_end|>"))
    message = reading.finish()
    assert (message.content, message.reasoning, message.tool_calls) == (text, "", ())


def test_a_character_that_is_cut_off_is_replaced(language: PolicyLanguage) -> None:
    reading = parser(language)
    reading.feed(language.renderer.encode("🎉")[:1])
    assert reading.finish().content == "\ufffd"
