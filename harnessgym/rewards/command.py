"""A command as a reward: it runs in the rollout's sandbox and prints a number or JSON.

Its last non-empty line counts: a number, an object `{"value": 0.5, "detail": "why"}`, or a list of such
objects, which may also have `unit`, `target` and `channel`. Its exit status must be 0.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from harnessgym.config import Config, validate
from harnessgym.errors import RewardError
from harnessgym.reward import Need, RewardContext, Score
from harnessgym.store.rewards import RewardUnit

_TAIL = 500


class CommandRewardSettings(Config):
    """The command to run."""

    argv: tuple[str, ...] = Field(min_length=1)
    files: Mapping[str, str] = Field(default_factory=dict)
    """Relative path to text. The files are written to the workspace first, over any that the harness left."""
    channel: str = "task"
    timeout_s: float = Field(60.0, gt=0)


class CommandScore(Config):
    """One score as JSON."""

    value: float
    unit: RewardUnit = "rollout"
    target: str = ""
    channel: str = ""
    detail: str | None = None


class CommandReward:
    """Runs the command."""

    settings = CommandRewardSettings
    needs: frozenset[Need] = frozenset({"sandbox"})

    def __init__(self, settings: CommandRewardSettings) -> None:
        self._settings = settings

    async def score(self, record: RewardContext) -> Sequence[Score]:
        """The printed scores. Raises `RewardError` if the command fails or prints no score."""
        assert record.sandbox is not None
        # Written after the harness ended, so it cannot replace the reward's own files.
        for path, text in self._settings.files.items():
            await record.sandbox.write(path, text.encode())
        result = await record.sandbox.exec(self._settings.argv, timeout_s=self._settings.timeout_s)
        if not result.ok:
            raise RewardError(f"`{' '.join(self._settings.argv)}` failed: {result.describe(_TAIL)}")
        return scores_of(result.stdout.decode(errors="replace"), self._settings.channel)


def scores_of(output: str, channel: str) -> list[Score]:
    """The scores on the last line of a text. Raises `RewardError` if there are none."""
    lines = [line for line in output.splitlines() if line.strip()]
    try:
        found: Any = json.loads(lines[-1])
    except (LookupError, ValueError, RecursionError):
        raise RewardError(
            f"The last line of its output is no number and no JSON: {output[-_TAIL:]!r}"
        ) from None
    said = found if isinstance(found, list) else [found]
    plain = [{"value": item} if isinstance(item, int | float) else item for item in said]
    if not plain or not all(isinstance(item, dict) for item in plain):
        raise RewardError(f"Its output is no number, object or list of objects: {lines[-1][:_TAIL]}")
    made = [validate(CommandScore, item, "what a reward printed") for item in plain]
    return [Score(item.unit, item.target, item.channel or channel, item.value, item.detail) for item in made]
