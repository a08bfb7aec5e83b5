"""References for advantages: TRL's own code where TRL has it, else the formula written down a second time,
another way.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from trl.trainer.utils import nanstd

from tests.trainers.advantages.groups import random_group, rollout, values_by_call
from trainers.advantages.gae import gae
from trainers.advantages.gdpo import Gdpo, GdpoSettings
from trainers.advantages.group_relative import dr_grpo, grpo, mc_grpo, rloo
from trainers.advantages.hgpo import Hgpo, HgpoSettings
from trainers.advantages.igpo import Igpo, IgpoSettings
from trainers.advantages.m_grpo import MGrpo, MGrpoSettings, copies
from trainers.advantages.ui_s1 import UiS1, UiS1Settings

GROUPS = [(size, seed) for size in (2, 3, 5, 8) for seed in range(25)]


def rewards_of(size: int, seed: int) -> np.ndarray:
    """A group's rewards: half of the groups have binary ones."""
    random = np.random.default_rng([size, seed])
    return random.integers(0, 2, size).astype(float) if seed % 2 else random.normal(size=size)


def difference(
    ours: Callable[[np.ndarray], np.ndarray], reference: Callable[[np.ndarray], np.ndarray]
) -> float:
    """The greatest, over all groups. NaN in the same places is no difference."""
    found = []
    for rewards in (rewards_of(*group) for group in GROUPS):
        one, other = ours(rewards), reference(rewards)
        assert (np.isnan(one) == np.isnan(other)).all()
        found.append(float(np.nan_to_num(np.abs(one - other) / np.maximum(1.0, np.abs(other))).max()))
    return max(found)


def population(std: torch.Tensor, count: int) -> torch.Tensor:
    """TRL's standard deviation (ddof 1) as ours (ddof 0)."""
    return std * math.sqrt((count - 1) / count)


def trl_grpo(rewards: np.ndarray) -> np.ndarray:
    """GRPOTrainer, `scale_rewards = "group"`."""
    grouped = torch.from_numpy(rewards).view(-1, len(rewards))
    std = population(nanstd(grouped, dim=1), len(rewards))
    return ((grouped - grouped.nanmean(dim=1, keepdim=True)) / (std[:, None] + 1e-4))[0].numpy()


def trl_dr_grpo(rewards: np.ndarray) -> np.ndarray:
    """GRPOTrainer, `scale_rewards = "none"`."""
    grouped = torch.from_numpy(rewards).view(-1, len(rewards))
    return (grouped - grouped.nanmean(dim=1, keepdim=True))[0].numpy()


def trl_rloo(rewards: np.ndarray) -> np.ndarray:
    """RLOOTrainer without KL and `normalize_advantages`."""
    grouped = torch.from_numpy(rewards).view(-1, len(rewards))
    baselines = (grouped.nansum(dim=1, keepdim=True) - grouped) / (len(rewards) - 1)
    return (grouped - baselines)[0].numpy()


def authors_mc_grpo(rewards: np.ndarray) -> np.ndarray:
    """grpo_trainer_gsm.py, with the first of several rollouts at the median as the pivot, which is NaN."""
    given = torch.from_numpy(rewards)
    median = given.median()
    advantages = (given - median) / ((given - median).abs().median() + 1e-3)
    off = ~torch.isclose(advantages, torch.zeros_like(advantages), atol=1e-6)
    if not off.any():
        return advantages.numpy()
    advantages[off] *= len(given) / int(off.sum())
    advantages[(given == median).nonzero()[0, 0]] = torch.nan
    return advantages.numpy()


def measure_gdpo() -> float:
    """Against GRPOTrainer, `normalize_then_sum`, on batches of four groups with two rewards."""
    weights, worst = {"reward": 1.0, "format": 0.5}, 0.0
    ours = Gdpo(GdpoSettings(weights=weights))
    for seed in range(20):
        groups = [random_group([seed, number]) for number in range(4)]
        found = [rows[0] for group in ours.over_batch([ours(group) for group in groups]) for rows in group]
        given = torch.tensor(
            [[[item.rewards[name] for name in weights] for item in group] for group in groups]
        ).double()
        mean, std = given.nanmean(dim=1, keepdim=True), population(nanstd(given, dim=1, keepdim=True), 4)
        scores = ((given - mean) / (std + 1e-4)).view(-1, 2) @ torch.tensor(list(weights.values())).double()
        expected = (scores - scores.nanmean()) / (population(nanstd(scores), len(scores)) + 1e-4)
        worst = max(worst, float(np.abs(np.array(found) - expected.numpy()).max()))
    return worst


def measure_gae() -> float:
    """Against the double sum."""
    worst, gamma, lam = 0.0, 0.98, 0.9
    for seed in range(20):
        random = np.random.default_rng(seed)
        rewards, values = random.normal(size=(2, 17))
        after = [*values[1:], 0.0]
        deltas = [rewards[t] + gamma * after[t] - values[t] for t in range(17)]
        expected = [sum((gamma * lam) ** k * deltas[t + k] for k in range(17 - t)) for t in range(17)]
        worst = max(worst, float(np.abs(gae(rewards, values, gamma, lam) - expected).max()))
    return worst


def chains(seed: int) -> list[list[tuple[str, str, float]]]:
    """A group without forks: per rollout its steps as (call, state, reward); the last has the rollout's
    reward too.
    """
    out = []
    for item in random_group(seed, forked=False):
        (row,) = item.rows
        steps = [(turn.call_id, turn.state_key, turn.rewards.get("reward", 0.0)) for turn in row.turns]
        out.append([*steps[:-1], (*steps[-1][:2], steps[-1][2] + item.reward)])
    return out


def zscore(values: list[float], at: int, eps: float) -> float:
    """Of one value among others."""
    mean = math.fsum(values) / len(values)
    std = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))
    return 0.0 if len(set(values)) == 1 else (values[at] - mean) / (std + eps)


def discount(rewards: list[float], gamma: float) -> list[float]:
    """Returns, each as a sum."""
    return [sum(gamma ** (k - t) * rewards[k] for k in range(t, len(rewards))) for t in range(len(rewards))]


def over_groups(ours: Callable[[list], list], expected: Callable[[int], dict[str, float]]) -> float:
    """The greatest difference of calls' advantages over groups without forks."""
    worst = 0.0
    for seed in range(30):
        group = random_group(seed, forked=False)
        found: dict[str, float] = {}
        for item, values in zip(group, ours(group), strict=True):
            found |= values_by_call(item, values)
        wanted = expected(seed)
        assert set(found) == set(wanted)
        worst = max(worst, *(abs(found[call] - wanted[call]) for call in wanted))
    return worst


def hgpo_by_hand(seed: int) -> dict[str, float]:
    """recipe/hgpo: for every step and every k, look through all steps of the group for those with the same
    last k states.
    """
    steps = []
    for chain in chains(seed):
        returns = discount([reward for *_, reward in chain], 0.95)
        states = [state for _, state, _ in chain]
        steps += [(call, states[: at + 1], returns[at]) for at, (call, *_) in enumerate(chain)]
    out = {}
    for call, history, _ in steps:
        items = []
        for k in range(1, min(3, len(history)) + 1):
            alike = [step for step in steps if len(step[1]) >= k and step[1][-k:] == history[-k:]]
            place = [step[0] for step in alike].index(call)
            score = zscore([step[2] for step in alike], place, 1e-6)
            items += [(k + 1, score)] if len(alike) > 1 and abs(score) > 1e-9 else []
        out[call] = sum(length * score for length, score in items) / (
            sum(length for length, _ in items) + 1e-6
        )
    return out


def ui_s1_by_hand(seed: int) -> dict[str, float]:
    """core_uis1.py with one entry per rollout for episodes."""
    group, out = random_group(seed, forked=False), {}
    chained = [[turn.rewards.get("reward", 0.0) for turn in item.rows[0].turns] for item in group]
    returns = [discount(chain, 0.5) for chain in chained]
    for number, item in enumerate(group):
        for t, turn in enumerate(item.rows[0].turns):
            same = [at for at in range(len(group)) if len(returns[at]) > t]
            step = zscore([returns[at][t] for at in same], same.index(number), 1e-6)
            out[turn.call_id] = zscore([other.reward for other in group], number, 1e-6) + 2.0 * step
    return out


def gain_table(group: list) -> list[list[np.ndarray]]:
    """Gains drawn at random, per rollout and branch."""
    random = np.random.default_rng(len(group[0].rows[0].turns))
    return [[random.normal(scale=0.3, size=len(row.turns) - 1) for row in item.rows] for item in group]


def igpo_by_hand(seed: int) -> dict[str, float]:
    """The paper's formulas, all turns of the group normalised together."""
    group = random_group(seed, forked=False)
    rewards = [[*gains[0], item.reward] for gains, item in zip(gain_table(group), group, strict=True)]
    pool = [float(value) for own in rewards for value in own]
    out, place = {}, 0
    for item, own in zip(group, rewards, strict=True):
        scores = [zscore(pool, place + at, 1e-6) for at in range(len(own))]
        place += len(own)
        out |= dict(zip([turn.call_id for turn in item.rows[0].turns], discount(scores, 0.9), strict=True))
    return out


def measure_m_grpo() -> float:
    """Against lists in which every copy of every trajectory is written out; which are copied is taken from
    the advantages' own draw, for any choice is as good.
    """
    worst, wanted = 0.0, 5
    ours = MGrpo(MGrpoSettings(invocations=wanted))
    for seed in range(20):
        random = np.random.default_rng(seed)
        group = []
        for number, count in enumerate(random.choice([0, 1, 2, 3, 5, 7], size=4)):
            name = f"r{number}"
            branches = [[(f"c{at}", "s")] for at in range(count + 1)]
            agents = {
                f"{name}sub{at}": {"format": float(random.random()), "expert": float(random.random())}
                for at in range(8)
            }
            reward = float(random.integers(2))
            group.append(
                rollout(name, branches, reward, ["", *[f"{name}main"] * count], agent_rewards=agents)
            )
        slots, drawn = [], [copies(item.rollout_id, len(item.rows) - 1, wanted) for item in group]
        for item, times in zip(group, drawn, strict=True):
            assert sum(times) == (wanted if len(times) else 0)
            for at, often in enumerate(times, 1):
                own = item.agent_rewards[f"{item.rollout_id}sub{at}"]
                slots += [0.4 * item.reward + 0.1 * own["format"] + 0.5 * own["expert"]] * often
        place = 0
        for number, found in enumerate(ours(group)):
            expected = [zscore([other.reward for other in group], number, 1e-4)]
            for often in drawn[number]:
                expected.append(
                    sum(zscore(slots, place + copy, 1e-4) for copy in range(often))
                    * len(drawn[number])
                    / wanted
                )
                place += often
            worst = max(worst, float(np.abs(np.array(found) - expected).max()))
    return worst


MEASURES = {
    ("advantage", "grpo"): lambda: difference(grpo, trl_grpo),
    ("advantage", "dr_grpo"): lambda: difference(dr_grpo, trl_dr_grpo),
    ("advantage", "rloo"): lambda: difference(rloo, trl_rloo),
    ("advantage", "mc_grpo"): lambda: difference(mc_grpo, authors_mc_grpo),
    ("advantage", "gdpo"): measure_gdpo,
    ("advantage", "gae"): measure_gae,
    ("advantage", "hgpo"): lambda: over_groups(Hgpo(HgpoSettings()), hgpo_by_hand),
    ("advantage", "ui_s1"): lambda: over_groups(UiS1(UiS1Settings(step_weight=2.0)), ui_s1_by_hand),
    ("advantage", "igpo"): lambda: over_groups(Igpo(IgpoSettings(gamma=0.9), gain_table), igpo_by_hand),
    ("advantage", "m_grpo"): measure_m_grpo,
}
