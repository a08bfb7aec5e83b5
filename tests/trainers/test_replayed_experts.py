"""A trainer's step on rows that engines routed: it computes them by the recorded experts, in every pass."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from sqlalchemy import select

from harnessgym.routed_experts import RoutedExperts, RowExperts
from harnessgym.scheduling.staleness import VersionChain
from harnessgym.store import TraceStore, expert_rows, rollouts, runs
from harnessgym.store.tables import calls
from harnessgym.traces.trajectories import Row
from tests.trainers.policies.families import tiny_model
from tests.trainers.policies.test_routing_replay import drawn, some_rows
from tests.trainers.policies.test_trained_families import config_of
from tests.trainers.recorded_run import make_run, record_groups, save_model
from tests.trainers.test_trained_policy import ADVANTAGES, as_leader
from tests.trainers.test_update import make_rows
from tests.trainers.together import together
from trainers.batch import load_group
from trainers.batch_collector import BatchCollector
from trainers.optimizer import make_optimizer
from trainers.policies.transformers import TransformersPolicy
from trainers.references.model import ReferenceModel
from trainers.scoring import Scorer
from trainers.trained_policy import TrainedPolicy
from trainers.update import policy_update
from trainers.update_settings import UpdateSettings
from trainers.world import ALONE


@pytest.fixture
def policy():
    return TransformersPolicy(tiny_model("qwen3_moe"))


@pytest.fixture
def rows(policy):
    """Rows of two rollouts that were sampled with experts other than the policy's own."""
    ids, masks = some_rows()
    routing = drawn(policy, ids)
    with torch.no_grad():
        sampled = policy.logprobs(ids, [np.arange(len(row)) > 0 for row in ids], 1.0, routing).numpy()
    parts = np.split(sampled, np.cumsum([len(row) - 1 for row in ids])[:-1])
    return [
        Row(
            f"r{number // 2}", "g", row, mask,
            np.where(mask, np.pad(logprobs, (1, 0)), 0).astype(np.float32),
            np.where(mask, 0, -1).astype(np.int32), experts=routed,
        )
        for number, (row, mask, logprobs, routed) in enumerate(zip(ids, masks, parts, routing, strict=True))
    ]  # fmt: skip


def without(rows):
    return [replace(row, experts=None) for row in rows]


def step(rows, **settings):
    """The metrics and gradients of a step with advantages of both signs, from fresh weights."""
    policy = TransformersPolicy(tiny_model("qwen3_moe"))
    update = UpdateSettings(loss="ppo", **settings)
    metrics = policy_update(policy, make_optimizer(policy, update), rows, [1.0, -0.5, 0.25], update)
    return metrics, {name: tensor.grad for name, tensor in policy.named_parameters()}


def test_ratios_are_one_with_the_recorded_experts_and_not_without(policy, rows):
    metrics, gradients = step(rows)
    assert metrics.mean_ratio == pytest.approx(1.0, abs=1e-5)
    assert metrics.kl == pytest.approx(0.0, abs=1e-6)
    assert gradients["model.model.layers.0.mlp.gate.weight"].norm() > 0
    other, _ = step(without(rows))
    assert other.kl > 1e-3


@pytest.mark.parametrize("loss", ["ppo", "gspo"])
def test_small_passes_give_the_same_gradients(policy, rows, loss):
    """Also where a loss needs whole rollouts, which are then scored first."""
    whole, small = (step(rows, micro_batch_tokens=size)[1] for size in (16_384, 20))
    for name, tensor in whole.items():
        assert torch.allclose(tensor, small[name], atol=1e-6), name


def test_scores_are_those_of_the_recorded_experts(policy, rows):
    for limit in (16_384, 1):
        for row, scores in zip(
            rows, Scorer(policy, UpdateSettings(micro_batch_tokens=limit), ALONE).logprobs(rows), strict=True
        ):
            assert np.allclose(scores[row.mask == 1], row.logprobs[row.mask == 1], atol=1e-5)


def test_the_likeliest_tokens_and_comparisons_are_those_of_the_recorded_experts(policy, rows):
    class Same:
        """Compares with nothing: the divergence is 0."""

        def tensors(self, rows, masks):
            return ()

        def divergence(self, scores_MV):
            return scores_MV[:, 0] * 0

    for row, top in zip(rows, Scorer(policy, UpdateSettings(), ALONE).top(rows, 97, 97), strict=True):
        trained = row.mask == 1
        own = np.argsort(top.ids[trained], axis=1)[np.arange(trained.sum()), row.ids[trained]]
        found = top.logprobs[trained][np.arange(trained.sum()), own]
        assert np.allclose(found, row.logprobs[trained], atol=1e-5)
    routing = [row.experts for row in rows]
    found = policy.compared([row.ids for row in rows], [row.mask for row in rows], 1.0, Same(), routing)
    expected = np.concatenate([row.logprobs[row.mask == 1] for row in rows])
    assert np.allclose(found[:, 0].detach().numpy(), expected, atol=1e-5)


def test_a_reference_that_is_another_model_chooses_its_own(rows, tmp_path):
    """It may have no experts at all."""
    config = make_run(tmp_path / "run", save_model(tmp_path / "model")).config()
    for name in ("qwen3", "qwen3_moe"):
        reference = ReferenceModel(TransformersPolicy(tiny_model(name)), config, UpdateSettings(), ALONE)
        for routed, plain in zip(reference.logprobs(rows), reference.logprobs(without(rows)), strict=True):
            assert np.array_equal(routed, plain)


def test_a_batch_has_them_unless_replay_is_off(tmp_path):
    model = save_model(tmp_path / "model")
    for setting, expected in (("auto", True), ("off", False)):
        folder = make_run(tmp_path / setting, model, routing_replay=setting)
        routed = RoutedExperts(0, np.ones((10, 1, 2), np.uint8))
        record_groups(folder, range(2))
        with TraceStore.open(folder.store_url()) as store:
            for (call_id,) in store.read(lambda conn: conn.execute(select(calls.c.id)).all()):
                store.write(partial(expert_rows.add, call_id=call_id, packed=routed.packed()))
            collector = BatchCollector(store, store.read(runs.only).id, folder.config())
            groups = list(collector.groups(0, VersionChain(()), frozenset()))
            found = [row for group in groups for rows in group.rows for row in rows]
            assert len(found) == 6
            assert all((row.experts is not None) == expected for row in found)
            group = store.read(lambda conn, name=groups[0].group.id: rollouts.group(conn, name))
            assert all(row.experts is None for rows in load_group(store, group).rows for row in rows)


def routed_step(trained_policy):
    """The weights after a step on rows with experts at random."""
    draw = np.random.default_rng(3)
    rows = [
        replace(
            row,
            experts=RowExperts(
                np.stack([[draw.permutation(4)[:2] for _ in range(2)] for _ in row.ids]).astype(np.uint8),
                np.arange(len(row.ids)) < len(row.ids) - 1,
            ),
        )
        for row in make_rows(1)
    ]
    trained_policy.update(rows, ADVANTAGES)
    return trained_policy.state()[0]


@pytest.mark.timeout(180)
@pytest.mark.parametrize("options", [{}, {"gradient_checkpointing": True}])
def test_two_processes_replay_them_as_one_does(tmp_path, options):
    config = config_of("qwen3_moe", tmp_path, **options)
    found, _ = together(tmp_path / "two", 2, as_leader, config, routed_step)
    expected = routed_step(TrainedPolicy(config))
    own = TrainedPolicy(config)
    own.update(make_rows(1), ADVANTAGES)
    for name, tensor in expected.items():
        # Adam divides small gradients by their size, so rounding shows.
        assert torch.allclose(found[name], tensor, rtol=1e-3, atol=5e-4), name
    assert any(
        not torch.allclose(own.state()[0][name], tensor, atol=5e-4) for name, tensor in expected.items()
    )
