"""Answers from the record: a session that names a rollout, or one of its sessions, is given what was sampled
there.

The tokens, logprobs, versions and finish reasons are the recorded ones; what counts as the same request is in
`harnessgym.traces.replay`. After the first request that the record does not have, the session gets no more
answers.
"""

import asyncio
from collections.abc import Callable

from harnessgym.message import Message
from harnessgym.traces.replay import Playback, ReplayDivergence, Request
from proxies.dialect import ModelRequest, Problem
from proxies.upstream import TextAnswer, TextCall, TextRefusal

Load = Callable[[str], Playback]
"""The record of a rollout or session. Raises `HarnessGymError` if there is none."""


class ReplayUpstream:
    """Records that are being played, by the session that plays them."""

    version = 0

    def __init__(self, load: Load) -> None:
        self._load = load
        self._playing: dict[str, asyncio.Task[Playback]] = {}

    async def complete(self, call: TextCall) -> TextAnswer:
        """The recorded answer. Raises `TextRefusal` at a divergence and ever after."""
        if call.session_id not in self._playing:
            self._playing[call.session_id] = asyncio.create_task(asyncio.to_thread(self._load, call.replay))
        playback = await asyncio.shield(self._playing[call.session_id])
        found = playback.answer(request_of(call.request))
        if isinstance(found, ReplayDivergence):
            raise TextRefusal(Problem("limit", str(found)))
        logprobs = None if found.logprobs is None else tuple(found.logprobs)
        return TextAnswer(
            tuple(found.ids),
            logprobs,
            finish_reason="stop" if found.finish_reason == "stop" else "length",
            versions=tuple(found.versions),
        )

    async def healthy(self) -> bool:
        """Always."""
        return True

    def close(self) -> None:
        """Nothing is open."""


def request_of(request: ModelRequest) -> Request:
    """A request as replays compare it; a raw prompt is one message."""
    if request.prompt is None:
        return Request(request.said, request.tools)
    text = request.prompt if isinstance(request.prompt, str) else str(list(request.prompt))
    return Request((Message("user", text),))
