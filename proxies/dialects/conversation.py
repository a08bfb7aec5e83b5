"""What every protocol's conversation becomes before the renderer sees it."""

from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter, countOf

from harnessgym.message import Message
from proxies.reading import Made

_ROLE = attrgetter("role")


def merge_systems(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Adjacent system messages become one, joined by an empty line.

    Those further down stay where they are: moving them to the top would change the prompt's beginning and
    break continuation.
    """
    systems = (
        messages.tally(_is_system) if isinstance(messages, Made) else countOf(map(_ROLE, messages), "system")
    )
    if systems < 2:
        return tuple(messages)
    out: list[Message] = []
    for message in messages:
        if message.role == "system" and out and out[-1].role == "system":
            out[-1] = replace(out[-1], content=f"{out[-1].content}\n\n{message.content}")
        else:
            out.append(message)
    return tuple(out)


def _is_system(message: Message) -> bool:
    return message.role == "system"
