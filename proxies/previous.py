"""Requests that continue an earlier answer by its id instead of sending the conversation again."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

from harnessgym.message import Message
from proxies.dialect import ModelRequest, Problem, RequestProblem

_PREFIX = "resp_"


def response_id(call_id: str) -> str:
    """The id under which a client knows a call's answer."""
    return f"{_PREFIX}{call_id}"


def call_of(response_id: str) -> str:
    """The call whose answer has this id. Raises `RequestProblem` if no answer can have it."""
    call_id = response_id.removeprefix(_PREFIX)
    if not call_id or call_id == response_id:
        raise not_found(response_id)
    return call_id


def not_found(response_id: str) -> RequestProblem:
    """The problem of an unknown earlier answer. The wording is OpenAI's: harnesses that see it send the whole
    conversation again.
    """
    detail = f"Previous response with id '{response_id}' not found."
    return RequestProblem(Problem("malformed", detail, code="previous_response_not_found"))


async def whole(
    request: ModelRequest, earlier_of: Callable[[str], Awaitable[tuple[ModelRequest, Message]]]
) -> ModelRequest:
    """A request with the whole conversation in it.

    `earlier_of` returns the request and answer of a call; that request may continue an earlier one itself. It
    raises `RequestProblem` if there is no such call.
    """
    later: list[tuple[ModelRequest, Message | None]] = [(await _filled(request, earlier_of), None)]
    while (previous := later[-1][0].previous) is not None:
        earlier, said = await earlier_of(previous)
        later.append((await _filled(earlier, earlier_of), said))
    known, answer = later.pop()
    while later:
        assert answer is not None
        request, next_answer = later.pop()
        known = joined(known, answer, request)
        answer = next_answer
    return known


async def _filled(
    request: ModelRequest, earlier_of: Callable[[str], Awaitable[tuple[ModelRequest, Message]]]
) -> ModelRequest:
    """A request with the earlier answers to which its messages refer."""
    if request.fill is None:
        return request
    return request.fill({call_id: (await earlier_of(call_id))[1] for call_id in request.refers_to})


def joined(earlier: ModelRequest, answer: Message, request: ModelRequest) -> ModelRequest:
    """The whole conversation that `request` continues: the earlier request, its answer, the new messages.

    Instructions hold for one request only: those of `earlier` are left out and those of `request` come first.
    The same holds for constraints that were put to the policy in words. Everything but the messages is taken
    from the new request. `earlier` must be whole itself.
    """
    old = earlier.as_sent[1:] if earlier.instructions else earlier.as_sent
    front, new = (
        (request.messages[:1], request.messages[1:]) if request.instructions else ((), request.messages)
    )
    return replace(request, messages=(*front, *old, answer, *new), previous=None)
