"""The link between an engine's two processes: a socket pair that carries messages, each a length and a
pickle.

The core has the weights and the engine's thread; the front speaks HTTP. A process of its own for HTTP keeps
that work off the lock that Python's threads share, which the engine's thread needs for every step. The socket
pair has no name, so that nothing but these two can write to it.
"""

import asyncio
import pickle
import struct
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from trainers.engine.sequence import Chunk, SequenceSampling

_LENGTH = struct.Struct("!I")


class Hello(NamedTuple):
    """Core to front, first of all: what is served."""

    names: tuple[str, ...]
    model: Path
    worker_id: str
    max_length: int
    vocab_size: int


class Ready(NamedTuple):
    """Front to core: HTTP is served."""


class SubmitSequence(NamedTuple):
    """Front to core: sample. Chunks come back under `key`, or a `SubmitRefused`."""

    key: int
    prompt: bytes
    """int32 token ids."""
    sampling: SequenceSampling
    salt: str
    skip_special_tokens: bool
    """In the text that stop strings are looked for in."""


class Abort(NamedTuple):
    """Front to core: end a sequence. Its last chunk comes nevertheless."""

    key: int


class StatusQuestion(NamedTuple):
    """Front to core: how is the engine?"""

    key: int


class Chunks(NamedTuple):
    """Core to front: all that a step of the engine delivered."""

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
    """A message as it is sent."""
    body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(body)) + body


def read(stream: BinaryIO) -> ToCore:
    """The core's next message, waited for. Raises `EOFError` if the front is gone."""
    (length,) = _LENGTH.unpack(_exactly(stream, _LENGTH.size))
    message: ToCore = pickle.loads(_exactly(stream, length))  # noqa: S301 - our own process wrote it
    return message


async def receive(reader: asyncio.StreamReader) -> ToFront:
    """The front's next message, waited for. Raises `EOFError` if the core is gone."""
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    message: ToFront = pickle.loads(await reader.readexactly(length))  # noqa: S301 - our own process wrote it
    return message


def _exactly(stream: BinaryIO, length: int) -> bytes:
    data = stream.read(length)
    if len(data) < length:
        raise EOFError
    return data
