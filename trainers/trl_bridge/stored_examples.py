"""Which recorded rollouts are learnt from offline, as examples for TRL's trainers: the recorded ids and
masks themselves.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from harnessgym.traces.exports.row_facts import first_trained
from harnessgym.traces.trajectories import Row

Example = dict[str, Any]
IGNORED = -100
"""Label of a token that is not learnt."""


@dataclass(frozen=True, slots=True)
class GradedRollout:
    """A finished rollout with its reward."""

    id: str
    group_id: str
    reward: float
    rows: tuple[Row, ...]


def best_of_groups(rollouts: Iterable[GradedRollout]) -> list[GradedRollout]:
    """The best rollout of each group, of equal ones the first (rejection sampling, as in RAFT, arXiv
    2304.06767).
    """
    return [max(group, key=lambda item: item.reward) for group in _groups(rollouts)]


def supervised(rollouts: Iterable[GradedRollout]) -> list[Example]:
    """{input_ids, labels} of every row: what the policy sampled is learnt, all else is context."""
    return [
        {
            "input_ids": row.ids.tolist(),
            "labels": [
                token if trained else IGNORED
                for token, trained in zip(row.ids.tolist(), row.mask, strict=True)
            ],
        }
        for rollout in rollouts
        for row in rollout.rows
    ]


def preferences(rollouts: Iterable[GradedRollout]) -> list[Example]:
    """{prompt_ids, chosen_ids, rejected_ids, chosen_mask, rejected_mask} of the best and the worst rollout of
    each group.

    A row of the best stands against a row of the worst that has the same tokens before its first trained one;
    rows that have no such counterpart, and groups of equal rewards, give nothing. The masks say which tokens
    of a completion the policy sampled.
    """
    return [
        _pair(chosen, rejected)
        for group in _groups(rollouts)
        for chosen, rejected in _counterparts(
            max(group, key=lambda item: item.reward), min(group, key=lambda item: item.reward)
        )
    ]


def _counterparts(best: GradedRollout, worst: GradedRollout) -> Iterator[tuple[Row, Row]]:
    if best.reward <= worst.reward:
        return
    left = list(worst.rows)
    for row in best.rows:
        found = next((other for other in left if _prompt(other) == _prompt(row)), None)
        if found is not None:
            left = [other for other in left if other is not found]
            yield row, found


def _pair(chosen: Row, rejected: Row) -> Example:
    start = first_trained(chosen)
    return {
        "prompt_ids": _prompt(chosen),
        "chosen_ids": chosen.ids[start:].tolist(),
        "rejected_ids": rejected.ids[start:].tolist(),
        "chosen_mask": chosen.mask[start:].tolist(),
        "rejected_mask": rejected.mask[start:].tolist(),
    }


def _prompt(row: Row) -> list[int]:
    prompt: list[int] = row.ids[: first_trained(row)].tolist()
    return prompt


def _groups(rollouts: Iterable[GradedRollout]) -> list[Sequence[GradedRollout]]:
    """By group, in order of first appearance."""
    found: dict[str, list[GradedRollout]] = {}
    for rollout in rollouts:
        found.setdefault(rollout.group_id, []).append(rollout)
    return list(found.values())
