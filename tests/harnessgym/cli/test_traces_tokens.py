"""`traces tokens` prints rows exactly; `traces diff` finds where two rollouts part."""

import json

import numpy as np
import pytest

from harnessgym.errors import StoreError


def test_rows_are_exactly_those_of_the_trainer(recorded, ask):
    printed = json.loads(ask("tokens", recorded.path, recorded.rollouts[0], "--json").stdout)
    rows = recorded.trajectory().rows
    assert len(printed) == len(rows) > 2
    for at, (found, row) in enumerate(zip(printed, rows, strict=True)):
        tokens = found["tokens"]
        assert found["row"] == at
        assert [token["position"] for token in tokens] == list(range(len(row.ids)))
        assert [token["id"] for token in tokens] == row.ids.tolist()
        assert [token["mask"] for token in tokens] == row.mask.tolist()
        assert np.array_equal(np.float32([token["logprob"] for token in tokens]), row.logprobs)
        assert [token["version"] for token in tokens] == row.versions.tolist()
        assert found["call_id"] == row.turns[-1].call_id
        for turn in row.turns:
            assert len({(token["call"], token["agent"]) for token in tokens[turn.start : turn.end]}) == 1
        sampled = {at for turn in row.turns for at in range(turn.start, turn.end)}
        assert {token["position"] for token in tokens if token["call"] is not None} == sampled


def test_advantages_are_those_that_were_trained_with(recorded, ask):
    rows = recorded.trajectory().rows
    for found, row in zip(
        json.loads(ask("tokens", recorded.path, recorded.rollouts[0], "--json").stdout), rows, strict=True
    ):
        expected: list[float | None] = [None] * len(row.ids)
        for turn in row.turns:
            if row.mask[turn.start]:
                expected[turn.start : turn.end] = [2.0] + [-0.5] * (turn.end - turn.start - 1)
        assert [token["advantage"] for token in found["tokens"]] == expected


def test_texts_of_tokens_join_to_what_was_said(recorded, ask):
    (row,) = json.loads(ask("tokens", recorded.path, "latest", "--call", 4, "--json").stdout)
    said = "".join(token["text"] for token in row["tokens"] if token["call"] == 4)
    assert said == "There are 4 pears.<|im_end|>"
    assert {token["agent"] for token in row["tokens"] if token["call"] == 4} == {"agent 2"}


def test_a_call_is_the_row_up_to_its_end(recorded, ask):
    whole, part = (
        json.loads(ask("tokens", recorded.path, "latest", "--call", number, "--json").stdout)[0]
        for number in (5, 1)
    )
    assert whole["row"] == part["row"]
    assert whole["tokens"][: len(part["tokens"])] == part["tokens"]
    assert (whole["call"], part["call"]) == (5, 1)
    assert {token["call"] for token in whole["tokens"]} == {None, 1, 5}


def test_a_call_in_no_row_says_why_and_keeps_its_logprobs(recorded, ask):
    (row,) = json.loads(ask("tokens", recorded.path, "latest", "--call", 0, "--sampled", "--json").stdout)
    assert (row["row"], row["excluded"]) == (None, "side_call")
    assert len(row["tokens"]) == 6
    assert all(
        token["mask"] == 0 and token["logprob"] < 0 and token["version"] == 0 for token in row["tokens"]
    )


def test_lines_for_people(recorded, ask):
    lines = ask("tokens", recorded.path, "latest", "--row", 1).output.splitlines()
    row = recorded.trajectory(1).rows[1]
    assert lines[1].split() == [
        "position",
        "id",
        "text",
        "mask",
        "logprob",
        "version",
        "advantage",
        "call",
        "agent",
    ]
    assert len(lines) == len(row.ids) + 2
    first = row.turns[0].start
    position, token, *_, mask, logprob, version, advantage, _call, agent, number = lines[2 + first].split()
    assert (int(position), int(token), mask, version, advantage) == (first, row.ids[first], "1", "0", "2")
    assert np.float32(logprob) == row.logprobs[first]
    assert f"{agent} {number}" == "agent 2"
    assert "\x1b" not in "".join(lines)


@pytest.mark.parametrize(("words", "part"), [(("--call", 7), "7 calls"), (("--row", 9), "training rows")])
def test_a_number_that_is_not_there(recorded, ask, words, part):
    error = ask("tokens", recorded.path, "latest", *words, status=1).exception
    assert isinstance(error, StoreError)
    assert part in str(error)


def test_call_and_row_exclude_each_other(recorded, ask):
    assert (
        "exclude each other"
        in ask("tokens", recorded.path, "latest", "--call", 1, "--row", 1, status=2).output
    )


def test_a_rollout_is_the_same_as_itself(recorded, ask):
    assert "token for token" in ask("diff", recorded.path, "latest", "latest").output


def test_two_rollouts_part_where_they_do(recorded, ask):
    found = json.loads(ask("diff", recorded.path, *recorded.rollouts, "--json", status=1).stdout)
    assert (found["a"], found["b"], found["same"]) == (*recorded.rollouts, False)
    differing = [branch for branch in found["branches"] if branch["message"] or branch["token"]]
    assert [branch["ends"] for branch in found["branches"]] == [[3, 3], [4, 4], [5, 5], [6, 6]]
    (branch,) = differing
    assert (branch["ends"], branch["agents"]) == ([6, 6], ["main", "main"])
    assert (branch["message"]["index"], branch["message"]["roles"]) == (4, ["assistant", "assistant"])
    assert "-Seven." in branch["message"]["diff"]
    assert "+Still seven." in branch["message"]["diff"]
    ids = [
        [
            token["id"]
            for token in json.loads(ask("tokens", recorded.path, name, "--call", 6, "--json").stdout)[0][
                "tokens"
            ]
        ]
        for name in recorded.rollouts
    ]
    position = branch["token"]["position"]
    assert branch["token"]["lengths"] == [len(ids[0]), len(ids[1])]
    assert ids[0][:position] == ids[1][:position]
    assert [ids[0][position], ids[1][position]] == branch["token"]["ids"]
    assert branch["token"]["calls"] == [6, 6]


def test_the_difference_for_people(recorded, ask):
    said = ask("diff", recorded.path, *recorded.rollouts, status=1).output
    assert "Branch to #6 main | #6 main" in said
    assert "message 4 (assistant | assistant)" in said
    assert "sampled by #6" in said
