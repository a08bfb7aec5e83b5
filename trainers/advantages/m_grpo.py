"""M-GRPO: compares main agents with main agents, and sub-agents with sub-agents."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import xxhash
from pydantic import Field

from harnessgym.config import Config
from harnessgym.traces.trajectories import Row, Turn
from trainers.advantages.channels import NamedChannel
from trainers.advantages.estimator import Advantages, Scored, Value
from trainers.advantages.steps import standardised
from trainers.algorithms import AlgorithmRow

M_GRPO = AlgorithmRow(
    "advantage", "m_grpo",
    "main: (R_M - mean(R_M)) / (std(R_M) + 1e-4) over the K rollouts; sub-agents: the d_k trajectories of "
    "each rollout made d by repeating or dropping, (R_S - mean(R_S)) / (std(R_S) + 1e-4) over the d K, times "
    "copies x d_k / d; R_S = 0.4 R_M + 0.1 format + 0.5 expert",
    "arXiv 2511.13288", "paper", "transcription in which every copy is written out, float64",
    left_out="the sequence-level ratio, which is a loss's (gspo), and the weight 1/(d K) of a trajectory: a "
             "rollout's "
    "sub-agents together weigh in the batch what their tokens weigh.",
)  # fmt: skip
_EPS = 1e-4


class MGrpoSettings(Config):
    """How sub-agents are rewarded and aligned."""

    main: dict[str, float] = Field(default_factory=lambda: {"reward": 1.0})
    """Weights of the rollout's rewards, by channel, in a main agent's reward R_M. Every rollout must have a
    reward under each channel. The paper's 0.1 format + 0.9 correctness must come from the grader."""
    sub_main: float = 0.4
    """Weight of R_M in a sub-agent's reward R_S."""
    sub: dict[str, float] = Field(default_factory=lambda: {"format": 0.1, "expert": 0.5})
    """Weights of the sub-agent's own rewards, by channel; a missing reward counts as 0."""
    invocations: int = Field(8, ge=1)
    """d: the number to which the trajectories of a rollout's sub-agents are aligned; the paper's value covers
    99 % of its rollouts."""


class MGrpo:
    """M-GRPO's advantages (arXiv 2511.13288). A row is a trajectory of the agent of its last turn; an agent
    that was started by another one is a sub-agent.

    Every token is trained once: a repeated trajectory counts more often in the mean and deviation, and its
    advantage is multiplied accordingly; a dropped one is masked. The paper's sequence-level ratio is left to
    the loss.
    """

    Settings = MGrpoSettings

    def __init__(self, settings: MGrpoSettings) -> None:
        self.settings = settings
        setting = "trainer.advantage_settings.sub"
        self.channels = tuple(NamedChannel(setting, "agent", name, zeros=True) for name in settings.sub)

    def __call__(self, group: Sequence[Scored]) -> Advantages:
        """One advantage per row."""
        main_K = np.array([self._main_reward(item) for item in group])
        subs = [[at for at, row in enumerate(item.rows) if _last(row).parent_agent_id] for item in group]
        times_of = [
            copies(item.rollout_id, len(rows), self.settings.invocations)
            for item, rows in zip(group, subs, strict=True)
        ]
        rewards = [
            np.array([self._sub_reward(item, item.rows[at], float(main)) for at in rows], dtype=np.float64)
            for item, rows, main in zip(group, subs, main_K, strict=True)
        ]
        aligned = [np.repeat(own, times) for own, times in zip(rewards, times_of, strict=True)]
        slots = np.concatenate(aligned) if aligned else np.zeros(0)
        same = not len(slots) or bool((slots == slots[0]).all())
        mean, std = (0.0, 0.0) if same else (slots.mean(), slots.std())
        out: Advantages = []
        for item, main, rows, times, own in zip(
            group, standardised(main_K, _EPS), subs, times_of, rewards, strict=True
        ):
            values: list[Value] = [float(main)] * len(item.rows)
            weights = times * len(rows) / self.settings.invocations
            scores = np.zeros_like(own) if same else (own - mean) / (std + _EPS) * weights
            for at, score in zip(rows, scores, strict=True):
                values[at] = float(score)
            out.append(values)
        return out

    def _main_reward(self, item: Scored) -> float:
        setting = "trainer.advantage_settings.main"
        return sum(
            weight * item.reward_under(channel, setting) for channel, weight in self.settings.main.items()
        )

    def _sub_reward(self, item: Scored, row: Row, main: float) -> float:
        own = item.agent_rewards.get(_last(row).agent_id, {})
        weighed = sum(weight * own.get(channel, 0.0) for channel, weight in self.settings.sub.items())
        return self.settings.sub_main * main + weighed


def _last(row: Row) -> Turn:
    """The last turn of a row, which the row trains."""
    return row.turns[-1]


def copies(rollout_id: str, have: int, wanted: int) -> npt.NDArray[np.int64]:
    """How often each of `have` trajectories is repeated to get `wanted`. The rollout's id seeds the
    choice.
    """
    if not have:
        return np.zeros(0, np.int64)
    order = np.random.default_rng(xxhash.xxh3_64_intdigest(rollout_id.encode())).permutation(have)
    return np.bincount(order[np.arange(wanted) % have], minlength=have)
