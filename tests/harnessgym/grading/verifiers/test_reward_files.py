"""Result files of test scripts: every finite number is a reward, and nothing else ever is."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessgym.errors import TaskError
from harnessgym.grading.verifiers.reward_files import MAX_BYTES, MISSING, ResultFile, result

FINITE = st.floats(allow_nan=False, allow_infinity=False)
KEYS = st.text(min_size=1, max_size=20)


def of_text(text):
    return result(MISSING, ResultFile("file", text.encode()))


def of_json(text):
    return result(ResultFile("file", text.encode()), MISSING)


@given(FINITE, st.sampled_from(["", " ", "\n", "\r\n", "\t"]))
def test_a_finite_number_in_text_is_the_reward(number, space):
    assert of_text(f"{space}{number!r}{space}").rewards == {"reward": number}


@given(FINITE)
def test_a_single_number_in_json_is_the_reward(number):
    assert of_json(json.dumps(number)).rewards == {"reward": number}


@given(st.dictionaries(KEYS, FINITE, min_size=1), FINITE)
def test_channels_are_kept_beside_the_reward_that_is_named(channels, reward):
    channels["reward"] = reward
    found = of_json(json.dumps(channels))
    assert found.rewards == channels
    assert (found.source, found.remark) == ("reward.json", "")


@given(st.dictionaries(KEYS.filter(lambda key: key != "reward"), FINITE, min_size=1))
def test_without_a_named_reward_it_is_the_only_value_or_the_mean_and_that_is_said(channels):
    found = of_json(json.dumps(channels))
    assert found.rewards.items() >= channels.items()
    assert min(channels.values()) - 1e-9 * abs(min(channels.values())) <= found.rewards["reward"]
    assert found.rewards["reward"] <= max(channels.values()) + 1e-9 * abs(max(channels.values()))
    assert math.isfinite(found.rewards["reward"])
    assert ("only key" if len(channels) == 1 else "mean") in found.remark


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_whatever_lies_there_is_finite_rewards_or_a_task_error(first, second):
    for files in (
        (ResultFile("file", first), ResultFile("file", second)),
        (MISSING, ResultFile("file", second)),
    ):
        try:
            rewards = result(*files).rewards
        except TaskError:
            continue
        assert "reward" in rewards
        assert all(isinstance(value, float) and math.isfinite(value) for value in rewards.values())


@pytest.mark.parametrize(
    "text",
    ["nan", "inf", "-Infinity", "1e309", "true", "1_0", "0x10", "1 2", "[1]", "one", "", "  \n", "1,5"],
)
def test_text_that_is_no_finite_number_is_refused(text):
    with pytest.raises(TaskError, match=r"reward\.txt"):
        of_text(text)


@pytest.mark.parametrize(
    "text",
    [
        "", "{}", "[]", "[1.0]", "null", "true", '"1"', "NaN", "Infinity", "1e309", '{"reward": NaN}', '{"reward": 1e309}',
        '{"reward": true}', '{"reward": [1]}', '{"reward": null}', '{"reward": "1"}', '{"reward": {"x": 1}}', '{"reward": 1',
        '{"reward": 0, "reward": 1}', '{"a": 1, "b": "x"}', '{"reward": ' + "9" * 400 + "}", "[" * 5_000,
        json.dumps({str(number): 0 for number in range(300)}),
    ],
)  # fmt: skip
def test_json_that_is_no_finite_numbers_is_refused(text):
    with pytest.raises(TaskError, match=r"reward\.json"):
        of_json(text)


@pytest.mark.parametrize("kind", ["link", "folder", "special"])
def test_what_lies_in_the_place_of_a_file_is_no_result(kind):
    good = ResultFile("file", b"1")
    with pytest.raises(TaskError, match=r"reward\.json is a"):
        result(ResultFile(kind), good)
    with pytest.raises(TaskError, match=r"reward\.txt is a"):
        result(MISSING, ResultFile(kind))


def test_json_comes_first_and_a_malformed_one_is_not_passed_over():
    assert result(ResultFile("file", b'{"reward": 0}'), ResultFile("file", b"1")).rewards == {"reward": 0.0}
    with pytest.raises(TaskError, match="no JSON"):
        result(ResultFile("file", b"{"), ResultFile("file", b"1"))


def test_nothing_too_much_and_no_text_are_refused():
    with pytest.raises(TaskError, match=r"neither reward\.json nor reward\.txt"):
        result(MISSING, MISSING)
    with pytest.raises(TaskError, match="larger than 64 KiB"):
        result(MISSING, ResultFile("file", b"1" * (MAX_BYTES + 1)))
    with pytest.raises(TaskError, match="not UTF-8 text"):
        result(MISSING, ResultFile("file", b"\xff"))


def test_numbers_that_only_together_pass_every_float_have_a_mean():
    assert of_json('{"a": 1.5e308, "b": 1.5e308}').rewards["reward"] == pytest.approx(1.5e308)
