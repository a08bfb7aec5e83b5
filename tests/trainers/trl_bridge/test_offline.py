"""Offline training by the installed TRL: the losses see the recorded ids, and the result is a policy that
the engine loads.
"""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from harnessgym.cli import app
from harnessgym.errors import ConfigError
from harnessgym.store import TraceStore
from tests.trainers.recorded_run import make_run, record_groups
from tests.trainers.trl_bridge.test_samples import rows
from tests.trainers.trl_bridge.tiny import REWARDS, save_tiny
from trainers.policies.loading import load_policy
from trainers.policy import token_logprobs
from trainers.trl_bridge.offline import (
    IGNORED,
    GradedRollout,
    best_of_groups,
    examples_of,
    graded,
    make_trainer,
    preferences,
    supervised,
    train_offline,
)

pytestmark = pytest.mark.filterwarnings("ignore")  # TRL's and its dependencies' own
SETTINGS = {
    "learning_rate": 1e-2,
    "num_train_epochs": 4,
    "per_device_train_batch_size": 3,
    "disable_tqdm": True,
}


@pytest.fixture
def recorded(tmp_path):
    """A store with two groups of three rollouts, their ids, and the policy that sampled them."""
    model = save_tiny(tmp_path / "model")
    folder = make_run(tmp_path / "run", model)
    record_groups(folder, range(2), rewards=REWARDS)
    with TraceStore.open(folder.store_url()) as store:
        ids = store.read(
            lambda conn: [row.id for row in conn.exec_driver_sql("SELECT id FROM rollouts ORDER BY id")]
        )
        yield SimpleNamespace(
            store=store, ids=ids, model=model, folder=folder, found=list(graded(store, ids)), path=tmp_path
        )


def logprob(policy, row):
    """Of what a row trains, the sum."""
    ids = torch.from_numpy(row.ids).long()[None]
    with torch.no_grad():
        return float(token_logprobs(policy(ids), ids)[0][torch.from_numpy(row.mask) != 0].sum())


def rollout(rows_, reward, group="g"):
    return GradedRollout("r", group, reward, tuple(rows_))


@given(st.lists(rows(), min_size=1, max_size=3))
def test_supervised_examples_are_the_rows(found):
    for example, row in zip(supervised([rollout(found, 1.0)]), found, strict=True):
        assert example["input_ids"] == row.ids.tolist()
        assert [label != IGNORED for label in example["labels"]] == (row.mask != 0).tolist()
        assert all(
            label in (IGNORED, token)
            for label, token in zip(example["labels"], example["input_ids"], strict=True)
        )


@given(
    st.lists(
        st.tuples(st.lists(rows(), max_size=3), st.sampled_from([0.0, 0.5, 1.0])), min_size=1, max_size=4
    )
)
def test_a_pair_is_a_row_of_the_best_and_one_of_the_worst_with_the_same_prompt(found):
    group = [rollout(own, reward) for own, reward in found]
    best, worst = max(found, key=lambda item: item[1]), min(found, key=lambda item: item[1])

    def wholes(own):
        return [(row.ids.tolist(), row.mask.tolist()) for row in own]

    pairs = preferences(group)
    for pair in pairs:
        silent = [0] * len(pair["prompt_ids"])
        assert (pair["prompt_ids"] + pair["chosen_ids"], silent + pair["chosen_mask"]) in wholes(best[0])
        assert (pair["prompt_ids"] + pair["rejected_ids"], silent + pair["rejected_mask"]) in wholes(worst[0])
        assert pair["chosen_mask"][0] == pair["rejected_mask"][0] == 1
    assert len(pairs) <= min(len(best[0]), len(worst[0]))
    assert best[1] > worst[1] or not pairs


def test_the_best_of_each_group_is_one():
    found = [rollout([], reward, group) for group, reward in (("a", 0.0), ("b", 1.0), ("a", 0.5), ("b", 1.0))]
    assert best_of_groups(found) == [found[2], found[1]]


def test_sft_learns_the_recorded_tokens(recorded):
    examples = examples_of("sft", recorded.found)
    trainer = make_trainer(
        "sft", recorded.model, examples, SETTINGS | {"output_dir": str(recorded.path / "s")}
    )
    seen = []
    for batch in trainer.get_train_dataloader():
        for ids, labels, used in zip(
            batch["input_ids"], batch["labels"], batch["attention_mask"], strict=True
        ):
            seen.append((ids[used == 1].tolist(), labels[used == 1].tolist()))
    assert sorted(seen) == sorted((example["input_ids"], example["labels"]) for example in examples)
    policy, every = load_policy(recorded.model), [row for item in recorded.found for row in item.rows]
    mean = -sum(logprob(policy, row) for row in every) / sum(int(row.mask.sum()) for row in every)
    assert trainer.evaluate(trainer.train_dataset)["eval_loss"] == pytest.approx(mean, rel=1e-4)


def test_dpo_compares_what_the_policy_sampled_and_nothing_else(recorded):
    pair = examples_of("dpo", recorded.found)[0]
    holes = pair | {"chosen_mask": [1, 0, 0, 1, 1, 1], "rejected_mask": [1, 1, 0, 0, 0, 1]}
    trainer = make_trainer(
        "dpo", recorded.model, [holes], SETTINGS | {"output_dir": str(recorded.path / "d")}
    )
    batch = next(iter(trainer.get_train_dataloader()))
    chosen, rejected = trainer.compute_ref_log_probs(trainer.ref_model, batch)
    best, worst = recorded.found[0].rows[0], recorded.found[1].rows[0]
    policy = load_policy(recorded.model)
    for value, row, name in ((chosen, best, "chosen"), (rejected, worst, "rejected")):
        mask = np.array([0] * len(pair["prompt_ids"]) + holes[f"{name}_mask"])
        assert row.ids.tolist() == pair["prompt_ids"] + pair[f"{name}_ids"]
        assert float(value) == pytest.approx(
            logprob(policy, SimpleNamespace(ids=row.ids, mask=mask)), rel=1e-4
        )


@pytest.mark.parametrize(
    ("method", "examples", "tokens"), [("sft", 2, 12), ("rejection", 2, 12), ("dpo", 2, 24)]
)
def test_each_method_makes_a_policy_that_prefers_the_best(recorded, method, examples, tokens):
    threshold = None if method == "dpo" else 0.9
    made = train_offline(
        method, recorded.store, recorded.ids, recorded.model, recorded.path / "out", SETTINGS, threshold
    )
    assert (made.rollouts, made.examples, made.tokens, made.steps) == (6, examples, tokens, 4)
    before, after = load_policy(recorded.model), load_policy(recorded.path / "out")
    for group in (recorded.found[:3], recorded.found[3:]):
        best, worst = (group[slot].rows[0] for slot in (0, 1))
        margins = [logprob(policy, best) - logprob(policy, worst) for policy in (before, after)]
        assert margins[1] > margins[0] + 0.1
    names = {path.name for path in recorded.model.iterdir()}
    assert {path.name for path in (recorded.path / "out").iterdir()} == names


def test_nothing_to_learn_from_leaves_nothing(recorded):
    out = recorded.path / "out"
    with pytest.raises(ConfigError, match="None of 6 rollouts"):
        train_offline(
            "rejection", recorded.store, recorded.ids, recorded.model, out, SETTINGS, min_reward=2.0
        )
    with pytest.raises(ConfigError, match="learning_rate"):
        train_offline("dpo", recorded.store, recorded.ids, recorded.model, out, {"learning_rat": 1})
    assert not out.exists()


def command(recorded, *words):
    argv = [
        "train-offline",
        str(recorded.folder.root),
        "--policy",
        str(recorded.model),
        "--out",
        str(recorded.path / "out"),
    ]
    return CliRunner().invoke(app(), [*argv, *words])


def test_the_command_trains(recorded):
    words = (
        "--method",
        "rejection",
        "--min-reward",
        "1",
        "--set",
        "learning_rate=1e-3",
        "--purpose",
        "train",
        "--json",
    )
    done = command(recorded, *words)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["method"], found["rollouts"], found["examples"]) == ("rejection", 6, 2)
    load_policy(recorded.path / "out")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--method", "dpo", "--min-reward", "1"), "--min-reward"),
        (("--method", "sft", "--policy", "nowhere"), "No policy at nowhere"),
        (("--method", "sft", "--set", "rate=1"), "no setting 'rate'"),
    ],
)
def test_the_command_refuses_what_it_cannot_do(recorded, words, named):
    done = command(recorded, *words)
    assert isinstance(done.exception, ConfigError)
    assert named in str(done.exception)
