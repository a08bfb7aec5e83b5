"""Calls that wait for an answer from outside: a gymnasium environment's agent, a person or a test.

Each call of a session with the upstream `parked` waits here until it is answered through the control routes,
its client has been gone for the grace time, its session is sealed, or it times out. Several calls may wait at
once.

`GET /control/sessions/{id}/pending?timeout_s=20&after=0` waits for a call and returns its messages, tools and
prompt token ids. Without `after` it is the oldest pending call, with it the oldest whose ordinal is greater,
so that calls of several agents can be answered side by side. The same call is returned until it is answered.
`POST /control/sessions/{id}/answer` answers one.
"""

import asyncio
import math
from collections import deque
from dataclasses import asdict
from typing import Any, Literal

from pydantic import BaseModel, Field, model_validator
from starlette.requests import Request
from starlette.responses import JSONResponse

from harnessgym.errors import ProxyError
from harnessgym.message import Message, ToolCall, canonical_json
from proxies.dialect import Problem
from proxies.session import SessionTable
from proxies.upstream import TextAnswer, TextCall, TextRefusal

_REMEMBERED = 4_096
"""Number of answered calls that are remembered, so that sending an answer twice is harmless."""


class ParkedUpstream:
    """Waiting calls, oldest first."""

    version = 0

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[TextCall, asyncio.Future[TextAnswer]]] = {}
        self._answered: deque[str] = deque(maxlen=_REMEMBERED)
        self._news = asyncio.Event()

    async def complete(self, call: TextCall) -> TextAnswer:
        """Wait for the answer. Raises `TextRefusal` after `call.timeout_s` seconds."""
        answer: asyncio.Future[TextAnswer] = asyncio.get_running_loop().create_future()
        self._waiting[call.id] = call, answer
        self.wake()
        try:
            async with asyncio.timeout(call.timeout_s):
                return await answer
        except TimeoutError:
            detail = f"Nobody answered the parked call {call.id} within {call.timeout_s:g} s."
            raise TextRefusal(Problem("upstream", detail)) from None
        finally:
            del self._waiting[call.id]

    def waiting(self, session_id: str) -> list[TextCall]:
        """The session's calls that wait for an answer, oldest first."""
        calls = [
            call
            for call, answer in self._waiting.values()
            if call.session_id == session_id and not answer.done()
        ]
        return sorted(calls, key=lambda call: call.ordinal)

    def answer(self, session_id: str, call_id: str, answer: TextAnswer) -> bool:
        """Answer a call. Returns whether there is such a call; answering it again changes nothing.

        Raises `UpstreamError` for an answer that cannot be written in the policy's language; the call keeps
        waiting.
        """
        call_and_future = self._waiting.get(call_id)
        if (
            call_and_future is None
            or call_and_future[0].session_id != session_id
            or call_and_future[1].done()
        ):
            return call_id in self._answered
        # Tokenised here to find out whether it can be: the caller gets the error and can answer again.
        answer.ids(call_and_future[0].language)
        call_and_future[1].set_result(answer)
        self._answered.append(call_id)
        return True

    async def news(self, timeout_s: float) -> None:
        """Wait for a new call or a `wake`, for at most `timeout_s` seconds."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._news.wait()
        except TimeoutError:
            pass

    def wake(self) -> None:
        """Wake everyone who waits in `news`."""
        # Setting wakes the present waiters; the new event makes later ones wait for the next news.
        self._news.set()
        self._news = asyncio.Event()

    async def healthy(self) -> bool:
        """Always true."""
        return True

    def close(self) -> None:
        """Does nothing: there are no connections."""


_MOST_S = 300.0
"""Longest wait for a pending call."""


class ParkedToolCall(BaseModel, extra="forbid"):
    """A call of a tool."""

    name: str
    arguments: dict[str, Any] | str = Field(default_factory=dict)
    """An object, or its JSON text."""


class ParkedAnswer(BaseModel, extra="forbid"):
    """An answer by its parts."""

    content: str = ""
    reasoning: str = ""
    tool_calls: list[ParkedToolCall] = Field(default_factory=list)

    def message(self) -> Message:
        """The answer as a message. Its tool-call ids are assigned when it is read back from tokens."""
        calls = (
            ToolCall(
                "",
                call.name,
                call.arguments if isinstance(call.arguments, str) else canonical_json(call.arguments),
            )
            for call in self.tool_calls
        )
        return Message("assistant", self.content, reasoning=self.reasoning, tool_calls=tuple(calls))


class PostedAnswer(BaseModel, extra="forbid"):
    """The answer of one parked call: exactly one of text, message and token_ids."""

    call_id: str
    text: str | None = None
    """The turn as the policy would write it, markup and all, without its end of turn."""
    message: ParkedAnswer | None = None
    token_ids: tuple[int, ...] | None = None
    """Tokens of the policy, the end of turn included."""
    logprobs: tuple[float, ...] | None = None
    """One per token id, of the distribution that was sampled from. Without them the answer is never
    trained on."""
    version: int | None = None
    """The policy version that sampled the token ids; needed with logprobs."""
    finish_reason: Literal["stop", "length"] = "stop"

    @model_validator(mode="after")
    def _consistent(self) -> "PostedAnswer":
        forms = [name for name in ("text", "message", "token_ids") if getattr(self, name) is not None]
        if len(forms) != 1:
            raise ValueError(
                f"give exactly one of text, message and token_ids, not {', '.join(forms) or 'none'}"
            )
        if self.token_ids is not None and (
            not self.token_ids or not all(0 <= token < 1 << 31 for token in self.token_ids)
        ):
            raise ValueError("token_ids must be token ids, at least one")
        if self.logprobs is None:
            return self
        if self.token_ids is None or len(self.logprobs) != len(self.token_ids) or self.version is None:
            raise ValueError(
                "logprobs need as many token_ids, and the version of the policy that sampled them"
            )
        if not all(math.isfinite(logprob) and logprob <= 0 for logprob in self.logprobs):
            raise ValueError("logprobs must be finite and not positive")
        return self

    def answer(self) -> TextAnswer:
        """The answer as the relay takes it."""
        content = self.token_ids or (self.message.message() if self.message is not None else self.text)
        assert content is not None
        return TextAnswer(content, self.logprobs, self.version or 0, self.finish_reason)


class Parking:
    """Handlers of the two routes."""

    def __init__(self, sessions: SessionTable, parked: ParkedUpstream) -> None:
        self._sessions = sessions
        self._parked = parked

    async def pending(self, request: Request) -> JSONResponse:
        """The next pending call: `{"pending": {...} or null, "waiting": number of pending calls, "sealed":
        true if none can come}`.
        """
        session_id = request.path_params["id"]
        session = await self._sessions.by_id(session_id)
        if session is None:
            return _missing(session_id)
        timeout_s = _number(request, "timeout_s", 0.0)
        after = _number(request, "after", -1.0)
        deadline = asyncio.get_running_loop().time() + min(timeout_s, _MOST_S)
        while True:
            waiting = self._parked.waiting(session_id)
            call = next((call for call in waiting if call.ordinal > after), None)
            left = deadline - asyncio.get_running_loop().time()
            if call is not None or session.sealed or left <= 0:
                shown = None if call is None else _shown(call)
                return JSONResponse({"pending": shown, "waiting": len(waiting), "sealed": session.sealed})
            await self._parked.news(left)

    async def answer(self, request: Request) -> JSONResponse:
        """Answer a call."""
        posted = PostedAnswer.model_validate_json(await request.body() or b"{}")
        session_id = request.path_params["id"]
        if await self._sessions.by_id(session_id) is None:
            return _missing(session_id)
        if not self._parked.answer(session_id, posted.call_id, posted.answer()):
            raise ProxyError(
                f"Call {posted.call_id} is not pending: it has ended, or belongs to another session than "
                f"{session_id}."
            )
        return JSONResponse({})


def _shown(call: TextCall) -> dict[str, Any]:
    request = call.request
    return {
        "call_id": call.id,
        "ordinal": call.ordinal,
        "model": request.model,
        "messages": [message.to_template() for message in request.messages],
        "tools": [tool.to_template() for tool in request.tools],
        "tool_choice": request.tool_choice,
        "prompt_token_ids": list(call.prompt),
        "sampling": asdict(call.sampling),
        "timeout_s": call.timeout_s,
    }


def _number(request: Request, name: str, default: float) -> float:
    text = request.query_params.get(name)
    try:
        return default if text is None else float(text)
    except ValueError:
        raise ProxyError(f"{name}={text!r} is not a number.") from None


def _missing(session_id: str) -> JSONResponse:
    return JSONResponse({"error": f"There is no session {session_id}."}, status_code=404)
