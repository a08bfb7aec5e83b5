"""The core's end of the link: routes the front's requests to the engine, and the engine's chunks to the
front.
"""

import contextlib
import json
import logging
import socket
import threading
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np

from harnessgym.errors import UpstreamError
from trainers.engine.engine import Engine
from trainers.engine.link import (
    Abort,
    Chunks,
    Hello,
    Ready,
    StatusAnswer,
    StatusQuestion,
    SubmitRefused,
    SubmitSequence,
    ToCore,
    ToFront,
    pack,
    read,
)
from trainers.engine.reply import FolderDetokenizer
from trainers.engine.sequence import Chunk, Sequence, StopMatcher
from trainers.engine.settings import EngineSettings

log = logging.getLogger(__name__)


class EngineRouter:
    """Connects an engine and a front. Chunks wait until `flush` is called, on the engine's thread."""

    def __init__(self, engine: Engine, settings: EngineSettings, link: socket.socket) -> None:
        self.engine = engine
        self._link = link
        self._sending = threading.Lock()
        self._chunks: list[tuple[int, Chunk]] = []
        self._sequences: dict[int, Sequence] = {}
        self._questions = 0
        self._questions_seen = 0
        size = engine.policy.vocabulary
        self._send(Hello(settings.names, settings.model, settings.worker_id, engine.rows.cache.length, size))
        self._eos, self._detokenizer = read_eos(settings.model), FolderDetokenizer.load(settings.model)

    def start(self, on_ready: Callable[[], object], on_loss: Callable[[], object]) -> threading.Thread:
        """Listen to the front on a new thread, which calls `on_ready` once HTTP is served and `on_loss`
        when the link ends.
        """
        thread = threading.Thread(
            target=self._listen, args=(on_ready, on_loss), name="switchboard", daemon=True
        )
        thread.start()
        return thread

    def front_answers(self) -> bool:
        """Whether the front has queried the status since the last call of this; it does so periodically."""
        questions = self._questions
        alive = questions == 0 or questions > self._questions_seen
        self._questions_seen = questions
        return alive

    def flush(self) -> None:
        """Send all pending chunks in one message."""
        if self._chunks:
            chunks = self._chunks
            self._chunks = []
            self._send(Chunks(chunks))

    def _listen(self, on_ready: Callable[[], object], on_loss: Callable[[], object]) -> None:
        try:
            with self._link.makefile("rb") as stream:
                while True:
                    message = read(stream)
                    if isinstance(message, Ready):
                        on_ready()
                    else:
                        self._take(message)
        except (EOFError, OSError):
            pass
        except Exception:
            log.exception("The engine's link to its front failed.")
        on_loss()

    def _take(self, message: ToCore) -> None:
        match message:
            case SubmitSequence():
                self._submit(message)
            case Abort(key):
                sequence = self._sequences.get(key)
                if sequence is not None:
                    self.engine.abort(sequence)
            case StatusQuestion(key):
                self._questions += 1
                engine = self.engine
                now = {"version": engine.version, "running": engine.running, "waiting": engine.waiting}
                self._send(StatusAnswer(key, engine.failure is not None, now | asdict(engine.counters)))

    def _submit(self, asked: SubmitSequence) -> None:
        matcher = None
        if asked.sampling.stop:
            assert self._detokenizer is not None
            matcher = StopMatcher(
                asked.sampling.stop, self._detokenizer.stream(asked.skip_special_tokens).decode
            )
        prompt = np.frombuffer(asked.prompt, dtype=np.int32)
        deliver = partial(self._deliver, asked.key)
        sequence = Sequence(prompt, asked.sampling, deliver, salt=asked.salt, eos=self._eos, matcher=matcher)
        self._sequences[asked.key] = sequence
        try:
            self.engine.submit(sequence)
        except UpstreamError as error:
            del self._sequences[asked.key]
            self._send(SubmitRefused(asked.key, str(error)))

    def _deliver(self, key: int, chunk: Chunk) -> None:
        self._chunks.append((key, chunk))
        if chunk.finish:
            del self._sequences[key]

    def _send(self, message: ToFront) -> None:
        """Send a message. If the front has ended this does nothing: the listening thread notices it."""
        data = pack(message)
        with self._sending, contextlib.suppress(OSError):
            self._link.sendall(data)


def read_eos(folder: Path) -> frozenset[int]:
    """End-of-sequence ids of a model folder: generation_config.json, or else config.json."""
    for name in ("generation_config.json", "config.json"):
        file = folder / name
        eos_token_id = json.loads(file.read_text()).get("eos_token_id") if file.is_file() else None
        if eos_token_id is not None:
            return frozenset([eos_token_id] if isinstance(eos_token_id, int) else eos_token_id)
    return frozenset()
