"""What every protocol's conversation becomes before the renderer sees it."""

from collections.abc import Iterable
from dataclasses import replace
from operator import attrgetter

from harnessgym.message import Message

_ROLE = attrgetter("role")


def merge_systems(messages: Iterable[Message]) -> tuple[Message, ...]:
    """Adjacent system messages become one, joined by an empty line.

    Those further down stay where they are: moving them to the top would change the prompt's beginning and break continuation.
    """
    messages = tuple(messages)
    if list(map(_ROLE, messages)).count("system") < 2:
        return messages
    out: list[Message] = []
    for message in messages:
        if message.role == "system" and out and out[-1].role == "system":
            out[-1] = replace(out[-1], content=f"{out[-1].content}\n\n{message.content}")
        else:
            out.append(message)
    return tuple(out)
