"""What a rollout is trained on where rewards have weights, and what is refused before a run starts."""

import pytest

from harnessgym.config import validate
from harnessgym.errors import ConfigError, RewardError
from harnessgym.reward import RewardWeights, make_rewards, score_all, weights_of
from harnessgym.run_config.run import RewardSection, RunConfig
from harnessgym.store.rewards import RewardRow
from tests.harnessgym.rewards.test_rewards_members import HERE, record, rollout  # noqa: F401

RUN = {"name": "x", "policy": {"path": "p"}, "tasks": {"set": "lookup"}, "harnesses": [{"name": "a"}]}
CODE = {"type": "code", "settings": {"function": f"{HERE}:count_calls", "channel": "process.calls"}}
COSTS = {"type": "orchestration"}


def row(channel, value, source="length", unit="rollout"):
    return RewardRow("r", unit, "r", channel, value, source)


def test_the_total_is_the_weighted_sum_and_says_how_it_was_made():
    weights = RewardWeights(0.5, {"length": -0.25, "costs": {"cost.calls": -0.1}})
    scores = [
        row("cost.sampled", 2.0),
        row("cost.calls", 3.0, "costs"),
        row("cost.tokens", 99.0, "costs"),
        row("x", 7.0, "y"),
    ]
    total = weights.total("r", 1.0, scores)
    assert (total.unit, total.target, total.channel, total.source) == ("rollout", "r", "total", "weights")
    assert total.value == pytest.approx(0.5 - 0.5 - 0.3)
    assert total.detail == "0.5 * reward (1) - 0.25 * cost.sampled (2) - 0.1 * cost.calls (3)"
    assert weights.formula == "0.5 * reward - 0.25 * length - 0.1 * cost.calls"


@pytest.mark.parametrize(
    ("weight", "scores", "words"),
    [
        (1.0, [], "'length' has one weight, and it gave the rollout no score"),
        (1.0, [row("a", 1.0), row("b", 1.0)], "has one weight, and it gave the channels a, b"),
        (1.0, [row("a", 1.0, unit="turn")], "gave the rollout no score"),
        (
            {"b": 1.0},
            [row("a", 1.0)],
            "a weight for the channel 'b' and gave the rollout no score there.*A missing reward is not 0",
        ),
    ],
)
def test_a_score_that_is_not_there_is_an_error_and_not_zero(weight, scores, words):
    with pytest.raises(RewardError, match=words):
        RewardWeights(1.0, {"length": weight}).total("r", 1.0, scores)


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        (
            [{**CODE, "settings": {**CODE["settings"], "channel": "reward"}}],
            "'code' has the channel 'reward', which is the grader's",
        ),
        ([{**CODE, "settings": {**CODE["settings"], "channel": "total"}}], "which is the weighted sum"),
        ([COSTS | {"weight": -1.0}], r'several channels.*weight = \{ "cost.tokens" = -1 \}'),
        (
            [COSTS | {"weight": {"cost.tokns": -1.0}}],
            "gives no channel 'cost.tokns'. Did you mean 'cost.tokens'",
        ),
        (
            [CODE | {"weight": 1.0}, CODE | {"name": "b", "weight": 1.0}],
            "'code' and 'b' both give a rollout the channel",
        ),
    ],
)
def test_channels_and_weights_that_cannot_be_are_refused(sections, words):
    with pytest.raises(ConfigError, match=words):
        make_rewards([validate(RewardSection, each, "the test") for each in sections])


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (
            {"tasks": {"set": "lookup", "weight": 0.0}},
            "tasks.weight: it is 0 and no .* has a weight, so nothing is trained on",
        ),
        (
            {"rewards": [CODE | {"weight": 1.0}], "trainer": {"advantage": "gdpo"}},
            "trainer.advantage: gdpo weights the channels itself",
        ),
        ({"rewards": [CODE | {"weight": "much"}]}, "rewards.0.weight"),
        ({"rewards": [CODE | {"weight": float("nan")}]}, "rewards.0.weight"),
    ],
)
def test_weights_that_do_not_fit_the_run_are_refused(more, words):
    with pytest.raises(ConfigError, match=words):
        validate(RunConfig, RUN | more, "the test")


def test_without_a_weight_the_graders_reward_is_trained_on():
    assert (
        weights_of(
            validate(
                RunConfig, RUN | {"rewards": [CODE, COSTS | {"weight": {"cost.tokens": 0.0}}]}, "the test"
            )
        )
        is None
    )
    weighed = weights_of(validate(RunConfig, RUN | {"rewards": [CODE | {"weight": 2}, COSTS]}, "the test"))
    assert weighed == RewardWeights(1.0, {"code": 2.0})
    assert weights_of(
        validate(RunConfig, RUN | {"tasks": {"set": "lookup", "weight": 2}}, "the test")
    ) == RewardWeights(2.0, {})


def raises(record):  # noqa: F811
    raise KeyError("no such field")


class Raising:
    """A reward of the user's with a bug."""

    settings, needs = RewardSection, frozenset()

    def __init__(self, settings):
        pass

    async def score(self, record):  # noqa: F811
        raise KeyError("no such field")


@pytest.mark.anyio
async def test_a_reward_with_a_bug_is_named_once(record):  # noqa: F811
    members = {"mine": Raising(None)}
    with pytest.raises(RewardError) as caught:
        await score_all(members, record)
    assert str(caught.value) == "The reward 'mine' failed. KeyError: 'no such field'"


@pytest.mark.anyio
async def test_a_channel_that_the_grader_gave_is_named_once(record):  # noqa: F811
    members = make_rewards([validate(RewardSection, CODE, "the test")])
    with pytest.raises(RewardError) as caught:
        await score_all(members, record, taken=["process.calls"])
    assert str(caught.value) == (
        f"The reward 'code' failed. The reward 'process.calls' of rollout {record.rollout_id} was given by "
        "the grader already. "
        "Set another `channel`."
    )
