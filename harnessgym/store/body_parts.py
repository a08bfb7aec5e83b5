"""Request bodies taken apart so that a conversation sent again with every turn is stored once, and put
together byte for byte.

What is taken out are the elements of the top-level list that holds the conversation, as the text the client
wrote. A body that is not such an object, or whose elements are not separated alike, is kept whole.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

LISTS = ("messages", "input", "contents")
"""Names of the lists that are taken out."""
_scan: Callable[[str, int], tuple[Any, int]] = json.JSONDecoder().scan_once  # type: ignore[attr-defined]
"""Value at a place in a text and where it ends."""
_SPACE = " \t\n\r"


@dataclass(frozen=True, slots=True)
class BaseBody:
    """A stored request with which another one begins."""

    call_id: str
    elements: int
    """How many of its leading elements the other has too."""


@dataclass(frozen=True, slots=True)
class SplitBody:
    """A body taken apart."""

    parts: tuple[tuple[str, str], ...]
    """(hash, text) of the elements that follow those of `base`, in order."""
    remainder: bytes
    """One line saying where the elements go, then the body without them."""
    base: BaseBody | None = None
    """Where the elements before `parts` are: a turn stores what it adds."""


def split_body(body: bytes) -> SplitBody:
    """Take a body apart."""
    try:
        text = body.decode()
        found = _find_elements(text)
    except (ValueError, StopIteration, IndexError):
        found = None
    if found is None:
        return SplitBody((), b"\n" + body)
    start, end, separator, elements = found
    parts = tuple((text_hash(part), part) for part in elements)
    header = json.dumps([start, separator])
    return SplitBody(parts, f"{header}\n{text[:start]}{text[end:]}".encode())


def text_hash(text: str) -> str:
    """The key under which a text is stored: blake2b-128 of its UTF-8, in hex."""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def join_body(texts: Iterable[tuple[str, str]], hashes: Sequence[str], remainder: bytes) -> bytes:
    """The body that was taken apart, from (hash, text) of its elements in any order."""
    header, _, rest = remainder.partition(b"\n")
    if not header:
        return rest
    start, separator = json.loads(header)
    known = dict(texts)
    text = rest.decode()
    elements: str = separator.join(known[key] for key in hashes)
    return (text[:start] + elements + text[start:]).encode()


def _find_elements(text: str) -> tuple[int, int, str, list[str]] | None:
    """Start, end, separator and texts of the elements; None if the body is not to be split."""
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
