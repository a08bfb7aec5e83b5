"""Request features that plain sampling cannot guarantee: image input, tools of a policy without a markup for
them, JSON output, a forced tool call.

Constrained decoding changes the distribution that an answer is sampled from, so its logprobs would no longer
be the policy's. A session therefore either refuses such constraints, as a provider does for a model without
the feature, or states them to the policy in words (`SessionOptions.constraints`). A limit of one tool call
per answer is never refused: harnesses set it by default and can handle several calls.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Literal

from harnessgym.message import Message
from proxies.dialect import ModelRequest, Problem, RequestProblem

_IMAGES = attrgetter("images")


def refuse_images(messages: Sequence[Message]) -> None:
    """Raises `RequestProblem` if there are images."""
    if any(map(_IMAGES, messages)):
        raise _unsupported("This model does not support image input: it reads text only.")


def refuse_tools(why: str) -> None:
    """Raises `RequestProblem` if there is a reason why a policy cannot be offered tools."""
    if why:
        raise _unsupported(f"This model does not support tools. {why}")


def constrained(request: ModelRequest, mode: Literal["refuse", "prompt"]) -> ModelRequest:
    """The request as the policy gets it. Raises `RequestProblem` if it has a constraint that is refused."""
    demands = [demand for demand in (_output(request), _tool_choice(request)) if demand]
    if mode == "refuse":
        if demands:
            raise _unsupported(
                f"This model does not support being made to answer so: {' '.join(demands)} "
                "Ask for text and tool_choice 'auto', or open the session with constraints 'prompt'."
            )
        return request
    if request.tools and request.tool_choice != "none" and not request.parallel_tool_calls:
        demands.append("Call at most one tool at a time.")
    if not demands:
        return request
    return replace(request, messages=_instructed(request.messages, demands), unconstrained=request.messages)


def _output(request: ModelRequest) -> str:
    if request.output is None:
        return ""
    if request.output.schema is None:
        return "Answer with one JSON object and nothing else."
    schema = json.dumps(request.output.schema, ensure_ascii=False, sort_keys=True)
    return f"Answer with JSON that matches this schema, and nothing else: {schema}"


def _tool_choice(request: ModelRequest) -> str:
    if request.tool_choice in ("auto", "none"):
        return ""
    return "Call a tool." if request.tool_choice == "required" else f"Call the tool {request.tool_choice!r}."


def _instructed(messages: tuple[Message, ...], demands: list[str]) -> tuple[Message, ...]:
    """The messages with the demands added to the first system message."""
    # Always in the first message: at the end of the conversation they would move with every turn and break
    # the token prefix.
    text = "\n".join(demands)
    if messages and messages[0].role == "system":
        return (replace(messages[0], content=f"{messages[0].content}\n\n{text}"), *messages[1:])
    return (Message("system", text), *messages)


def _unsupported(message: str) -> RequestProblem:
    return RequestProblem(Problem("unsupported", message))
