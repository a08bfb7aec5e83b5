"""Reads the result of a test script: `reward.json`, else `reward.txt`. Pure functions over hostile bytes.

A malformed result is never a reward: every function here raises a TaskError that quotes it.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from harnessgym.errors import TaskError
from harnessgym.grading.reward_range import is_reward

MAX_BYTES = 64 << 10
"""Largest result file."""
_MAX_CHANNELS = 256
_DECIMAL = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")

Kind = Literal["file", "missing", "link", "folder", "special"]


@dataclass(frozen=True, slots=True)
class ResultFile:
    """What is at the path of a result file. Links are not followed."""

    kind: Kind
    data: bytes = b""
    """The first `MAX_BYTES + 1` bytes of a file."""


MISSING = ResultFile("missing")


@dataclass(frozen=True, slots=True)
class RewardChannels:
    """The reward channels of a result file, and where they come from."""

    rewards: Mapping[str, float]
    """Always has "reward"."""
    source: str
    """The file's name."""
    remark: str = ""
    """How "reward" was computed, if the file does not name it."""


def result(json_file: ResultFile, text_file: ResultFile) -> RewardChannels:
    """The rewards in `reward.json` if it exists, else in `reward.txt`. Raises TaskError."""
    if json_file.kind != "missing":
        return _from_json(_text(json_file, "reward.json"))
    if text_file.kind != "missing":
        return RewardChannels({"reward": _from_text(_text(text_file, "reward.txt"))}, "reward.txt")
    raise TaskError(
        "The test script left neither reward.json nor reward.txt in /logs/verifier. It must write one of "
        "them."
    )


def _text(file: ResultFile, name: str) -> str:
    if file.kind != "file":
        article = (
            "a link"
            if file.kind == "link"
            else "a folder"
            if file.kind == "folder"
            else "a pipe, socket or device"
        )
        raise TaskError(f"{name} is {article}, no regular file.")
    if len(file.data) > MAX_BYTES:
        raise TaskError(f"{name} is larger than {MAX_BYTES >> 10} KiB.")
    try:
        text = file.data.decode()
    except UnicodeDecodeError as error:
        raise TaskError(f"{name} is not UTF-8 text (byte {error.start}).") from error
    if not text.strip():
        raise TaskError(f"{name} is empty.")
    return text


def _from_text(text: str) -> float:
    # `float` alone would accept "nan", "inf" and "1_0".
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
    """Adds "reward" if it is missing: the only value, or the mean of several."""
    if "reward" in rewards:
        return RewardChannels(rewards, "reward.json")
    if len(rewards) == 1:
        (key,) = rewards
        return RewardChannels(
            {**rewards, "reward": rewards[key]},
            "reward.json",
            f"reward is {key!r}, the only key of reward.json",
        )
    # Divide before adding: the sum of large finite values could overflow to infinity.
    mean = sum(value / len(rewards) for value in rewards.values())
    remark = f"reward is the mean of the {len(rewards)} keys of reward.json, none of which is called reward"
    return RewardChannels({**rewards, "reward": mean}, "reward.json", remark)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    json_object = dict(pairs)
    if len(json_object) != len(pairs):
        raise ValueError("a key is given twice")
    return json_object


def _shown(value: object) -> str:
    return repr(value)[:80]
