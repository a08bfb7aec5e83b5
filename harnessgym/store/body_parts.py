"""Splits request bodies so that a conversation is stored once, and joins them again byte for byte.

A harness sends the whole conversation with every turn. Splitting takes out the elements of the top-level list
that holds it, as the text that the client wrote. A body is kept whole if it is not such an object, or if its
elements are not all separated by the same text.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

LISTS = ("messages", "input", "contents")
"""Names of the lists whose elements are taken out."""
_scan: Callable[[str, int], tuple[Any, int]] = json.JSONDecoder().scan_once  # type: ignore[attr-defined]
"""Parses the JSON value at an index of a text; returns it and the index where it ends."""
_SPACE = " \t\n\r"


@dataclass(frozen=True, slots=True)
class BaseBody:
    """A stored request whose leading elements another request shares."""

    call_id: str
    elements: int
    """How many leading elements are shared."""


@dataclass(frozen=True, slots=True)
class SplitBody:
    """A body that was split."""

    parts: tuple[tuple[str, str], ...]
    """(hash, text) of the elements that follow those of `base`, in order."""
    remainder: bytes
    """One header line that says where the elements go, then the body without them."""
    base: BaseBody | None = None
    """The stored request that has the elements before `parts`."""


def split_body(body: bytes) -> SplitBody:
    """Split a body."""
    try:
        text = body.decode()
        found = _find_elements(text)
    except (ValueError, StopIteration, IndexError):
        found = None
    # An empty header line marks a body that is kept whole.
    if found is None:
        return SplitBody((), b"\n" + body)
    start, end, separator, elements = found
    parts = tuple((text_hash(part), part) for part in elements)
    header = json.dumps([start, separator])
    return SplitBody(parts, f"{header}\n{text[:start]}{text[end:]}".encode())


def text_hash(text: str) -> str:
    """Return the key under which a text is stored: blake2b-128 of its UTF-8, in hex."""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def join_body(texts: Iterable[tuple[str, str]], hashes: Sequence[str], remainder: bytes) -> bytes:
    """Return the original body from the (hash, text) pairs of its elements, which may be in any order."""
    header, _, rest = remainder.partition(b"\n")
    if not header:
        return rest
    start, separator = json.loads(header)
    known = dict(texts)
    text = rest.decode()
    elements: str = separator.join(known[key] for key in hashes)
    return (text[:start] + elements + text[start:]).encode()


def _find_elements(text: str) -> tuple[int, int, str, list[str]] | None:
    """Return start, end, separator and texts of the elements; None if the body is kept whole."""
    at = _skip(text, 0)
    if text[at] != "{":
        return None
    at = _skip(text, at + 1)
    while text[at] == '"':
        key, at = _scan(text, at)
        at = _skip(text, _skip(text, at) + 1)
        if key in LISTS and text[at] == "[":
            return _elements(text, _skip(text, at + 1))
        _, at = _scan(text, at)
        at = _skip(text, _skip(text, at) + 1)
    return None


def _elements(text: str, start: int) -> tuple[int, int, str, list[str]] | None:
    elements: list[str] = []
    separators: set[str] = set()
    at = end = start
    while text[at] != "]":
        if elements:
            after = _skip(text, at + 1)
            separators.add(text[end:after])
            at = after
        _, end = _scan(text, at)
        elements.append(text[at:end])
        at = _skip(text, end)
    if not elements or len(separators) > 1:
        return None
    return start, end, separators.pop() if separators else ",", elements


def _skip(text: str, at: int) -> int:
    while text[at] in _SPACE:
        at += 1
    return at
