"""Snapshots: each token under the version that sampled it, few versions at a time, in one process and in
two.
"""

import numpy as np
import pytest
import torch

from harnessgym.errors import TrainerError
from harnessgym.store import TraceStore
from tests.trainers.recorded_run import learner_of, make_run, record_groups, save_model
from tests.trainers.test_proximal_average import told
from tests.trainers.test_trained_policy import ADVANTAGES
from tests.trainers.test_update import make_rows
from tests.trainers.together import together
from trainers.held_weights import copies
from trainers.policies.loading import load_policy
from trainers.policy import token_logprobs
from trainers.proximal import Snapshots
from trainers.trained_policy import TrainedPolicy
from trainers.update_settings import UpdateSettings
from trainers.weights.chain import read_version
from trainers.weights.manifest import version_path
from trainers.world import ALONE, World

pytestmark = pytest.mark.timeout(120)
UPDATE = {"lr": 0.05, "proximal": "snapshot", "corrections": ["mis"]}


@pytest.fixture
def run(tmp_path):
    """A run of three steps, which has published versions 0 to 3, rounded to bfloat16."""
    publish = {"dtype": "bfloat16"}
    folder = make_run(
        tmp_path / "run",
        save_model(tmp_path / "model"),
        max_staleness=4,
        update={"lr": 0.05},
        publish=publish,
    )
    record_groups(folder, range(6))
    with TraceStore.open(folder.store_url()) as store:
        learner = learner_of(folder, store)
        for _ in range(3):
            learner.train_step(list(learner.arriving()))
        learner.settle()
    return folder


def rows_of_versions(*versions):
    """Rows whose tokens were sampled by these versions, by turns."""
    rows = make_rows(4)
    for row in rows:
        row.versions[:] = np.where(row.mask == 1, np.resize(versions, len(row.ids)), -1)
    return rows


def test_every_token_is_scored_by_the_published_version_that_sampled_it(run, tmp_path):
    policy = load_policy(tmp_path / "model")
    snapshots = Snapshots(policy, UpdateSettings.model_validate(UPDATE), run.versions, 2, ALONE)
    rows = rows_of_versions(1, 3, 2)
    found = snapshots.logprobs(rows)
    for version in (1, 2, 3):
        policy.load(read_version(version_path(run.versions, version))[1])
        for row, logprobs in zip(rows, found, strict=True):
            ids = torch.from_numpy(row.ids[None]).long()
            with torch.no_grad():
                expected = token_logprobs(policy(ids), ids)[0].numpy()
            of_it = row.versions == version
            np.testing.assert_allclose(logprobs[of_it], expected[of_it], rtol=1e-4, atol=1e-5)
    assert all(not logprobs[row.versions < 0].any() for row, logprobs in zip(rows, found, strict=True))
    snapshots.stepped(told())
    assert snapshots.held == [2, 3]
    policy.load(read_version(version_path(run.versions, 0))[1])
    snapshots.logprobs(rows)
    assert snapshots.held == [1, 2, 3]


def test_scoring_leaves_the_policy_as_it_is(run, tmp_path):
    policy = load_policy(tmp_path / "model")
    own = copies(policy)
    Snapshots(policy, UpdateSettings.model_validate(UPDATE), run.versions, 2, ALONE).logprobs(
        rows_of_versions(2, 3)
    )
    assert all(torch.equal(*pair) for pair in zip(copies(policy), own, strict=True))


def test_a_version_that_is_gone_is_named_with_what_to_do(run, tmp_path):
    snapshots = Snapshots(
        load_policy(tmp_path / "model"), UpdateSettings.model_validate(UPDATE), run.versions, 2, ALONE
    )
    with pytest.raises(TrainerError, match=r"v00000009.*raise trainer.publish.keep"):
        snapshots.logprobs(rows_of_versions(9))


def one_step(trained_policy):
    return trained_policy.update(rows_of_versions(1, 3, 2), ADVANTAGES)


def of_the_run(world: World, config, versions):
    trained_policy = TrainedPolicy(config, world, versions)
    if world.rank:
        trained_policy.follow()
        return None
    found = one_step(trained_policy), trained_policy.state()[0]
    trained_policy.dismiss()
    return found


def test_two_processes_take_the_step_of_one(run, tmp_path):
    config = run.config()
    config = config.model_copy(update={"trainer": config.trainer.model_copy(update={"update": UPDATE})})
    (metrics, weights), follower = together(tmp_path / "two", 2, of_the_run, config, run.versions)
    expected, its_weights = of_the_run(ALONE, config, run.versions)
    assert follower is None
    assert metrics.loss == pytest.approx(expected.loss, rel=1e-4)
    assert metrics.clip_fraction == expected.clip_fraction
    for name, tensor in its_weights.items():
        assert torch.allclose(weights[name], tensor, rtol=1e-3, atol=1e-3)
    with pytest.raises(TrainerError, match=r"pass the run.s .versions. folder"):
        TrainedPolicy(config)
