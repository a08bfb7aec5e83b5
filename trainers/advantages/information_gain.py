"""What each turn of a rollout added to the policy's probability of the right answer.

The policy under training is asked itself, with one more forward pass per turn: for the logprobs of the right
answer's tokens where they would stand if it answered at once, right behind the prompt of a turn. The tokens
of that prompt are those that were recorded. So a turn's gain comes with the weights that the step starts
from, and a resumed trainer finds the same.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import numpy as np
import xxhash
from tokenizers import Tokenizer

from harnessgym.errors import ConfigError, TrainerError
from harnessgym.run_config.run import RunConfig
from harnessgym.store import runs
from harnessgym.task import Split, Task
from harnessgym.tasks.source import task_set
from harnessgym.tokens import IdArray, TokenIds
from harnessgym.traces.trajectories import Row, Turn
from trainers.advantages.estimator import Float64Array, Scored
from trainers.advantages.steps import branches

if TYPE_CHECKING:
    from harnessgym.store import TraceStore
    from trainers.trained_policy import TrainedPolicy

Gains = Callable[[Sequence[Scored]], list[list[Float64Array]]]
"""Per rollout of a group, per branch: the gain of every step but the last, float64 [S - 1]."""
Score = Callable[[Sequence[IdArray], Sequence[int]], list[float]]
"""Of some texts, and how many tokens at the end of each are asked for: the mean logprob of those."""


class InformationGain:
    """Gains of a group's steps; `gold` has the tokens of a task's right answer, by the task's id in the
    store.
    """

    def __init__(
        self, gold: Callable[[str], TokenIds], score: Score, *, before: TokenIds = (), shuffle: bool = False
    ) -> None:
        self._gold = gold
        self._score = score
        self._before = before
        self._shuffle = shuffle

    @classmethod
    def of_run(
        cls,
        key: str,
        before: str,
        config: RunConfig,
        store: "TraceStore | None",
        trainee: "TrainedPolicy | None",
    ) -> "InformationGain":
        """With right answers from the metadata of the run's tasks, under `key`, and the policy's own
        tokenizer.

        With `trainer.reward_shuffle` the gains are permuted over all steps of the group. Raises `ConfigError`
        without a store and a trainee.
        """
        if store is None or trainee is None:
            raise ConfigError(
                "Information gain needs the run's store and its policy: it can be computed in its trainer "
                "alone."
            )
        tokenizer = Tokenizer.from_file(str(Path(config.policy.path) / "tokenizer.json"))
        known: dict[str, Task] = {}
        for split in get_args(Split):
            tasks = task_set(config.tasks.set).tasks(split)
            known |= {task.id: task for task in tasks}

        def encode(text: str) -> list[int]:
            return list(tokenizer.encode(text, add_special_tokens=False).ids)

        @cache
        def gold(task_id: str) -> tuple[int, ...]:
            name = store.read(partial(runs.task_key, task_id=task_id))
            answer = known[name].metadata.get(key) if name in known else None
            if not isinstance(answer, str) or not answer:
                raise TrainerError(
                    f"Task {name} has no text under {key!r} in its metadata: set "
                    "trainer.advantage_settings.gold."
                )
            return tuple(encode(answer))

        return cls(gold, trainee.score, before=encode(before), shuffle=config.trainer.reward_shuffle)

    def __call__(self, group: Sequence[Scored]) -> list[list[Float64Array]]:
        """See `Gains`."""
        texts: dict[bytes, tuple[IdArray, int]] = {}
        asked = [
            [
                self._ask(item, row, turns, texts)
                for row, turns in zip(item.rows, branches(item.rows), strict=True)
            ]
            for item in group
        ]
        found = (
            self._score([text for text, _ in texts.values()], [tail for _, tail in texts.values()])
            if texts
            else []
        )
        chance = dict(zip(texts, np.exp(found).tolist(), strict=True))
        gains = [[np.diff([chance[key] for key in keys]) for keys in each] for each in asked]
        return _permuted(gains, group) if self._shuffle else gains

    def _ask(
        self, item: Scored, row: Row, turns: Sequence[Turn], texts: dict[bytes, tuple[IdArray, int]]
    ) -> list[bytes]:
        """Add to `texts` what has to be scored of a branch. Returns under which keys it is there, turn by
        turn.
        """
        gold = np.array(self._gold(item.task_id), np.int32)
        before = np.array(self._before, np.int32)
        keys = []
        for turn in turns:
            text = np.concatenate([row.ids[: turn.start], before, gold])
            keys.append(text.tobytes())
            texts.setdefault(keys[-1], (text, len(gold)))
        return keys


def _permuted(gains: list[list[Float64Array]], group: Sequence[Scored]) -> list[list[Float64Array]]:
    """In an order that hangs on the group alone."""
    random = np.random.default_rng([xxhash.xxh3_64_intdigest(item.rollout_id.encode()) for item in group])
    flat = random.permutation(np.concatenate([np.zeros(0), *(own for each in gains for own in each)]))
    parts = iter(np.split(flat, np.cumsum([len(own) for each in gains for own in each])[:-1]))
    return [[next(parts) for _ in each] for each in gains]
