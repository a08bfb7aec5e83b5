"""Groups of rollouts as estimators see them, made of named calls."""

import numpy as np

from harnessgym.traces.trajectories import Row, Turn
from trainers.advantages.estimator import Scored

PROMPT = 2
"""Tokens before every call."""


def rollout(name, branches, reward=0.0, parents=(), **fields):
    """A rollout with a row per branch. A step is (call, state) or (call, state, reward, tokens); where a call
    comes again it is context. `parents` has, for some branches, the agent that started theirs.
    """
    rows, seen = [], set()
    for number, branch in enumerate(branches):
        mask, turns = [], []
        parent = parents[number] if number < len(parents) else ""
        for call, state, *more in branch:
            own, length = (*more, *(0.0, 3)[len(more) :])
            start = len(mask) + PROMPT
            mask += [0] * PROMPT + [int(call not in seen)] * length
            rewards = {"reward": own} if own else {}
            agent = f"{name}{'sub' if parent else 'main'}{number if parent else ''}"
            turns.append(Turn(start, len(mask), name + call, agent, state, rewards, parent))
            seen.add(call)
        mask = np.array(mask, np.int32)
        rows.append(Row(name, "g", mask * 7, mask, np.zeros(len(mask), np.float32), mask - 1, tuple(turns)))
    return Scored(name, reward, tuple(rows), **fields)


def random_group(seed, size=4, forked=True):
    """Rollouts of up to five steps in four states, with rewards of steps; some fork."""
    random = np.random.default_rng(seed)
    group = []
    for number in range(size):
        steps = [
            (f"c{at}", "abcd"[random.integers(4)], *_worth(random)) for at in range(random.integers(1, 6))
        ]
        branches = [steps]
        if forked and random.random() < 0.5:
            tail = [
                (f"f{at}", "abcd"[random.integers(4)], *_worth(random)) for at in range(random.integers(1, 4))
            ]
            branches.append([*steps[: random.integers(len(steps) + 1)], *tail])
        rewards = {"reward": float(random.integers(2)), "format": float(random.normal())}
        group.append(rollout(f"r{number}", branches, rewards["reward"], rewards=rewards))
    return group


def _worth(random):
    return round(float(random.normal()), 1), int(random.integers(1, 4))


def values_by_call(item, values):
    """What the tokens of each trained call got: they all got the same."""
    found = {}
    for row, own in zip(item.rows, values, strict=True):
        tokens = np.broadcast_to(np.asarray(own, np.float64), row.mask.shape)
        for turn in row.turns:
            if row.mask[turn.start]:
                assert len(set(tokens[turn.start : turn.end].tolist())) == 1
                found[turn.call_id] = float(tokens[turn.start])
    return found
