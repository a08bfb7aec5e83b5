"""What the benchmark with SmolLM2 makes of its parts: shots, run file, phases that are run once, remarks
and verdict.
"""

import json
import re
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import Environment

from benchmarks import smollm2
from environments.one_liners import OneLiners
from environments.one_liners.tasks import words
from harnessgym.config import load_config
from harnessgym.registry import load
from harnessgym.run_config.run import RunConfig

RUN = load_config(RunConfig, Path(__file__).parents[2] / "benchmarks/smollm2.toml")
MINI = yaml.safe_load(RUN.harnesses[0].settings["config"])
SAID = st.text(st.characters(exclude_characters="<|>", codec="utf-8"), min_size=1)
GOOD = {
    "start": {"mean": 0.2, "low": 0.15, "high": 0.25},
    "longest_prompt": 90,
    "wall_s": {"training": 1500.0, "evaluation": 600.0},
    "tasks": 256,
    "begun": {"training": 1, "evaluation": 1},
}


def rendered(shots: list[tuple[str, str]], messages: list[dict[str, str]]) -> str:
    template = Environment(autoescape=False).from_string(smollm2.template(shots))
    return template.render(messages=messages, tools=None, add_generation_prompt=True)


@settings(max_examples=25)
@given(st.lists(st.tuples(SAID, SAID), max_size=3), SAID, SAID)
def test_shots_are_turns_between_the_system_prompt_and_the_task(
    shots: list[tuple[str, str]], system: str, task: str
) -> None:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": task}]
    turns = re.findall(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>\n", rendered(shots, messages), re.DOTALL)
    shown = [turn for question, answer in shots for turn in (("user", question), ("assistant", answer))]
    assert turns == [("system", system), *shown, ("user", task)]


@pytest.mark.parametrize("split", ["train", "test"])
def test_no_prompt_can_have_more_tokens_than_it_may(split: str) -> None:
    """A token stands for one character at least, and a control token for its name."""
    agent = MINI["agent"]
    for task in OneLiners().tasks(split):  # type: ignore[arg-type]
        asked = agent["instance_template"].replace("{{task}}", task.instruction)
        messages = [
            {"role": "system", "content": agent["system_template"]},
            {"role": "user", "content": asked},
        ]
        prompt = rendered(list(smollm2.SHOTS), messages)
        assert len(re.sub(r"<\|\w+\|>", "|", prompt)) <= 400


def test_shots_show_no_word_of_either_split() -> None:
    shown = set(re.findall(r"\w+", " ".join(word for shot in smollm2.SHOTS for word in shot)))
    assert not shown & {*words("train"), *words("test")}


def test_the_run_file_trains_an_agent_that_acts_once() -> None:
    harness = load("harness", RUN.harnesses[0].type)
    harness.settings(**RUN.harnesses[0].settings)
    assert (MINI["agent"]["step_limit"], MINI["model"]["model_class"]) == (1, "litellm_textbased")
    assert (RUN.trainer.group_size, RUN.trainer.max_staleness, RUN.sandbox.fallback) == (8, 1, "")
    assert load("task_set", RUN.tasks.set)().tasks("train")


@pytest.mark.parametrize(
    ("said", "command"),
    [
        ("rm a.txt", "rm a.txt"),
        ("\n rm a.txt \nand more", "rm a.txt"),
        ("```bash\nrm a.txt\n```", "rm a.txt"),
        ("```\nrm a.txt\n```\n```\nls\n```", "rm a.txt"),
    ],
)
def test_the_first_line_is_the_command(said: str, command: str) -> None:
    assert [found.strip() for found in re.findall(MINI["model"]["action_regex"], said, re.DOTALL)] == [
        command
    ]


def test_the_policy_folder_has_the_weights_and_its_own_template(tmp_path: Path) -> None:
    shipped = Path("environments/lookup/policy").resolve()
    for _ in range(2):
        smollm2.prepare(tmp_path / "policy", shipped)
    assert (tmp_path / "policy/model.safetensors").resolve() == shipped / "model.safetensors"
    assert "letter.txt" in (tmp_path / "policy/chat_template.jinja").read_text()
    assert "letter.txt" not in (shipped / "chat_template.jinja").read_text()


def test_a_phase_that_has_ended_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smollm2.timed(tmp_path, "training", "--help")
    first = json.loads((tmp_path / "phases.json").read_text())["training"]
    assert first["ended"]
    assert first["seconds"] > 0
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    smollm2.timed(tmp_path, "training", "--help")
    with pytest.raises(SystemExit, match="--fresh"):
        smollm2.timed(tmp_path, "training", "doctor")
    with pytest.raises(FileNotFoundError):
        smollm2.timed(tmp_path, "evaluation", "--help")
    assert not json.loads((tmp_path / "phases.json").read_text())["evaluation"]["ended"]


def test_nothing_is_remarked_on_a_run_as_it_should_be() -> None:
    assert smollm2.remarks(GOOD) == []


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("begun", {"training": 2, "evaluation": 1}, "interrupted and gone on: training"),
        ("start", {"mean": 0.14}, "before training"),
        ("start", {"mean": 0.41}, "before training"),
        ("wall_s", {"training": 3000.0, "evaluation": 601.0}, "60 minutes"),
        ("tasks", 199, "only 199"),
    ],
)
def test_what_was_asked_and_does_not_hold_is_said(name: str, value: object, said: str) -> None:
    (remark,) = smollm2.remarks(GOOD | {name: value})
    assert said in remark


@pytest.mark.parametrize(
    ("verdict", "shuffled", "holds"),
    [
        ("better", False, True),
        ("no improvement shown", False, False),
        ("better", True, False),
        ("worse", True, True),
    ],
)
def test_a_seed_must_improve_and_a_control_must_not(verdict: str, shuffled: bool, holds: bool) -> None:
    assert smollm2.as_claimed({"verdict": verdict, "reward_shuffle": shuffled}) is holds


def test_arms_have_folders_of_their_own() -> None:
    arms = [
        smollm2.Arm("seed 0", 0, shuffled=False),
        smollm2.Arm("shuffled rewards, seed 0", 0, shuffled=True),
    ]
    assert [arm.folder for arm in arms] == ["seed-0", "shuffled-rewards-seed-0"]
