"""A body is read the same whatever was read before it, and what was read before is not read again."""

import json
from concurrent.futures import Future
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from harnessgym.store.bodies import join_body, split_body
from proxies import strict_json
from proxies.reading import BodyReader, ReadBody, digest_of, split_of

TEXT = st.text(max_size=6) | st.sampled_from(["é\U0001f600", '"}],', "\\", "\ud83d"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
MESSAGE = st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": JSON})
ELEMENT = st.one_of(MESSAGE, MESSAGE, JSON)
OTHERS = st.dictionaries(st.sampled_from(["model", "tools", "stream", "input", "messages"]), JSON, max_size=3)


@st.composite
def talks(draw: st.DrawFn) -> list[bytes]:
    """Bodies of one session: conversations that grow, lose, and change elements, in several ways of
    writing JSON.
    """
    separators = draw(st.sampled_from([None, (",", ":"), (" , ", " : "), (",\n", ":\t")]))
    ascii_only, before, after = draw(st.booleans()), draw(OTHERS), draw(OTHERS)
    name = draw(st.sampled_from(["messages", "input", "contents"]))
    elements: list[Any] = draw(st.lists(ELEMENT, max_size=3))
    out = []
    for _ in range(draw(st.integers(1, 5))):
        elements = elements[: draw(st.integers(0, len(elements)))] if draw(st.booleans()) else elements
        elements = [*elements, *draw(st.lists(ELEMENT, max_size=3))]
        if elements and draw(st.booleans()):
            changed = draw(st.integers(0, len(elements) - 1))
            elements = [*elements[:changed], *draw(st.lists(ELEMENT, max_size=2)), *elements[changed + 1 :]]
        if draw(st.integers(0, 4)) == 0:
            after = draw(OTHERS)
        body = {**before, name: elements, **after}
        out.append(
            json.dumps(body, ensure_ascii=ascii_only, separators=separators).encode(errors="surrogatepass")
        )
    return out


def by_itself(body: bytes) -> Any:
    try:
        return strict_json.loads_lenient(body.decode())
    except ValueError:
        return ValueError


class Stored:
    """What a store that is given every body has."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.hashes: dict[str, list[str]] = {}

    def add(self, call_id: str, read: bytes) -> list[str]:
        """Hashes of all elements of a body, from what is written of it and what was written before."""
        split = split_of(read)
        self.texts.update(split.parts)
        own = [key for key, _ in split.parts]
        hashes = own
        if split.base is not None:
            base = self.hashes[split.base.call_id]
            hashes = base[: split.base.elements]
            for at, start, count in split.base.runs:
                hashes += [own.pop(0) for _ in range(at - len(hashes))] + base[start : start + count]
            hashes += own
        self.hashes[call_id] = hashes
        return hashes


def done(error: Exception | None = None) -> "Future[None]":
    future: Future[None] = Future()
    future.set_exception(error) if error else future.set_result(None)
    return future


@given(talks(), st.lists(st.booleans(), min_size=5, max_size=5))
def test_every_body_is_read_as_if_it_were_the_first(bodies: list[bytes], committed: list[bool]) -> None:
    reader, stored = BodyReader(), Stored()
    for number, (body, commits) in enumerate(zip(bodies, committed, strict=False)):
        read = reader.read(body)
        assert read == body
        hashes = stored.add(str(number), read)
        assert hashes == [key for key, _ in split_body(body).parts]
        assert join_body(stored.texts.items(), hashes, split_of(read).remainder) == body
        assert digest_of(read) == digest_of(body)
        if isinstance(read, ReadBody):
            assert repr(read.value) == repr(by_itself(body))
            if commits:
                read.stored(str(number), done())


@given(st.lists(st.binary(max_size=40) | st.text(max_size=40).map(str.encode), max_size=4))
@example([b'{"messages":[1 2]}'])
@example([b'{"messages":["a" "b"]}'])
@example([b'{"messages":["a",]}'])
@example([b'{"messages":[,"a"]}'])
@example([b'{"messages":["a"],}'])
@example([b'{"messages":["a"]} x'])
@example([b'{"messages":["a"]'])
@example([b'{"messages":[{"a":NaN}]}'])
@example([b'{"messages":[{"a":1e999}]}'])
@example([b'{"a" 1,"messages":["a"]}'])
@example([b'{"a":1 "messages":["a"]}'])
@example([b'{"messages":[' + b'"",' * 3 + b"[" * 98 + b"]" * 98 + b"]}"])
@example([b'{"messages":[' + b'"",' * 3 + b"[" * 99 + b"]" * 99 + b"]}"])
@example([b'{"messages":["a","b"]}', b'{"messages":["a","b"x]}'])
@example([b'{"messages":["a","b"]}', b'{"messages":["a","b"}'])
@example([b'{"messages":["a"]}', b'{"messages":["a"] , "messages" : 1}'])
def test_what_is_not_valid_is_left_to_be_refused(bodies: list[bytes]) -> None:
    reader = BodyReader()
    for body in bodies:
        read = reader.read(body)
        if isinstance(read, ReadBody):
            assert repr(read.value) == repr(by_itself(body))
        assert read == body


def conversation(length: int, **more: Any) -> bytes:
    messages = [{"role": "user", "content": str(number)} for number in range(length)]
    return json.dumps(
        {"model": "m", "messages": messages, "tools": [{"name": "a"}, {"name": "b"}], **more}
    ).encode()


def make(read: bytes, name: str, made: list[Any]) -> list[Any] | None:
    assert isinstance(read, ReadBody)
    return read.make(name, lambda value, index: made.append((index, value)) or value)


def test_only_what_is_new_is_made_into_messages() -> None:
    reader, made = BodyReader(), list[Any]()
    for length in (3, 5, 5, 4):
        values = make(reader.read(conversation(length)), "messages", made)
        assert values == json.loads(conversation(length))["messages"]
    assert [index for index, _ in made] == [0, 1, 2, 3, 4]


def test_an_equal_tail_is_made_once() -> None:
    reader, made = BodyReader(), list[Any]()
    for length in (1, 2, 3):
        make(reader.read(conversation(length)), "tools", made)
    assert made == [(0, {"name": "a"}), (1, {"name": "b"})]
    make(reader.read(conversation(4, stream=True)), "tools", made)
    assert len(made) == 4
    assert make(reader.read(conversation(4)), "model", made) is None


def test_only_what_is_new_is_counted() -> None:
    reader, seen = BodyReader(), list[Any]()

    def even(value: Any) -> bool:
        seen.append(value)
        return int(value["content"]) % 2 == 0

    for length, expected in ((3, 2), (6, 3), (6, 3), (2, 1), (5, 3)):
        made = reader.read(conversation(length)).make("messages", lambda value, _: value)  # type: ignore[attr-defined]
        assert made.tally(even) == made.tally(even) == expected
    assert len(seen) == 6 + 2 + 5


def test_conversations_that_take_turns_are_all_remembered() -> None:
    reader, made = BodyReader(), list[Any]()
    for length in (1, 2, 3):
        for agent in ("a", "b", "c"):
            messages = [{"role": agent, "content": str(number)} for number in range(length)]
            make(reader.read(json.dumps({"messages": messages}).encode()), "messages", made)
    assert len(made) == 9


@pytest.mark.parametrize("failed", [True, False])
def test_only_what_is_committed_is_left_out_of_the_next_write(failed: bool) -> None:
    reader = BodyReader()
    first = reader.read(conversation(3))
    assert isinstance(first, ReadBody)
    first.stored("a", done(OSError()) if failed else done())
    assert len(split_of(reader.read(conversation(5))).parts) == (5 if failed else 2)
