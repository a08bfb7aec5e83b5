"""IGPO: rewards every turn with the increase of the policy's probability of the right answer.

The policy under training computes it with one more forward pass per turn: the logprobs of the right answer's
tokens directly after the prompt of the turn, as if the policy answered there. The prompt's tokens are the
recorded ones. The gains depend on the weights from which the step starts, so a resumed trainer computes the
same.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import xxhash
from pydantic import Field
from tokenizers import Tokenizer

from harnessgym.config import Config
from harnessgym.errors import ConfigError, TrainerError
from harnessgym.run_config.run import RunConfig
from harnessgym.store import runs
from harnessgym.task import Split, Task
from harnessgym.tasks.source import task_set
from harnessgym.tokens import IdArray, TokenIds
from harnessgym.traces.trajectories import Row, Turn
from trainers.advantages.estimator import Advantages, Float64Array, Scored
from trainers.advantages.steps import branches, by_call, discounted, spread, standardised
from trainers.algorithms import AlgorithmRow

if TYPE_CHECKING:
    from harnessgym.store import TraceStore
    from trainers.trained_policy import TrainedPolicy

Gains = Callable[[Sequence[Scored]], list[list[Float64Array]]]
"""Per rollout of a group, per branch: the gain of every step but the last, float64 [S - 1]."""
Score = Callable[[Sequence[IdArray], Sequence[int]], list[float]]
"""From texts, and a number of tokens at the end of each, to the mean logprob of these tokens."""


class InformationGain:
    """Computes the gains of a group's steps. `gold` maps a task's id in the store to the tokens of its right
    answer.
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
        trained_policy: "TrainedPolicy | None",
    ) -> "InformationGain":
        """With right answers from the metadata of the run's tasks, under `key`, and the policy's own
        tokenizer.

        With `trainer.reward_shuffle` the gains are permuted over all steps of the group. Raises `ConfigError`
        without a store and a policy.
        """
        if store is None or trained_policy is None:
            raise ConfigError(
                "Information gain needs the run's store and its policy, which only the run's trainer has."
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

        return cls(gold, trained_policy.score, before=encode(before), shuffle=config.trainer.reward_shuffle)

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
        mean_logprobs = (
            self._score([text for text, _ in texts.values()], [tail for _, tail in texts.values()])
            if texts
            else []
        )
        chance = dict(zip(texts, np.exp(mean_logprobs).tolist(), strict=True))
        gains = [[np.diff([chance[key] for key in keys]) for keys in each] for each in asked]
        return _permuted(gains, group) if self._shuffle else gains

    def _ask(
        self, item: Scored, row: Row, turns: Sequence[Turn], texts: dict[bytes, tuple[IdArray, int]]
    ) -> list[bytes]:
        """Add the texts of a branch that must be scored to `texts`; returns their keys, turn by turn."""
        gold = np.array(self._gold(item.task_id), np.int32)
        before = np.array(self._before, np.int32)
        keys = []
        for turn in turns:
            text = np.concatenate([row.ids[: turn.start], before, gold])
            keys.append(text.tobytes())
            texts.setdefault(keys[-1], (text, len(gold)))
        return keys


def _permuted(gains: list[list[Float64Array]], group: Sequence[Scored]) -> list[list[Float64Array]]:
    """The gains in a random order that depends only on the group."""
    random = np.random.default_rng([xxhash.xxh3_64_intdigest(item.rollout_id.encode()) for item in group])
    flat = random.permutation(np.concatenate([np.zeros(0), *(own for each in gains for own in each)]))
    parts = iter(np.split(flat, np.cumsum([len(own) for each in gains for own in each])[:-1]))
    return [[next(parts) for _ in each] for each in gains]


IGPO = AlgorithmRow(
    "advantage", "igpo",
    "r_t = p(gold | what was seen after turn t) - p(gold | after turn t - 1), p the geometric mean over "
    "gold's tokens; r_T the rollout's reward; a = (r - mean(r)) / (std(r) + 1e-6) over all turns of the "
    "group; A_t = sum_(k >= t) gamma^(k - t) a_k",
    "arXiv 2510.14967", "third party", "transcription in loops, float64; p against a forward of the whole "
                                       "text",
)  # fmt: skip
_EPS = 1e-6


class IgpoSettings(Config):
    """The source of the right answer, and how gains and rewards are combined."""

    gold: str = "answer"
    """Key of the right answer, as text, in the task's metadata."""
    before: str = ""
    """Text between the prompt of a turn and the scored answer: what the policy says before it answers."""
    normalise: Literal["joint", "separate"] = "joint"
    """joint: normalises gains and rewards together, as in the paper. separate: each on their own."""
    gamma: float = Field(1.0, ge=0, le=1)
    """Discount of later turns' rewards."""


class Igpo:
    """IGPO (arXiv 2510.14967, from a third party's account). `gains` computes the gain of each call.

    A turn's gain is known at the start of the next one, so the last turn of a branch has none; it has the
    rollout's reward. A call that several branches share counts once in mean and deviation, with the mean of
    its gains, and gets the mean of its branches' advantages.
    """

    Settings = IgpoSettings

    def __init__(self, settings: IgpoSettings, gains: Gains) -> None:
        self.settings = settings
        self._gains = gains

    @classmethod
    def of_run(
        cls,
        settings: IgpoSettings,
        config: RunConfig,
        store: "TraceStore | None",
        trained_policy: "TrainedPolicy | None",
    ) -> "Igpo":
        """With gains from the policy under training. Raises `ConfigError` without a store and a policy."""
        return cls(
            settings, InformationGain.of_run(settings.gold, settings.before, config, store, trained_policy)
        )

    def __call__(self, group: Sequence[Scored]) -> Advantages:
        """One advantage per call."""
        gained: dict[str, float] = {}
        for item, gains in zip(group, self._gains(group), strict=True):
            gained |= by_call([turns[:-1] for turns in branches(item.rows)], gains)
        gains_N = np.array(list(gained.values()), dtype=np.float64)
        rewards_G = np.array([item.reward for item in group], dtype=np.float64)
        per_call, outcomes = self._normalised(gains_N, rewards_G)
        scores = dict(zip(gained, per_call.tolist(), strict=True))
        out: Advantages = []
        for item, outcome in zip(group, outcomes, strict=True):
            per_branch = branches(item.rows)
            rewards = [
                np.array([*(scores[turn.call_id] for turn in turns[:-1]), outcome]) for turns in per_branch
            ]
            returns = [discounted(own, self.settings.gamma) for own in rewards]
            out.append(spread(item.rows, by_call(per_branch, returns)))
        return out

    def _normalised(self, gains: Float64Array, outcomes: Float64Array) -> tuple[Float64Array, Float64Array]:
        if self.settings.normalise == "separate":
            return standardised(gains, _EPS), standardised(outcomes, _EPS)
        both = standardised(np.concatenate([gains, outcomes]), _EPS)
        return both[: len(gains)], both[len(gains) :]
