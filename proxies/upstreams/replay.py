"""Answers from the record: a session that names a rollout or session gets what was sampled there.

Tokens, logprobs, versions and finish reasons are the recorded ones. `harnessgym.traces.replay` defines which
requests are equal. After the first request that is not in the record, the session gets no more answers.
"""

import asyncio
from collections.abc import Callable

from harnessgym.message import Message
from harnessgym.traces.replay import Playback, ReplayDivergence, Request
from proxies.dialect import ModelRequest, Problem
from proxies.upstream import TextAnswer, TextCall, TextRefusal

Load = Callable[[str], Playback]
"""Loads the record of a rollout or session. Raises `HarnessGymError` if there is none."""


class ReplayUpstream:
    """Plays recorded answers, one record per session."""

    version = 0

    def __init__(self, load: Load) -> None:
        self._load = load
        self._playing: dict[str, asyncio.Task[Playback]] = {}

    async def complete(self, call: TextCall) -> TextAnswer:
        """The recorded answer. Raises `TextRefusal` at the first divergence and for every later call."""
        # Concurrent calls of a session share one load. The shield keeps it alive if one caller is cancelled.
        if call.session_id not in self._playing:
            self._playing[call.session_id] = asyncio.create_task(asyncio.to_thread(self._load, call.replay))
        playback = await asyncio.shield(self._playing[call.session_id])
        turn = playback.answer(request_of(call.request))
        if isinstance(turn, ReplayDivergence):
            raise TextRefusal(Problem("limit", str(turn)))
        logprobs = None if turn.logprobs is None else tuple(turn.logprobs)
        return TextAnswer(
            tuple(turn.ids),
            logprobs,
            finish_reason="stop" if turn.finish_reason == "stop" else "length",
            versions=tuple(turn.versions),
        )

    async def healthy(self) -> bool:
        """Always true."""
        return True

    def close(self) -> None:
        """Does nothing: there are no connections."""


def request_of(request: ModelRequest) -> Request:
    """A request as replays compare it; a raw prompt is one message."""
    if request.prompt is None:
        return Request(request.as_sent, request.tools)
    text = request.prompt if isinstance(request.prompt, str) else str(list(request.prompt))
    return Request((Message("user", text),))
