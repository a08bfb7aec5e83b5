"""A function as a reward: `module:function`, called with the record, returns a number or scores."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import anyio.to_thread

from harnessgym.config import Config
from harnessgym.errors import RewardError
from harnessgym.registry import load
from harnessgym.reward import Need, RewardContext, Score


class CodeSettings(Config):
    """The function to call."""

    function: str
    """`module:function`. It runs in a thread, so it may block."""
    channel: str = "task"
    """Channel of a plain number."""
    sandbox: bool = False
    """Whether it needs the workspace."""


class Code:
    """Calls the function."""

    settings = CodeSettings

    def __init__(self, settings: CodeSettings) -> None:
        self._channel = settings.channel
        self._name = settings.function
        self._function: Any = load("reward", settings.function)
        self.needs: frozenset[Need] = frozenset({"sandbox"}) if settings.sandbox else frozenset()

    async def score(self, record: RewardContext) -> Sequence[Score]:
        """The function's scores. Raises `RewardError` if it fails or returns anything else."""
        try:
            output = await anyio.to_thread.run_sync(self._call, record)
        except Exception as error:  # a bug in it must neither become a reward nor end the node
            raise RewardError(f"{self._name} failed: {type(error).__name__}: {error}.") from error
        if isinstance(output, int | float):
            return [Score("rollout", "", self._channel, float(output))]
        scores = (
            [output]
            if isinstance(output, Score)
            else list(output)
            if isinstance(output, Iterable)
            else [output]
        )
        if not all(isinstance(item, Score) for item in scores):
            raise RewardError(
                f"{self._name} returned {output!r}: it must return a number, a "
                "`harnessgym.reward.Score`, or several."
            )
        return scores

    def _call(self, record: RewardContext) -> Any:
        """The function's result. A generator runs to its end here, in the thread."""
        result = self._function(record)
        return list(result) if isinstance(result, Iterator) else result
