"""The prompt that an engine repeats in its answer: compared as it arrives, and taken out before anything is
parsed.

In a long conversation it is longer than everything else together.
"""

import orjson

from harnessgym.errors import UpstreamError

_KEY = b'"prompt_token_ids":'


class PromptEcho:
    """Takes the array behind `"prompt_token_ids":` out of the first event of a stream; `null` stands there
    instead.
    """

    def __init__(self, prompt: bytes) -> None:
        """`prompt` is a JSON array as it was sent."""
        self._prompt = prompt
        self._before = b""
        """What came before the array, as long as it has not begun."""
        self._at: int | None = None
        """How much of the prompt has come back, once the array has begun."""
        self._other: bytes | None = None
        """An array that is not written as the prompt was, as far as it has come."""
        self._over = False

    def strip(self, piece: bytes) -> bytes:
        """What is to be read of the next piece. Raises `UpstreamError` if the engine was given another
        prompt.
        """
        if self._over:
            return piece
        return self._search(piece) if self._at is None else self._compare(piece, self._at)

    def _search(self, piece: bytes) -> bytes:
        before = self._before = self._before + piece
        start = before.find(_KEY) + len(_KEY)
        if len(_KEY) <= start < len(before) and before[start : start + 1] == b"[":
            return before[:start] + self._compare(before[start:], 0)
        if b"\n\n" not in before:
            return b""
        self._over = True
        return before

    def _compare(self, piece: bytes, at: int) -> bytes:
        if self._other is None and self._prompt.startswith(piece, at):
            self._at = at + len(piece)
            return self._ended(b"") if self._at == len(self._prompt) else b""
        rest = len(self._prompt) - at
        if self._other is None and self._prompt.endswith(piece[:rest]):
            return self._ended(piece[rest:])
        self._at = at
        self._other = (self._prompt[:at] if self._other is None else self._other) + piece
        array, end, behind = self._other.partition(b"]")
        if not end and b"\n\n" not in array:
            return b""
        try:
            same = orjson.loads(array + end) == orjson.loads(self._prompt)
        except orjson.JSONDecodeError as error:
            raise UpstreamError(f"The engine sent an event that is not JSON: {error}") from error
        if not same:
            raise UpstreamError("The engine says that it was given another prompt than it was sent.")
        return self._ended(behind)

    def _ended(self, behind: bytes) -> bytes:
        self._over = True
        return b"null" + behind
