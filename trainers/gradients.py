"""Gradients of a batch: passes over its rows in micro-batches, in all processes of the trainer.

The loss depends on the policy only through scores of trained tokens (their logprobs and, if a teacher is
compared, the divergence from it), so its gradient has two parts. The first is with respect to the scores and
needs all tokens that depend on each other together. The second goes from the scores through the policy and
can be computed in pieces. If a loss or a correction needs whole
rollouts, a rollout's rows are in one process and, if they fit, in one micro-batch. A rollout that is too
large for one is first scored without gradient, which gives the first part, and then passed again in pieces.
This costs one more forward pass and gives the same gradient.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from harnessgym.registry import load
from harnessgym.tokens import FloatArray, IdArray
from harnessgym.traces.trajectories import Row
from trainers.corrections.loglinear import loglinear
from trainers.losses.distillation import FullComparison, TopComparison
from trainers.losses.kl import ESTIMATORS
from trainers.losses.tokens import TimeArray, Tokens
from trainers.packing import Routing, micro_batches, sharing_keys
from trainers.policy import Policy
from trainers.scoring import SHORT_PASS, PassSize, TopTokens, routing_of
from trainers.update_settings import UpdateSettings
from trainers.world import World


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
    reference: FloatArray | None = None
    """Logprobs of the reference policy, if there is a KL term in the loss."""
    teacher: TopTokens | None = None
    """The teacher's likeliest tokens, if the loss compares these."""


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
    log_reference_N: Tensor | None = None
    """log(pi_ref / pi), if there is a reference."""
    divergence_N: Tensor | None = None
    """KL(pi, teacher) at the token's position, if the loss has it."""


@dataclass(frozen=True, slots=True)
class Forward:
    """How rows pass through the policy, and with it through the teacher of whole distributions."""

    policy: Policy
    settings: UpdateSettings
    teacher: Policy | None = None

    def scores(self, items: Sequence[Item], *, gradient: bool) -> Tensor:
        """Logprobs of the items' trained tokens, in their order, float [N]; if the loss compares a teacher,
        [N, 2]: beside each the divergence from it.
        """
        ids, masks = [item.row.ids for item in items], [item.row.mask for item in items]
        tops = [item.teacher for item in items if item.teacher is not None]
        routing = routing_of([item.row for item in items])
        return self._scores(ids, masks, tops, routing, gradient=gradient)

    def without_rows(self, *, gradient: bool) -> None:
        """Take part in a pass of the other processes and add a gradient of zero, or none."""
        compared = self.settings.distillation.most_likely if self.settings.distillation else 0
        tops = [TopTokens(np.zeros((2, compared), np.int32), np.zeros((2, compared), np.float32))]
        zero = self._scores(*SHORT_PASS, tops, None, gradient=gradient).sum() * 0.0
        if gradient:
            zero.backward()  # type: ignore[no-untyped-call]

    def _scores(
        self,
        ids: Sequence[IdArray],
        masks: Sequence[IdArray],
        tops: Sequence[TopTokens],
        routing: Routing,
        *,
        gradient: bool,
    ) -> Tensor:
        temperature, distillation = self.settings.temperature, self.settings.distillation
        with torch.set_grad_enabled(gradient):
            if distillation is None or not distillation.in_loss:
                return self.policy.logprobs(ids, masks, temperature, routing)
            comparison = (
                TopComparison(tops) if self.teacher is None else FullComparison(self.teacher, temperature)
            )
            return self.policy.compared(ids, masks, temperature, comparison, routing)


def backward_all(forward: Forward, items: Sequence[Item], world: World) -> list[TokenStats]:
    """Add the gradients of all items, micro-batch by micro-batch. Each process adds its part; all of them get
    the statistics of all items.
    """
    plans = _plans(items, forward.settings, forward.policy.pass_size, world)
    mine = plans[world.rank]
    scored = _score_large(forward, plans, world)
    stats = [_backward(forward, group, scores) for group, scores in zip(mine.groups, scored, strict=True)]
    # Every pass is a collective operation, because the processes exchange shards in it. A process that has
    # fewer micro-batches makes up for them with empty passes, or the others would wait forever.
    for _ in range(max(plan.passes for plan in plans) - mine.passes):
        forward.without_rows(gradient=True)
    return [part for parts in world.all_gather(stats) for part in parts]


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
    rows = [item.row for item in items]
    keys = sharing_keys([row.ids for row in rows], routing_of(rows))
    key_of = dict(zip(map(id, items), keys, strict=True))
    plans = []
    for part in world.parts([sum(len(item.row.ids) for item in unit) for unit in units]):
        own = [units[index] for index in part]
        batches = micro_batches([[key_of[id(item)] for item in unit] for unit in own], limit, size)
        plans.append(
            _Plan(
                [
                    _group([item for index in indices for item in own[index]], key_of, limit, size)
                    for indices in batches
                ]
            )
        )
    return plans


def _group(items: list[Item], key_of: Mapping[int, IdArray], limit: int, size: PassSize) -> _Group:
    """`key_of` has each item's key (`packing.sharing_keys`) by the item's identity."""
    keys = [key_of[id(item)] for item in items]
    if size(keys) <= limit:
        return _Group([items])
    return _Group(
        [[items[index] for index in batch] for batch in micro_batches([[key] for key in keys], limit, size)]
    )


def _score_large(forward: Forward, plans: Sequence[_Plan], world: World) -> list[Tensor | None]:
    """The scores of each group of this process that must be scored first; None for the others."""
    mine = plans[world.rank]
    scored: list[Tensor | None] = []
    for group in mine.groups:
        parts = [forward.scores(batch, gradient=False) for batch in group.batches if group.large]
        scored.append(torch.cat(parts) if parts else None)
    for _ in range(max(plan.scoring_passes for plan in plans) - mine.scoring_passes):
        forward.without_rows(gradient=False)
    return scored


def _backward(forward: Forward, group: _Group, scored: Tensor | None) -> TokenStats:
    """Add the group's gradient. The items' weights already include the batch's denominator, or 1."""
    if scored is None:
        scores = forward.scores(group.items, gradient=True)
        stats, gradient = _loss(group.items, scores.detach(), forward.settings)
        backpropagate(scores, gradient)
        return stats
    stats, gradient = _loss(group.items, scored, forward.settings)
    sizes = [sum(int(np.count_nonzero(item.row.mask)) for item in batch) for batch in group.batches]
    for batch, part in zip(group.batches, torch.split(gradient, sizes), strict=True):
        backpropagate(forward.scores(batch, gradient=True), part)
    return stats


def backpropagate(output: Tensor, gradient: Tensor) -> None:
    """`output.backward(gradient)`, with equal bits, but without importing sympy, which takes a second."""
    torch.dot(output.flatten(), gradient.flatten()).backward()  # type: ignore[no-untyped-call]


def _loss(items: Sequence[Item], scores: Tensor, settings: UpdateSettings) -> tuple[TokenStats, Tensor]:
    """Statistics of the items whose trained tokens have these scores, [N] or [N, 2], and the gradient of the
    loss with respect to the scores.
    """
    # The scores are a leaf here, cut off from the policy. autograd.grad stops at them, so this works the
    # same for scores of one pass and for those that were computed before without a graph.
    leaf = scores.requires_grad_()
    logprobs_N = leaf if leaf.ndim == 1 else leaf[:, 0]
    tokens = _tokens(items, logprobs_N, settings)
    weights_N = _trained(items, lambda item: item.weights, leaf)
    corrected_N = weights_N
    for correction in settings.weights:
        # Detached: an importance weight scales the gradient and is no part of what is optimised.
        weight_N = load("correction", correction.function)(tokens, **correction.arguments).detach()
        corrected_N = corrected_N * weight_N
    loss = (corrected_N * load("loss", settings.loss.function)(tokens, **settings.loss.arguments)).sum()
    (gradient,) = torch.autograd.grad(loss, leaf, retain_graph=True)
    # A zero gradient has three causes: an advantage of 0, a correction's mask, or the loss's clipping.
    # What the first two do not explain is counted as clipped.
    masked_N = (corrected_N == 0) & (weights_N != 0)
    policy_gradient_N = gradient if leaf.ndim == 1 else gradient[:, 0]
    clipped_N = (policy_gradient_N == 0) & (tokens.advantages_N != 0) & ~masked_N
    reference_N, terms_N = _reference_terms(items, leaf, logprobs_N, settings)
    if terms_N is not None:
        terms = (weights_N * terms_N).sum()
        gradient = gradient + torch.autograd.grad(terms, leaf)[0]
        loss = loss + terms
    stats = TokenStats(
        float(loss.detach()),
        tuple(dict.fromkeys(item.row.rollout_id for item in items)),
        tokens.rollout_N.cpu(),
        tokens.log_current_weight.cpu(),
        logprobs_N.detach().cpu(),
        clipped_N.cpu(),
        masked_N.cpu(),
        None if reference_N is None else (reference_N - logprobs_N).detach().cpu(),
        None if leaf.ndim == 1 else leaf[:, 1].detach().cpu(),
    )
    return stats, gradient


def _reference_terms(
    items: Sequence[Item], scores: Tensor, logprobs_N: Tensor, settings: UpdateSettings
) -> tuple[Tensor | None, Tensor | None]:
    """Logprobs of the reference policy, and what reference and teacher add to tokens' losses, float [N]."""
    reference_N, terms_N = None, None
    if settings.kl is not None and items[0].reference is not None:
        reference_N = _trained(items, lambda item: item.reference, logprobs_N)
        terms_N = settings.kl.coefficient * ESTIMATORS[settings.kl.in_loss](logprobs_N, reference_N)
    if settings.distillation is not None and scores.ndim == 2:
        divergence_N = settings.distillation.coefficient * scores[:, 1]
        terms_N = divergence_N if terms_N is None else terms_N + divergence_N
    return reference_N, terms_N


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
