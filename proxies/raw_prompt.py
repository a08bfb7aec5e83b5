"""Turns a raw prompt into the exact tokens for the engine. There is no chat template, and sampled text is
never tokenised again.

A client continues a text by sending it again with more behind it. The longest prompt + answer of the session
that the text begins with supplies its own tokens, and only what follows is tokenised. Texts are read off the
session's forest, so a session that is loaded from the store continues in the same way.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harnessgym.message import Message, canonical_json, chain_digests
from harnessgym.store.calls import Segment
from harnessgym.traces.forest import Forest
from proxies.continuation import Break, Prompt
from proxies.conversations import SeenPrefixes
from proxies.dialect import ModelRequest, Problem, RequestProblem
from proxies.language import PolicyLanguage

_KEPT_BYTES = 64 * 2**20
"""Most bytes of segments' texts that are cached. When they exceed it, the cache is cleared."""


@dataclass(frozen=True, slots=True)
class _Start:
    """A stored prompt + answer that a text begins with."""

    end: int
    """Where it ends in the text, in bytes."""
    segment_id: str
    unended: bool
    """Whether the last token, which ended the answer, is missing from the text."""


def raw_chain(prompt: str | Sequence[int]) -> list[str]:
    """The chain of a raw prompt: a single digest, which no conversation of messages can have."""
    if isinstance(prompt, str):
        return chain_digests("raw text", (Message("user", prompt),))
    return chain_digests("raw ids", (Message("user", canonical_json(list(prompt))),))


class RawPrompts:
    """Turns raw requests into prompts, in one policy's language."""

    def __init__(self, language: PolicyLanguage) -> None:
        self._renderer = language.renderer
        self._stop = frozenset(language.stop_token_ids)
        self._texts: dict[str, bytes] = {}
        self._kept = 0

    def prompt(
        self, forest: Forest, seen_prefixes: SeenPrefixes, request: ModelRequest, history: str
    ) -> Prompt:
        """The prompt of a raw request. Raises `RequestProblem` for an empty one.

        Token ids are used as they are. A text whose answer ended on a token that the text leaves out
        continues without that token: it keeps the other sampled ones, but the call it continues is not its
        parent.
        """
        assert request.prompt is not None
        start = None
        if isinstance(request.prompt, str):
            ids, start = self._tokenise(forest, request.prompt, keep=history == "keep")
        else:
            ids = list(request.prompt)
        if not ids:
            raise RequestProblem(Problem("malformed", "prompt: the prompt has no tokens."))
        parent = forest.find_prefix(ids)
        added = ids if parent is None else ids[forest.length(parent.segment_id) :]
        if start is not None and start.unended:
            call_id = forest.call_of(start.segment_id)
            detail = f"the prompt leaves out the token that ended the answer of call {call_id}"
            return Prompt(ids, parent, added, Break("edited_history", detail))
        if parent is None and seen_prefixes and raw_chain(request.prompt)[0] not in seen_prefixes:
            return Prompt(ids, None, ids, Break("new_root", "no earlier prompt and answer begin this prompt"))
        return Prompt(ids, parent, added, None)

    def _tokenise(self, forest: Forest, text: str, *, keep: bool) -> tuple[list[int], _Start | None]:
        opening = self._renderer.opening(text)
        data = self._renderer.written(opening) + text.encode()
        start = max(self._starts(forest, data), key=lambda found: found.end, default=None) if keep else None
        if start is None:
            return [*opening, *self._renderer.encode(text)], None
        ids = forest.ids(start.segment_id)
        known = ids[:-1] if start.unended else ids
        return [*known, *self._renderer.encode(data[start.end :].decode())], start

    def _starts(self, forest: Forest, data: bytes) -> Iterator[_Start]:
        """Every prompt + answer that the text begins with."""
        open_ends = [(segment_id, 0) for segment_id in forest.children.get(None, ())]
        while open_ends:
            segment_id, at = open_ends.pop()
            segment = forest.segments[segment_id]
            text = self._text(segment)
            answer = forest.call_of(segment_id) is not None
            if data.startswith(text, at):
                end = at + len(text)
                open_ends += [(child, end) for child in forest.children.get(segment_id, ())]
                if answer and _between_characters(data, end):
                    yield _Start(end, segment_id, unended=False)
            elif answer and segment.ids and segment.ids[-1] in self._stop:
                end = at + len(text) - len(self._renderer.written(segment.ids[-1:]))
                if data.startswith(text[: end - at], at) and _between_characters(data, end):
                    yield _Start(end, segment_id, unended=True)

    def _text(self, segment: Segment) -> bytes:
        text = self._texts.get(segment.id)
        if text is None:
            text = self._renderer.written(segment.ids)
            self._kept += len(text)
            if self._kept > _KEPT_BYTES:
                self._texts.clear()
                self._kept = len(text)
            self._texts[segment.id] = text
        return text


def _between_characters(data: bytes, at: int) -> bool:
    """Whether UTF-8 text may be cut here."""
    return at == len(data) or data[at] & 0xC0 != 0x80
