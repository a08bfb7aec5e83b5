"""What a test script left as its result: `reward.json`, else `reward.txt`. Pure functions over hostile bytes.

A result that is none is never a reward: every function here raises TaskError that names what was found.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from harnessgym.errors import TaskError
from harnessgym.grading.grade import is_reward

MAX_BYTES = 64 << 10
"""A result file that is larger is no result."""
_MAX_CHANNELS = 256
_DECIMAL = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")

Kind = Literal["file", "missing", "link", "folder", "special"]


@dataclass(frozen=True, slots=True)
class ResultFile:
    """What lies at the path of a result file, its content never followed out of the sandbox."""

    kind: Kind
    data: bytes = b""
    """At most `MAX_BYTES + 1` of it, where it is a file."""


MISSING = ResultFile("missing")


@dataclass(frozen=True, slots=True)
class RewardChannels:
    """The reward channels of a result file, and how they were read."""

    rewards: Mapping[str, float]
    """Always with "reward"."""
    source: str
    """The file's name."""
    remark: str = ""
    """How "reward" came about, where the file does not name it."""


def result(json_file: ResultFile, text_file: ResultFile) -> RewardChannels:
    """The rewards of `reward.json` if there is one, else of `reward.txt`. Raises TaskError."""
    if json_file.kind != "missing":
        return _from_json(_text(json_file, "reward.json"))
    if text_file.kind != "missing":
        return RewardChannels({"reward": _from_text(_text(text_file, "reward.txt"))}, "reward.txt")
    raise TaskError(
        "The test script left neither reward.json nor reward.txt in /logs/verifier. It must write one of "
        "them."
    )


def _text(found: ResultFile, name: str) -> str:
    if found.kind != "file":
        article = (
            "a link"
            if found.kind == "link"
            else "a folder"
            if found.kind == "folder"
            else "a pipe, socket or device"
        )
        raise TaskError(f"{name} is {article}, no regular file.")
    if len(found.data) > MAX_BYTES:
        raise TaskError(f"{name} is larger than {MAX_BYTES >> 10} KiB.")
    try:
        text = found.data.decode()
    except UnicodeDecodeError as error:
        raise TaskError(f"{name} is not UTF-8 text (byte {error.start}).") from error
    if not text.strip():
        raise TaskError(f"{name} is empty.")
    return text


def _from_text(text: str) -> float:
    word = text.strip()
    number = float(word) if _DECIMAL.fullmatch(word) else None
    if number is None or not is_reward(number):
        raise TaskError(f"reward.txt holds {word[:80]!r}, which is no finite number.")
    return number


def _from_json(text: str) -> RewardChannels:
    try:
        value = json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise TaskError(
            f"reward.json holds {text.strip()[:80]!r}, which is no JSON: {str(error)[:200]}."
        ) from error
    if is_reward(value):
        return RewardChannels({"reward": float(value)}, "reward.json")
    if not isinstance(value, dict) or not value:
        raise TaskError(
            f"reward.json holds {_shown(value)}. It must be a number, or an object of numbers that is not "
            "empty."
        )
    if len(value) > _MAX_CHANNELS:
        raise TaskError(f"reward.json has {len(value)} keys; at most {_MAX_CHANNELS} are read.")
    for key, number in value.items():
        if not is_reward(number):
            raise TaskError(f"reward.json has {_shown(number)} at {key[:80]!r}, which is no finite number.")
    return _named({key: float(number) for key, number in value.items()})


def _named(rewards: dict[str, float]) -> RewardChannels:
    """With "reward": as it is there, else the only value, else the mean."""
    if "reward" in rewards:
        return RewardChannels(rewards, "reward.json")
    if len(rewards) == 1:
        (key,) = rewards
        return RewardChannels(
            {**rewards, "reward": rewards[key]},
            "reward.json",
            f"reward is {key!r}, the only key of reward.json",
        )
    mean = sum(value / len(rewards) for value in rewards.values())
    remark = f"reward is the mean of the {len(rewards)} keys of reward.json, none of which is called reward"
    return RewardChannels({**rewards, "reward": mean}, "reward.json", remark)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is there twice")
    return found


def _shown(value: object) -> str:
    return repr(value)[:80]
