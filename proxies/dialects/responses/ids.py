"""What this proxy mints in an answer and recognises when a client sends it back: item ids and reasoning
content.

An item's id holds the call it came from, so that items of one answer find together again whatever stands
between them.
"""

import base64
import binascii
import re
from typing import Literal

ItemPrefix = Literal["rs", "msg", "fc", "ctc"]

_ITEM = re.compile(r"(?:rs|msg|fc|ctc)_([0-9A-Za-z]+)_\d+(r?)")
_CALL = re.compile(r"call_([0-9A-Za-z]+)_\d+")
_MARK = b"harnessgym-reasoning:"


def item_id(prefix: ItemPrefix, answer_id: str, number: int, *, raw: bool = False) -> str:
    """The id of an answer's item, the `number`-th of its type.

    `raw` marks a custom tool call whose input is the call's arguments as they were written, not the text in
    them.
    """
    return f"{prefix}_{answer_id}_{number}{'r' if raw else ''}"


def is_raw(given: str) -> bool:
    """Whether an item's id marks it as raw."""
    match = _ITEM.fullmatch(given)
    return match is not None and bool(match[2])


def answer_of(item: str, call: str = "") -> str | None:
    """The answer that an item belongs to, by its id or that of its tool call; None if neither was minted
    here.
    """
    match = _ITEM.fullmatch(item) or _CALL.fullmatch(call)
    return None if match is None else match[1]


def seal(reasoning: str) -> str:
    """Reasoning as `encrypted_content`. It hides nothing: it brings back the exact text."""
    return base64.b64encode(_MARK + reasoning.encode()).decode()


def unseal(content: str) -> str | None:
    """The reasoning in an `encrypted_content`; None if it is not one of ours."""
    try:
        data = base64.b64decode(content, validate=True)
        return data.removeprefix(_MARK).decode() if data.startswith(_MARK) else None
    except (binascii.Error, ValueError):
        return None
