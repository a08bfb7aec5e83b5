"""The control experiment: rewards permuted, so that they are as before and say nothing of what they are
given for.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from harnessgym.traces.trajectories import Credit, Row

if TYPE_CHECKING:
    from trainers.batch import LoadedGroup


def shuffled(groups: "Sequence[LoadedGroup]", random: np.random.Generator) -> "list[LoadedGroup]":
    """The groups with rollouts' rewards, all channels together, permuted over all rollouts; so those of
    calls and of agents.
    """
    pairs = [pair for group in groups for pair in zip(group.group.members, _credit(group), strict=True)]
    members = [(member.reward, member.graded, member.verdict, credit.rewards) for member, credit in pairs]
    whole = iter([members[at] for at in random.permutation(len(members))])
    turns = {
        turn.call_id: turn.rewards
        for group in groups
        for rows in group.rows
        for row in rows
        for turn in row.turns
    }
    by_call = dict(
        zip(turns, [list(turns.values())[at] for at in random.permutation(len(turns))], strict=True)
    )
    agents = [own for group in groups for credit in _credit(group) for own in credit.agents.values()]
    by_agent = iter([agents[at] for at in random.permutation(len(agents))])
    out = []
    for group in groups:
        given = [next(whole) for _ in group.group.members]
        renamed = tuple(
            replace(member, reward=reward, graded=graded, verdict=verdict)
            for member, (reward, graded, verdict, _) in zip(group.group.members, given, strict=True)
        )
        credit = tuple(
            Credit(rewards, {agent: next(by_agent) for agent in own.agents})
            for (*_, rewards), own in zip(given, _credit(group), strict=True)
        )
        rows = tuple(tuple(_with_rewards(row, by_call) for row in each) for each in group.rows)
        out.append(replace(group, group=replace(group.group, members=renamed), rows=rows, credit=credit))
    return out


def _credit(group: "LoadedGroup") -> tuple[Credit, ...]:
    return group.credit or (Credit(),) * len(group.rows)


def _with_rewards(row: Row, by_call: dict[str, dict[str, float]]) -> Row:
    return replace(row, turns=tuple(replace(turn, rewards=by_call[turn.call_id]) for turn in row.turns))
