"""Reads request bodies incrementally: the part that an earlier body of the session had is not read again.

A harness sends its whole conversation with every turn. Only the new part is parsed, split for the store and
made into messages, so a turn costs what it adds, however long the conversation is. The result is the same, to
the byte, as reading every body by itself (`strict_json.loads_lenient` and `split_body`).
"""

import hashlib
import json
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

from harnessgym.store.bodies import LISTS, BaseBody, SplitBody, split_body, text_hash
from proxies import strict_json

T = TypeVar("T")
_UNMADE = object()
"""Stands for what is not made so far."""
_LAST_TURN = 4
"""Elements that a harness adds or changes in a turn, for which no other body is looked through."""
_CONVERSATIONS = 4
"""Number of conversations that a session remembers: sub-agents take turns."""


@dataclass(frozen=True, slots=True)
class _Members:
    """The members of a body before its list, or after it."""

    text: str
    values: dict[str, Any]
    made: dict[str, list[Any]] = field(default_factory=dict)
    """Maps a member's name to what the dialect made of its array."""


@dataclass(slots=True)
class _Conversation:
    """A body that was read, and what was made of it."""

    text: str
    head: _Members
    name: str
    """Name of the member that holds the list."""
    separator: str
    tail: _Members
    values: list[Any]
    """The list's elements."""
    ends: list[int]
    """The offset in the text at which each element ends."""
    hashes: list[str]
    """The hash of each element's text."""
    made: list[Any]
    """What the dialect made of the elements, from the first on; it may be shorter than `values`."""
    tallies: dict[Callable[[Any], bool], tuple[int, int]]
    """Counts over `made`: the number of leading elements tested, and how many of them passed."""
    digest: "hashlib.blake2b"
    """Hash state of the text up to the end of the last element. Copy it, never update it: others share it."""
    base: BaseBody | None = None
    """The stored body that has the first elements; None until one is known to be committed."""
    unmade: list[int] = field(default_factory=list)
    """Indexes of `made` of which nothing was made so far."""

    def shared(self, text: str) -> int:
        """The number of leading elements that another text shares, byte for byte, after the same head."""
        # The usual case, the same conversation with more turns, costs a single comparison.
        if text.startswith(self.text[: self.ends[-1]]):
            return len(self.ends)
        if not text.startswith(self.head.text):
            return 0
        return bisect_left(self.ends, 1, key=lambda end: not text.startswith(self.text[:end]))


class Made(list[T]):
    """What a dialect made of the elements of a list."""

    def __init__(self, made: Iterable[T], tallies: dict[Callable[[Any], bool], tuple[int, int]]) -> None:
        super().__init__(made)
        self._tallies = tallies

    def tally(self, counts: Callable[[T], bool]) -> int:
        """The number of elements for which `counts` is true. Only new elements are tested."""
        looked, count = self._tallies.get(counts, (0, 0))
        # The tallies are shared with a later body of the conversation, which may have tested more elements.
        if looked > len(self):
            looked = count = 0
        count += sum(counts(self[index]) for index in range(looked, len(self)))
        self._tallies[counts] = (len(self), count)
        return count


class ReadBody(bytes):
    """A request's body with its parsed value."""

    value: dict[str, Any]
    """The JSON value, as `strict_json.loads_lenient` gives it."""
    split_body: SplitBody
    """The body split for the store."""
    digest: str
    """`digest_of` it."""
    _conversation: _Conversation
    _replaced: _Conversation | None
    """The earlier conversation that this one continues."""

    def make(self, name: str, read: Callable[[Any, int], T]) -> Made[T] | None:
        """Apply `read` to every element of an array of the body; it is called for new elements only.

        None if the body has no array of that name.
        """
        conversation = self._conversation
        # In JSON the last of two members with one name wins, so the tail may replace the list.
        if name == conversation.name and name not in conversation.tail.values:
            made = conversation.made
            values = conversation.values
            unmade = conversation.unmade
            while unmade:
                made[unmade[0]] = read(values[unmade[0]], unmade[0])
                del unmade[0]
            made += [read(values[index], index) for index in range(len(made), len(values))]
            return Made(made, conversation.tallies)
        for members in (conversation.tail, conversation.head):
            if isinstance(members.values.get(name), list):
                if name not in members.made:
                    members.made[name] = [
                        read(value, index) for index, value in enumerate(members.values[name])
                    ]
                return Made(members.made[name], {})
        return None

    def stored(self, call_id: str, written: "Future[None]") -> None:
        """Note that the write of a call with this body has ended.

        If it was committed, later bodies refer to its elements instead of writing them again.
        """
        if written.exception() is None:
            self._conversation.base = BaseBody(call_id, len(self._conversation.ends))


class BodyReader:
    """Reads the bodies that one session sends in one dialect."""

    def __init__(self) -> None:
        self._known: tuple[_Conversation, ...] = ()

    def read(self, body: bytes) -> bytes:
        """A `ReadBody`, or the body unchanged if it is invalid or has no list of messages. Remembers it.

        The dialect parses an unchanged body itself and reports what is wrong with it.
        """
        read = self.look(body)
        self.remember(read)
        return read

    def look(self, body: bytes) -> bytes:
        """The same, but remembers nothing and may run on a thread."""
        try:
            text = body.decode()
            known, shared = max(
                ((known, known.shared(text)) for known in self._known),
                key=lambda pair: pair[1],
                default=(None, 0),
            )
            changed = known is None or shared < len(known.ends)
            others = self._known if changed else ()
            if known is not None and shared:
                conversation = _continued(text, known, shared, others)
            else:
                conversation = _begun(text, others)
            if conversation is not None and others:
                _share(conversation, others)
        except (ValueError, IndexError, RecursionError):
            return body
        if conversation is None:
            return body
        out = ReadBody(body)
        out.value = {
            **conversation.head.values,
            conversation.name: list(conversation.values),
            **conversation.tail.values,
        }
        out.split_body = _split(conversation)
        digest = conversation.digest.copy()
        digest.update(text[conversation.ends[-1] :].encode())
        out.digest = digest.hexdigest()
        out._conversation = conversation  # noqa: SLF001
        # A conversation that continues replaces its earlier state; a branch is remembered beside it.
        out._replaced = known if known is not None and shared == len(known.ends) else None  # noqa: SLF001
        return out

    def remember(self, body: bytes) -> None:
        """Read later bodies as continuations of this one, which `look` returned."""
        if isinstance(body, ReadBody):
            others = [each for each in self._known if each is not body._replaced]  # noqa: SLF001
            self._known = (body._conversation, *others[: _CONVERSATIONS - 1])  # noqa: SLF001


def split_of(body: bytes) -> SplitBody:
    """A body split for the store."""
    return body.split_body if isinstance(body, ReadBody) else split_body(body)


def digest_of(body: bytes) -> str:
    """The identity of a body's bytes: blake2b-128 in hex."""
    return body.digest if isinstance(body, ReadBody) else hashlib.blake2b(body, digest_size=16).hexdigest()


def _begun(text: str, others: Sequence[_Conversation]) -> _Conversation | None:
    """Read a body that begins otherwise than the earlier ones. None if it has no list of messages."""
    at = _skip(text, 0)
    if text[at] != "{":
        return None
    values: dict[str, Any] = {}
    at = _skip(text, at + 1)
    while text[at] == '"':
        key, at = _member(text, at)
        if key in LISTS and text[at] == "[":
            start = _skip(text, at + 1)
            head = _Members(text[:start], values)
            digest = hashlib.blake2b(head.text.encode(), digest_size=16)
            conversation = _Conversation(text, head, key, "", head, [], [], [], [], {}, digest)
            return _finished(conversation, start, others)
        values[key], at = strict_json.scan(text, at, 1)
        at = _skip(text, at)
        if text[at] != ",":
            return None
        at = _skip(text, at + 1)
    return None


def _continued(
    text: str, known: _Conversation, shared: int, others: Sequence[_Conversation]
) -> _Conversation | None:
    """Read a body whose first `shared` elements are those of a known conversation."""
    parallel = (known.values[:shared], known.ends[:shared], known.hashes[:shared], known.made[:shared])
    base = None if known.base is None else BaseBody(known.base.call_id, min(known.base.elements, shared))
    digest = known.digest
    tallies = known.tallies
    # After a branch the known digest and tallies cover elements that this body does not have.
    if shared < len(known.ends):
        tallies = {}
        digest = hashlib.blake2b(text[: known.ends[shared - 1]].encode(), digest_size=16)
    conversation = _Conversation(
        text,
        known.head,
        known.name,
        known.separator,
        known.tail,
        *parallel,
        tallies,
        digest,
        base,
        [index for index in known.unmade if index < shared],
    )
    return _finished(conversation, conversation.ends[-1], others)


def _share(conversation: _Conversation, others: Sequence[_Conversation]) -> None:
    """Take from other conversations what was made of elements that they have at other places, and refer to
    the stored body that has most of them.
    """
    hashes = conversation.hashes
    made = conversation.made
    made += [_UNMADE] * (len(hashes) - len(made))
    known = {
        key: (value, each)
        for other in reversed(others)
        for key, value, each in zip(other.hashes, other.values, other.made, strict=False)
        if each is not _UNMADE
    }
    unmade = [index for index, each in enumerate(made) if each is _UNMADE]
    for index in unmade:
        if hashes[index] in known:
            conversation.values[index], made[index] = known[hashes[index]]
    conversation.unmade = [index for index in unmade if made[index] is _UNMADE]
    own = conversation.base
    leading = 0 if own is None else own.elements
    best = 0
    for other in others:
        base = other.base
        if base is None or (own is not None and base.call_id != own.call_id):
            continue
        runs = _runs(hashes, leading, other.hashes[: base.elements])
        if (count := sum(run[-1] for run in runs)) > best:
            best = count
            conversation.base = BaseBody(base.call_id, leading, runs)
        # The newest one has all but the last turn, in the usual case.
        if best >= len(hashes) - leading - _LAST_TURN:
            break


def _runs(hashes: Sequence[str], first: int, base: Sequence[str]) -> tuple[tuple[int, int, int], ...]:
    """The elements from index `first` on that a base has: (index, index in the base, how many)."""
    places = {key: index for index, key in enumerate(base)}
    runs = list[tuple[int, int, int]]()
    for index in range(first, len(hashes)):
        place = places.get(hashes[index])
        if place is None:
            continue
        at, start, count = runs[-1] if runs else (0, 0, 0)
        if count and (index, place) == (at + count, start + count):
            runs[-1] = (at, start, count + 1)
        else:
            runs.append((index, place, 1))
    return tuple(runs)


def _finished(conversation: _Conversation, at: int, others: Sequence[_Conversation]) -> _Conversation | None:
    """Read the rest of the text, from the first element or from the end of a known one. What follows an
    element in another conversation is not read again.

    None if it cannot be split: its separators differ or an element is not an object, array or string.
    """
    text = conversation.text
    ends = conversation.ends
    begin = at
    while True:
        if ends:
            at = _skip(text, ends[-1])
            if text[at] == "]":
                break
            after = _skip(text, at + 1)
            separator = text[ends[-1] : after]
            if text[at] != "," or (len(ends) > 1 and separator != conversation.separator):
                return None
            conversation.separator = separator
            at = after
        value, end = strict_json.scan(text, at, 2)
        # A number ends where the text does: in a longer text, `1` may be the start of `12`, so a shared
        # prefix would not mean a shared element.
        if text[end - 1] not in '}]"':
            return None
        conversation.values.append(value)
        conversation.hashes.append(text_hash(text[at:end]))
        ends.append(end)
        for other in others:
            _take_over(conversation, other)
    # The state is shared with the conversation that this one continues, so it is copied first.
    conversation.digest = conversation.digest.copy()
    conversation.digest.update(text[begin : ends[-1]].encode())
    if len(ends) == 1:
        conversation.separator = ","
    if text[ends[-1] :] != conversation.tail.text:
        conversation.tail = _tail(text, ends[-1])
    return conversation


def _take_over(conversation: _Conversation, other: _Conversation) -> None:
    """Add the elements that follow the last one in another conversation too, byte for byte."""
    text = conversation.text
    ends = conversation.ends
    behind = len(ends)
    if behind >= len(other.ends) or (behind > 1 and conversation.separator != other.separator):
        return
    begin = other.ends[behind - 1]

    def differs(end: int) -> bool:
        return not text.startswith(other.text[begin:end], ends[behind - 1])

    if differs(other.ends[behind]):
        return
    until = bisect_left(other.ends, 1, behind, key=differs)
    conversation.separator = other.separator
    conversation.made += [_UNMADE] * (behind - len(conversation.made)) + other.made[behind:until]
    conversation.values += other.values[behind:until]
    conversation.hashes += other.hashes[behind:until]
    ends += [end + ends[behind - 1] - begin for end in other.ends[behind:until]]


def _tail(text: str, start: int) -> _Members:
    """The members after the list whose last element ends at `start`. Raises `ValueError` if broken."""
    values: dict[str, Any] = {}
    at = _skip(text, _skip(text, start) + 1)
    while text[at] == ",":
        key, at = _member(text, _skip(text, at + 1))
        values[key], at = strict_json.scan(text, at, 1)
        at = _skip(text, at)
    if text[at] != "}" or text[at + 1 :].strip(" \t\r\n"):
        raise ValueError("not one JSON object")
    return _Members(text[start:], values)


def _member(text: str, at: int) -> tuple[str, int]:
    """A member's key and the offset of its value. Raises `ValueError` if there is no member."""
    if text[at] != '"':
        raise ValueError("a key is a string")
    key, at = strict_json.scan(text, at, 1)
    at = _skip(text, at)
    if text[at] != ":":
        raise ValueError("a key is followed by a colon")
    return str(key), _skip(text, at + 1)


def _split(conversation: _Conversation) -> SplitBody:
    """The same as `split_body`, except that elements which the store has are left out."""
    text = conversation.text
    ends = conversation.ends
    hashes = conversation.hashes
    base = conversation.base
    start = len(conversation.head.text)
    gap = len(conversation.separator)
    new = set(range(0 if base is None else base.elements, len(ends)))
    for at, _, count in () if base is None else base.runs:
        new.difference_update(range(at, at + count))
    parts = tuple(
        (hashes[index], text[ends[index - 1] + gap if index else start : ends[index]])
        for index in sorted(new)
    )
    header = json.dumps([start, conversation.separator])
    return SplitBody(parts, f"{header}\n{text[:start]}{text[ends[-1] :]}".encode(), base)


def _skip(text: str, at: int) -> int:
    while text[at] in " \t\n\r":
        at += 1
    return at
