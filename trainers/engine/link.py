"""The link between an engine's two processes: a socket pair with messages, each a length and a pickle.

The core has the weights and the engine's thread; the front serves HTTP. HTTP has its own process because it
would compete with the engine's thread for Python's global interpreter lock. The socket pair has no name, so
no other process can write to it, and unpickling its messages is safe.
"""

import asyncio
import pickle
import struct
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from trainers.engine.sequence import Chunk, SequenceSampling

_LENGTH = struct.Struct("!I")


class Hello(NamedTuple):
    """Core to front, first message: the model that is served."""

    names: tuple[str, ...]
    model: Path
    worker_id: str
    max_length: int
    vocab_size: int


class Ready(NamedTuple):
    """Front to core: the HTTP server is ready."""


class SubmitSequence(NamedTuple):
    """Front to core: sample a sequence. Its chunks, or a `SubmitRefused`, come back under `key`."""

    key: int
    prompt: bytes
    """int32 token ids."""
    sampling: SequenceSampling
    salt: str
    skip_special_tokens: bool
    """Whether special tokens are left out of the text in which stop strings are searched."""


class Abort(NamedTuple):
    """Front to core: end a sequence. It still gets a last chunk."""

    key: int


class StatusQuestion(NamedTuple):
    """Front to core: asks for the engine's status."""

    key: int


class Chunks(NamedTuple):
    """Core to front: all chunks of a step of the engine."""

    chunks: list[tuple[int, Chunk]]


class SubmitRefused(NamedTuple):
    """Core to front: nothing will be sampled for a `SubmitSequence`, because the engine has stopped."""

    key: int
    reason: str


class StatusAnswer(NamedTuple):
    """Core to front: the answer to a `StatusQuestion`."""

    key: int
    failed: bool
    stats: dict[str, Any]


ToCore = Ready | SubmitSequence | Abort | StatusQuestion
ToFront = Hello | Chunks | SubmitRefused | StatusAnswer


def pack(message: ToCore | ToFront) -> bytes:
    """A message as bytes for the link."""
    body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(body)) + body


def read(stream: BinaryIO) -> ToCore:
    """Wait for the core's next message. Raises `EOFError` if the front has ended."""
    (length,) = _LENGTH.unpack(_exactly(stream, _LENGTH.size))
    message: ToCore = pickle.loads(_exactly(stream, length))  # noqa: S301 - our own process wrote it
    return message


async def receive(reader: asyncio.StreamReader) -> ToFront:
    """Wait for the front's next message. Raises `EOFError` if the core has ended."""
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    message: ToFront = pickle.loads(await reader.readexactly(length))  # noqa: S301 - our own process wrote it
    return message


def _exactly(stream: BinaryIO, length: int) -> bytes:
    data = stream.read(length)
    if len(data) < length:
        raise EOFError
    return data
