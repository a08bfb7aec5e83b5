"""Gradients and logprobs of a batch: passes over its rows in micro-batches, in all processes of the trainer.

The loss depends on the policy only through the logprobs of trained tokens, so its gradient has two parts. The
first is with respect to the logprobs and needs all tokens that depend on each other together. The second goes
from the logprobs through the policy and can be computed in pieces. If a loss or a correction needs whole
rollouts, a rollout's rows are in one process and, if they fit, in one micro-batch. A rollout that is too
large for one is first scored without gradient, which gives the first part, and then passed again in pieces.
This costs one more forward pass and gives the same gradient.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from harnessgym.registry import load
from harnessgym.tokens import FloatArray, IdArray
from harnessgym.traces.trajectories import Row
from trainers.corrections.loglinear import loglinear
from trainers.losses.tokens import TimeArray, Tokens
from trainers.packing import micro_batches
from trainers.policy import Policy
from trainers.update_settings import UpdateSettings
from trainers.world import World

PassSize = Callable[[Sequence[IdArray]], int]
"""See `Policy.pass_size`."""


@dataclass(frozen=True, slots=True)
class Item:
    """A row with all that the loss needs per token, each [T]."""

    row: Row
    advantages: FloatArray
    weights: FloatArray
    """Each token's weight in the batch's loss."""
    times: TimeArray
    """int64: sorts a rollout's tokens by when they were sampled."""
    proximal: FloatArray | None
    """Logprobs of the proximal policy, if they are known before the pass."""
    ages: IdArray | None
    """Staleness of each token, if the proximal policy depends on it."""


@dataclass(frozen=True, slots=True)
class TokenStats:
    """Statistics per trained token of some rows, [N]; `loss` is a sum."""

    loss: float
    rollouts: tuple[str, ...]
    rollout_N: Tensor
    """Index into `rollouts`."""
    log_ratio_N: Tensor
    """log(pi / mu)."""
    logprobs_N: Tensor
    clipped_N: Tensor
    """bool: the loss has no gradient although the advantage is not 0 and no correction masks the token."""
    masked_N: Tensor
    """bool: a correction masks the token."""


def backward_all(
    policy: Policy, items: Sequence[Item], settings: UpdateSettings, world: World
) -> list[TokenStats]:
    """Add the gradients of all items, micro-batch by micro-batch. Each process adds its part; all of them get
    the statistics of all items.
    """
    plans = _plans(items, settings, policy.pass_size, world)
    mine = plans[world.rank]
    scored = _score_large(policy, plans, settings, world)
    stats = [
        _backward(policy, group, settings, logprobs)
        for group, logprobs in zip(mine.groups, scored, strict=True)
    ]
    # Every pass is a collective operation, because the processes exchange shards in it. A process that has
    # fewer micro-batches makes up for them with empty passes, or the others would wait forever.
    for _ in range(max(plan.passes for plan in plans) - mine.passes):
        _pass_without_rows(policy)
    return [part for parts in world.all_gather(stats) for part in parts]


def score_all(
    policy: Policy, rows: Sequence[Row], temperature: float, max_tokens: int, world: World
) -> list[FloatArray]:
    """Logprobs of all tokens of each row under the policy's weights, float32 [T], in every process."""

    def logprobs(ids: Sequence[IdArray], masks: Sequence[IdArray]) -> Tensor:
        return _logprobs(policy, ids, masks, temperature, gradient=False)

    idle = partial(_pass_without_rows, policy, gradient=False)
    return per_token(rows, logprobs, idle, max_tokens, policy.pass_size, world)


def per_token(
    rows: Sequence[Row],
    compute: Callable[[Sequence[IdArray], Sequence[IdArray]], Tensor],
    idle: Callable[[], None],
    max_tokens: int,
    size: PassSize,
    world: World,
) -> list[FloatArray]:
    """A number for each token of each row, float32 [T] per row, in every process; 0 for a row's first token.

    `compute` takes the ids and masks of some rows and returns the numbers of the tokens with mask 1, row
    after row; `idle` takes part in a pass of the other processes.
    """
    parts = world.parts([len(row.ids) for row in rows])
    plans = [micro_batches([[rows[index].ids] for index in part], max_tokens, size) for part in parts]
    mine = parts[world.rank]
    own = dict[int, FloatArray]()
    for batch in plans[world.rank]:
        indices = [mine[place] for place in batch]
        ids = [rows[index].ids for index in indices]
        values_N = compute(ids, [_all_but_first(row) for row in ids]).cpu().numpy()
        ends = np.cumsum([len(row) - 1 for row in ids])[:-1]
        own |= {
            index: np.pad(part, (1, 0)) for index, part in zip(indices, np.split(values_N, ends), strict=True)
        }
    for _ in range(max(map(len, plans)) - len(plans[world.rank])):
        idle()
    all_gather = {index: values for part in world.all_gather(own) for index, values in part.items()}
    return [all_gather[index] for index in range(len(rows))]


@dataclass(frozen=True, slots=True)
class _Group:
    """Items whose loss is computed together, split into the micro-batches that pass through the policy."""

    batches: list[list[Item]]

    @property
    def items(self) -> list[Item]:
        return [item for batch in self.batches for item in batch]

    @property
    def large(self) -> bool:
        """Whether they must be scored first."""
        return len(self.batches) > 1


@dataclass(frozen=True, slots=True)
class _Plan:
    """The work of one process."""

    groups: list[_Group]

    @property
    def passes(self) -> int:
        return sum(len(group.batches) for group in self.groups)

    @property
    def scoring_passes(self) -> int:
        return sum(len(group.batches) for group in self.groups if group.large)


def _plans(items: Sequence[Item], settings: UpdateSettings, size: PassSize, world: World) -> list[_Plan]:
    """The plan of every process, by rank. All processes compute the same plans."""
    limit = settings.micro_batch_tokens
    if settings.whole_rollouts:
        ordered = sorted(items, key=lambda item: item.row.rollout_id)
        units = [list(own) for _, own in groupby(ordered, key=lambda item: item.row.rollout_id)]
    else:
        units = [[item] for item in items]
    plans = []
    for part in world.parts([sum(len(item.row.ids) for item in unit) for unit in units]):
        own = [units[index] for index in part]
        batches = micro_batches([[item.row.ids for item in unit] for unit in own], limit, size)
        plans.append(
            _Plan(
                [
                    _group([item for index in indices for item in own[index]], limit, size)
                    for indices in batches
                ]
            )
        )
    return plans


def _group(items: list[Item], limit: int, size: PassSize) -> _Group:
    ids = [item.row.ids for item in items]
    if size(ids) <= limit:
        return _Group([items])
    return _Group(
        [[items[index] for index in batch] for batch in micro_batches([[row] for row in ids], limit, size)]
    )


def _score_large(
    policy: Policy, plans: Sequence[_Plan], settings: UpdateSettings, world: World
) -> list[Tensor | None]:
    """The logprobs, float [N], of each group of this process that must be scored first; None for the
    others.
    """
    mine = plans[world.rank]
    scored: list[Tensor | None] = []
    for group in mine.groups:
        parts = [
            _trained_logprobs(policy, batch, settings, gradient=False)
            for batch in group.batches
            if group.large
        ]
        scored.append(torch.cat(parts) if parts else None)
    for _ in range(max(plan.scoring_passes for plan in plans) - mine.scoring_passes):
        _pass_without_rows(policy, gradient=False)
    return scored


def _backward(policy: Policy, group: _Group, settings: UpdateSettings, scored_N: Tensor | None) -> TokenStats:
    """Add the group's gradient. The items' weights already include the batch's denominator, or 1."""
    if scored_N is None:
        logprobs_N = _trained_logprobs(policy, group.items, settings, gradient=True)
        stats, gradient_N = _loss(group.items, logprobs_N.detach(), settings)
        backpropagate(logprobs_N, gradient_N)
        return stats
    stats, gradient_N = _loss(group.items, scored_N, settings)
    sizes = [sum(int(np.count_nonzero(item.row.mask)) for item in batch) for batch in group.batches]
    for batch, part_N in zip(group.batches, torch.split(gradient_N, sizes), strict=True):
        logprobs_N = _trained_logprobs(policy, batch, settings, gradient=True)
        backpropagate(logprobs_N, part_N)
    return stats


def backpropagate(output_N: Tensor, gradient_N: Tensor) -> None:
    """`output_N.backward(gradient_N)`, with equal bits, but without importing sympy, which takes a second."""
    torch.dot(output_N, gradient_N).backward()  # type: ignore[no-untyped-call]


def _loss(items: Sequence[Item], logprobs_N: Tensor, settings: UpdateSettings) -> tuple[TokenStats, Tensor]:
    """Statistics of the items whose trained tokens have these logprobs, and the gradient of their loss with
    respect to the logprobs, float [N].
    """
    # The logprobs are a leaf here, cut off from the policy. autograd.grad stops at them, so this works the
    # same for logprobs of one pass and for those that were scored before without a graph.
    leaf_N = logprobs_N.requires_grad_()
    tokens = _tokens(items, leaf_N, settings)
    weights_N = _trained(items, lambda item: item.weights, leaf_N)
    corrected_N = weights_N
    for correction in settings.weights:
        # Detached: an importance weight scales the gradient and is no part of what is optimised.
        weight_N = load("correction", correction.function)(tokens, **correction.arguments).detach()
        corrected_N = corrected_N * weight_N
    loss = (corrected_N * load("loss", settings.loss.function)(tokens, **settings.loss.arguments)).sum()
    (gradient_N,) = torch.autograd.grad(loss, leaf_N)
    # A zero gradient has three causes: an advantage of 0, a correction's mask, or the loss's clipping.
    # What the first two do not explain is counted as clipped.
    masked_N = (corrected_N == 0) & (weights_N != 0)
    clipped_N = (gradient_N == 0) & (tokens.advantages_N != 0) & ~masked_N
    stats = TokenStats(
        float(loss.detach()),
        tuple(dict.fromkeys(item.row.rollout_id for item in items)),
        tokens.rollout_N.cpu(),
        tokens.log_current_weight.cpu(),
        logprobs_N.detach().cpu(),
        clipped_N.cpu(),
        masked_N.cpu(),
    )
    return stats, gradient_N


def _tokens(items: Sequence[Item], logprobs_N: Tensor, settings: UpdateSettings) -> Tokens:
    behaviour_N = _trained(items, lambda item: item.row.logprobs, logprobs_N)
    if items[0].proximal is not None:
        proximal_N = _trained(items, lambda item: item.proximal, logprobs_N)
    elif settings.proximal == "loglinear":
        proximal_N = loglinear(
            behaviour_N, logprobs_N.detach(), _trained(items, lambda item: item.ages, logprobs_N)
        )
    else:
        proximal_N = behaviour_N if settings.proximal == "behaviour" else logprobs_N.detach()
    place = {name: index for index, name in enumerate(dict.fromkeys(item.row.rollout_id for item in items))}
    return Tokens(
        logprobs_N,
        behaviour_N,
        proximal_N,
        _trained(items, lambda item: item.advantages, logprobs_N),
        _trained(
            items,
            lambda item: np.full(len(item.row.ids), place[item.row.rollout_id], dtype=np.int64),
            logprobs_N,
        ),
        _trained(items, lambda item: item.times, logprobs_N),
    )


def _trained(items: Sequence[Item], values: Callable[[Item], np.ndarray | None], like: Tensor) -> Tensor:
    """One value for each trained token of the items, in their order, [N]."""
    trained = []
    for item in items:
        array = values(item)
        assert array is not None
        trained.append(array[item.row.mask != 0])
    return torch.from_numpy(np.concatenate(trained)).to(like.device)


def _trained_logprobs(
    policy: Policy, items: Sequence[Item], settings: UpdateSettings, *, gradient: bool
) -> Tensor:
    """Logprobs of the items' trained tokens, in their order, float [N]."""
    rows = [item.row for item in items]
    return _logprobs(
        policy, [row.ids for row in rows], [row.mask for row in rows], settings.temperature, gradient=gradient
    )


def _logprobs(
    policy: Policy, ids: Sequence[IdArray], masks: Sequence[IdArray], temperature: float, *, gradient: bool
) -> Tensor:
    """Logprobs of the tokens with mask 1, row after row, float32 [N]."""
    with torch.set_grad_enabled(gradient):
        return policy.logprobs(ids, masks, temperature)


def _all_but_first(row: IdArray) -> IdArray:
    """A mask of all tokens except the first."""
    return (np.arange(len(row)) > 0).astype(np.int32)


def _pass_without_rows(policy: Policy, *, gradient: bool = True) -> None:
    """Take part in a pass of the other processes and add a gradient of zero, or none."""
    two = np.zeros(2, np.int32)
    with torch.set_grad_enabled(gradient):
        zero = policy.logprobs([two], [np.array([0, 1], np.int32)]).sum() * 0.0
    if gradient:
        zero.backward()  # type: ignore[no-untyped-call]


@torch.no_grad()
def mean_logprobs(
    policy: Policy, texts: Sequence[IdArray], tails: Sequence[int], settings: UpdateSettings
) -> list[float]:
    """The mean logprob of the last `tails[i]` tokens of `texts[i]`, at the sampling temperature; 0 if
    `tails[i]` is 0.

    A text that exceeds the policy's context loses its beginning.
    """
    texts = [text[-policy.context :] for text in texts]
    scored = [index for index, tail in enumerate(tails) if tail]
    out = [0.0] * len(texts)
    units = [[texts[index]] for index in scored]
    for batch in micro_batches(units, settings.micro_batch_tokens, policy.pass_size):
        part = [scored[place] for place in batch]
        masks = [_tail(len(texts[index]), tails[index]) for index in part]
        rows = [texts[index] for index in part]
        logprobs_M = policy.logprobs(rows, masks, settings.temperature).cpu()
        for index, own in zip(
            part, torch.split(logprobs_M, [int(mask.sum()) for mask in masks]), strict=True
        ):
            out[index] = float(own.double().mean())
    return out


def _tail(length: int, tail: int) -> IdArray:
    """A mask of the last `tail` tokens, without the text's first token, which nothing predicts."""
    place = np.arange(length)
    return ((place >= length - tail) & (place > 0)).astype(np.int32)
