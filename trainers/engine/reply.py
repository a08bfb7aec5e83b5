"""Renders the chunks of a sequence as vLLM's completions replies, whole or streamed.

In addition to vLLM's fields every choice has `policy_versions`: run-length `[[count, version], ...]` of its
tokens. Text needs a tokenizer in the model folder; it is used for `text`, stop strings and token names.
"""

import json
import time
import uuid
from collections.abc import Sequence as List
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from trainers.engine.protocol import CompletionRequest
from trainers.engine.sequence import Chunk, TokenScore


class FolderDetokenizer:
    """Decodes with a folder's tokenizer.json."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._names: dict[int, str] = {}

    @classmethod
    def load(cls, folder: Path) -> "FolderDetokenizer | None":
        """The folder's detokenizer, or None if it has no tokenizer.json."""
        file = folder / "tokenizer.json"
        return cls(Tokenizer.from_file(str(file))) if file.is_file() else None

    def name(self, token: int) -> str:
        """Text of a single token, special tokens included."""
        if token not in self._names:
            self._names[token] = self._tokenizer.decode([token], skip_special_tokens=False)
        return self._names[token]

    def stream(self, skip_special_tokens: bool) -> "TextStream":
        """A decoder of one growing completion."""
        return TextStream(self._tokenizer, skip_special_tokens)


class TextStream:
    """Text of a growing completion: each token gives the text it completes (a character may need several
    tokens).
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=skip_special_tokens)

    def decode(self, token: int) -> str:
        """Text that becomes final with this token."""
        return self._stream.step(self._tokenizer, token) or ""


_ENCODER = json.JSONEncoder(separators=(",", ":"), check_circular=False)


class EngineReply:
    """Renders one request's chunks. Feed every chunk once, in order; then `whole` is the unstreamed reply."""

    def __init__(self, request: CompletionRequest, model: str, detokenizer: FolderDetokenizer | None) -> None:
        self.request = request
        self._head = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model,
        }
        self._text = _Text(request, detokenizer)
        self._names = None if request.return_tokens_as_token_ids else detokenizer
        self._chunks: list[Chunk] = []
        self._texts: list[str] = []
        self._offset = 0
        self.completion_tokens = 0

    def feed(self, chunk: Chunk) -> None:
        """Add the next chunk. For max_tokens = 0 its tokens are removed."""
        if self.request.max_tokens == 0:
            finish = chunk.finish if chunk.finish == "abort" else "length"
            chunk = Chunk(
                [],
                [],
                chunk.version,
                prompt_scores=chunk.prompt_scores,
                finish=finish,
                cached_tokens=chunk.cached_tokens,
            )
        self._chunks.append(chunk)
        self._texts.append(self._text.feed(chunk))
        self.completion_tokens += len(chunk.ids)

    def event(self) -> bytes:
        """The last chunk as a server-sent event."""
        choice = self._choice(self._chunks[-1:], self._texts[-1], first=len(self._chunks) == 1)
        options = self.request.stream_options
        usage = {"usage": self._usage()} if options and options.continuous_usage_stats else {}
        return _event({**self._head, "choices": [choice], **usage})

    def ending(self) -> bytes:
        """The end of a stream: usage, if requested, and `[DONE]`."""
        options = self.request.stream_options
        usage = (
            _event({**self._head, "choices": [], "usage": self._usage()})
            if options and options.include_usage
            else b""
        )
        return usage + b"data: [DONE]\n\n"

    def whole(self) -> bytes:
        """The unstreamed reply."""
        choice = self._choice(self._chunks, "".join(self._texts), first=True)
        return _encode({**self._head, "choices": [choice], "usage": self._usage()})

    def _usage(self) -> dict[str, Any]:
        prompt = len(self.request.prompt)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": self.completion_tokens,
            "total_tokens": prompt + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self._chunks[-1].cached_tokens if self._chunks else 0},
        }

    def _choice(self, chunks: List[Chunk], text: str, *, first: bool) -> dict[str, Any]:
        ids = [token for chunk in chunks for token in chunk.ids]
        choice: dict[str, Any] = {
            "index": 0,
            "text": text,
            "logprobs": None if self.request.logprobs is None else self._logprobs(chunks, ids),
            "finish_reason": chunks[-1].finish,
            "stop_reason": chunks[-1].stop_reason,
            "policy_versions": _runs(chunks),
        }
        if self.request.return_token_ids:
            choice["token_ids"] = ids
            choice["prompt_token_ids"] = self.request.prompt if first else None
        if first and chunks[-1].prompt_scores is not None:
            choice["prompt_logprobs"] = self._prompt_logprobs(chunks[-1].prompt_scores)
        return choice

    def _logprobs(self, chunks: List[Chunk], ids: list[int]) -> dict[str, Any]:
        names = [self._name(token) for token in ids]
        logprobs = [value for chunk in chunks for value in chunk.logprobs]
        alternatives = [likeliest for chunk in chunks for likeliest in chunk.alternatives]
        offsets = []
        for name in names:
            offsets.append(self._offset)
            self._offset += len(name)
        top = [{name: value} for name, value in zip(names, logprobs, strict=True)] if alternatives else None
        for entry, likeliest in zip(top or (), alternatives, strict=True):
            for token, value in likeliest.items():
                entry.setdefault(self._name(token), max(value, -9999.0))
        return {"tokens": names, "token_logprobs": logprobs, "top_logprobs": top, "text_offset": offsets}

    def _prompt_logprobs(self, scores: list[TokenScore]) -> list[dict[str, dict[str, Any]] | None]:
        entries: list[dict[str, dict[str, Any]] | None] = [None]
        for score in scores:
            entry = {str(score.token): self._scored(score.token, score.logprob, score.rank)}
            for rank, (token, value) in enumerate(score.alternatives.items(), 1):
                entry.setdefault(str(token), self._scored(token, value, rank))
            entries.append(entry)
        return entries

    def _scored(self, token: int, logprob: float, rank: int) -> dict[str, Any]:
        return {
            "logprob": logprob,
            "rank": rank,
            "decoded_token": self._names.name(token) if self._names else None,
        }

    def _name(self, token: int) -> str:
        return self._names.name(token) if self._names else f"token_id:{token}"


class _Text:
    """The text of chunks.

    It holds back text that may be the start of a stop string, and omits the stop string that ended the
    completion (unless it is requested) and the end-of-sequence token.
    """

    def __init__(self, request: CompletionRequest, detokenizer: FolderDetokenizer | None) -> None:
        wanted = detokenizer is not None and request.detokenize
        self._stream: TextStream | None = (
            detokenizer.stream(request.skip_special_tokens) if detokenizer and wanted else None
        )
        self._hold = max((len(stop) for stop in request.stop_strings), default=0)
        self._keep_stop = request.include_stop_str_in_output
        self._held = ""

    def feed(self, chunk: Chunk) -> str:
        if self._stream is None:
            return ""
        ids = (
            chunk.ids[:-1] if chunk.finish == "stop" and not isinstance(chunk.stop_reason, str) else chunk.ids
        )
        text = self._held + "".join(self._stream.decode(token) for token in ids)
        if isinstance(chunk.stop_reason, str) and chunk.stop_reason in text:
            end = text.index(chunk.stop_reason)
            self._held = ""
            return text[: end + len(chunk.stop_reason)] if self._keep_stop else text[:end]
        cut = len(text) if chunk.finish else max(0, len(text) - self._hold)
        self._held = text[cut:]
        return text[:cut]


def _runs(chunks: List[Chunk]) -> list[list[int]]:
    """`[[count, version], ...]` of the chunks' tokens."""
    runs: list[list[int]] = []
    for chunk in chunks:
        if runs and chunk.ids and runs[-1][1] == chunk.version:
            runs[-1][0] += len(chunk.ids)
        elif chunk.ids:
            runs.append([len(chunk.ids), chunk.version])
    return runs


def _encode(body: dict[str, Any]) -> bytes:
    return _ENCODER.encode(body).encode()


def _event(body: dict[str, Any]) -> bytes:
    return b"data: " + _encode(body) + b"\n\n"
