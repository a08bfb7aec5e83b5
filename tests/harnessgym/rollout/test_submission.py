"""The body of a request for rollouts: what is accepted, what it becomes, and what is refused."""

from dataclasses import fields

import pytest
from pydantic import ValidationError

from harnessgym.config import validate
from harnessgym.errors import ConfigError, TaskError
from harnessgym.rollout.submission import (
    InlineTask,
    LimitsTable,
    NamedTask,
    Submission,
    SubmissionSampling,
)
from harnessgym.task import Limits, Setup, Task

NAMED = {"set": "lookup", "id": "lookup/train/0"}
INLINE = {"id": "mine/1", "instruction": "Answer.", "grader": "checks"}


def submission(**fields_):
    return validate(Submission, {"task": NAMED} | fields_, "the request")


def inline(**fields_):
    return submission(task=INLINE | fields_).task


def test_a_request_needs_no_more_than_a_task():
    request = submission()
    assert request.task == NamedTask(set="lookup", id="lookup/train/0")
    assert (request.harness, request.samples, request.seed, request.group) == (None, 1, 0, None)
    assert request.sampling == SubmissionSampling(temperature=1.0, top_p=1.0, top_k=0, max_tokens=4_096)


@pytest.mark.parametrize(("task", "kind"), [(NAMED, NamedTask), (INLINE, InlineTask)])
def test_a_task_with_a_set_is_a_named_one(task, kind):
    request = submission(task=task)
    assert type(request.task) is kind
    assert Submission.model_validate_json(request.model_dump_json()) == request


def test_a_named_task_is_not_also_given_inline():
    with pytest.raises(ConfigError, match="instruction"):
        submission(task=NAMED | INLINE)


def test_an_inline_task_has_the_defaults_of_a_task():
    assert inline().task() == Task("mine/1", "Answer.", grader="checks")


def test_an_inline_task_becomes_the_task_that_was_described():
    task = inline(
        split="test",
        seed=7,
        files={"a/b.txt": "ü"},
        image="python:3.13",
        limits={"wall_s": 9.5, "turns": 4, "tokens": 100},
        needs=["disk"],
        setup={"run": [["pip", "install", "x"]], "hosts": ["*.pypi.org"], "timeout_s": 30.0},
        artifacts=["out"],
        verifier="shared",
        metadata={"answer": [1, None]},
    ).task()
    assert task == Task(
        "mine/1",
        "Answer.",
        "test",
        7,
        {"a/b.txt": "ü"},
        "python:3.13",
        Limits(wall_s=9.5, turns=4, tokens=100),
        needs=frozenset({"disk"}),
        setup=Setup((("pip", "install", "x"),), ("*.pypi.org",), 30.0),
        artifacts=("out",),
        grader="checks",
        verifier="shared",
        metadata={"answer": [1, None]},
    )


@pytest.mark.parametrize("path", ["/etc/passwd", "../outside", "a/../../b"])
def test_files_outside_the_workspace_are_refused(path):
    with pytest.raises(TaskError, match="must be a relative path inside the workspace"):
        inline(files={path: "x"}).task()


def test_limits_are_those_of_tasks():
    assert set(LimitsTable.model_fields) == {each.name for each in fields(Limits)}
    assert Limits(**LimitsTable().model_dump()) == Limits()


@pytest.mark.parametrize("name", [each.name for each in fields(Limits)])
@pytest.mark.parametrize("value", [0, -1])
def test_a_limit_is_positive(name, value):
    with pytest.raises(ConfigError, match=f"limits.{name}"):
        inline(limits={name: value})


def test_no_limit_on_tokens_is_none():
    assert inline(limits={"tokens": None}).task().limits.tokens is None
    with pytest.raises(ConfigError, match=r"limits\.turns"):
        inline(limits={"turns": None})


@pytest.mark.parametrize("value", ["Infinity", "-Infinity", "NaN"])
@pytest.mark.parametrize(
    "body",
    [
        '{"task": {"set": "s", "id": "t"}, "sampling": {"temperature": VALUE}}',
        '{"task": {"set": "s", "id": "t"}, "sampling": {"top_p": VALUE}}',
        '{"task": {"id": "t", "instruction": "", "grader": "g", "limits": {"wall_s": VALUE}}}',
        '{"task": {"id": "t", "instruction": "", "grader": "g", "limits": {"cpus": VALUE}}}',
        '{"task": {"id": "t", "instruction": "", "grader": "g", "setup": {"timeout_s": VALUE}}}',
    ],
)
def test_numbers_that_json_does_not_have_are_refused(body, value):
    Submission.model_validate_json(body.replace("VALUE", "0.5"))
    with pytest.raises(ValidationError):
        Submission.model_validate_json(body.replace("VALUE", value))


@pytest.mark.parametrize("name", ["mine", "Mine/1", "0.a_b-c/d", "a" * 200])
def test_a_name_is_of_letters_digits_and_four_marks(name):
    assert inline(id=name).id == name
    assert submission(group=name).group == name


@pytest.mark.parametrize("name", ["", ".hidden", "/etc", "-x", "a b", "ü", "a\n", "a" * 201, "a:b"])
def test_other_names_are_refused(name):
    with pytest.raises(ConfigError, match=r"task\.inline\.id|id"):
        inline(id=name)
    with pytest.raises(ConfigError, match="group"):
        submission(group=name)


@pytest.mark.parametrize("samples", [1, 1_024])
def test_a_group_has_up_to_a_thousand_rollouts(samples):
    assert submission(samples=samples).samples == samples


@pytest.mark.parametrize(
    ("problem", "key"),
    [
        ({"samples": 0}, "samples"),
        ({"samples": 1_025}, "samples"),
        ({"sampling": {"temperature": -0.1}}, "temperature"),
        ({"sampling": {"top_p": 0.0}}, "top_p"),
        ({"sampling": {"top_p": 1.1}}, "top_p"),
        ({"sampling": {"top_k": -1}}, "top_k"),
        ({"sampling": {"max_tokens": 0}}, "max_tokens"),
        ({"sampling": {"min_p": 0.1}}, "min_p"),
        ({"sample": 2}, "sample"),
        ({"task": {"set": "lookup"}}, "id"),
        ({"task": {"id": "mine"}}, "instruction"),
        ({"task": INLINE | {"split": "dev"}}, "split"),
        ({"task": INLINE | {"verifier": "none"}}, "verifier"),
        ({"task": INLINE | {"solution": {}}}, "solution"),
        ({"task": "lookup/train/0"}, "task"),
    ],
)
def test_a_problem_names_its_key(problem, key):
    with pytest.raises(ConfigError) as caught:
        submission(**problem)
    assert key in str(caught.value)
