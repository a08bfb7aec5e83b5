import json
from pathlib import Path
from typing import Literal

import pytest
from pydantic import Field, model_validator

from harnessgym.config import Config, load_config, validate
from harnessgym.config.setting_tree import meanings
from harnessgym.errors import ConfigError
from harnessgym.run_config.run import RunConfig

ROOT = Path(__file__).parents[3]


class Inner(Config):
    steps: int = 1


class Outer(Config):
    inner: Inner = Inner()
    items: tuple[Inner, ...] = ()
    name: str = "x"


def test_file_and_overrides(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('name = "a"\n[inner]\nsteps = 2\n')
    assert load_config(Outer, path) == Outer(name="a", inner=Inner(steps=2))
    assert load_config(Outer, path, ["--inner.steps", "5", "--name=b c"]) == Outer(
        name="b c", inner=Inner(steps=5)
    )


def test_json_by_suffix(tmp_path):
    path = tmp_path / "settings.json"
    path.write_text(json.dumps({"name": "j"}))
    assert load_config(Outer, path).name == "j"


@pytest.mark.parametrize(
    ("text", "overrides", "said"),
    [
        ("[inner]\nstep = 2\n", [], "inner.step: there is no such setting. Did you mean 'steps'?"),
        ("nmae = 'a'\n", [], "Did you mean 'name'?"),
        ("[[items]]\nstpes = 2\n", [], "Did you mean 'steps'?"),
        ("zzzz = 1\n", [], "Known: inner, items, name."),
        ("[inner]\nsteps = 'many'\n", [], "inner.steps: Input should be a valid integer"),
        ("[inner\n", [], "cannot be read"),
        ("", ["--inner.steps"], "has no value"),
        ("", ["steps", "3"], "Cannot read the option 'steps'"),
        ("name = 'a'\n", ["--name.x", "3"], "'name' is a value, not a section"),
    ],
)
def test_wrong_settings_name_the_key_and_the_remedy(tmp_path, text, overrides, said):
    path = tmp_path / "run.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(Outer, path, overrides)
    assert said in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match="There is no config file"):
        load_config(Outer, tmp_path / "none.toml")


def test_all_problems_are_listed_at_once(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("nmae = 1\n[inner]\nstep = 1\n")
    with pytest.raises(ConfigError, match="2 wrong settings"):
        load_config(Outer, path)


def test_every_field_of_a_run_is_documented():
    def undocumented(model, prefix=""):
        for name, field in model.model_fields.items():
            inner = field.annotation
            if isinstance(inner, type) and issubclass(inner, Config):
                yield from undocumented(inner, f"{prefix}{name}.")
            elif not meanings(model).get(name):
                yield prefix + name

    assert set(undocumented(RunConfig)) <= {"policy", "tasks", "harnesses"}


RUN = {"name": "x", "policy": {"path": "p"}, "tasks": {"set": "lookup"}, "harnesses": [{"name": "a"}]}


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        ({"workers": 0}, "engine.workers: no engine serves policy. Raise engine.workers"),
        (
            {"workers": 0, "outside": [{"kind": "vllm", "url": "http://a:1", "policy": "b"}]},
            "which the run does not have",
        ),
        (
            {"outside": [{"kind": "vllm", "url": "http://a:1"}] * 2},
            "engine: outside has an engine twice: http://a:1",
        ),
        ({"outside": [{"kind": "vllm", "url": "a:1"}]}, "engine.outside.0.url"),
        ({"outside": [{"kind": "vllm", "url": "http://me:secret@a:1"}]}, "engine.outside.0.url"),
        ({"outside": [{"kind": "tgi", "url": "http://a:1"}]}, "engine.outside.0.kind"),
    ],
)
def test_engines_that_cannot_be_are_refused(engine, said):
    with pytest.raises(ConfigError, match=said):
        validate(RunConfig, RUN | {"engine": engine}, "the test")


def test_an_attention_without_gradients_is_refused():
    flex = {"policy": {"path": "p", "attention": "flex"}}
    with pytest.raises(ConfigError, match="has no gradients of it on CPUs"):
        validate(RunConfig, RUN | flex, "the test")
    assert validate(RunConfig, RUN | flex | {"trainer": {"device": "cuda"}}, "the test")


def test_several_policies_train_no_group_again():
    replay, several = {"replay": {"reuse": 1}}, {"policies": [{"name": "b", "path": "p"}]}
    assert validate(RunConfig, RUN | replay, "the test")
    with pytest.raises(ConfigError, match=r"with several policies a group belongs to one batch.*Set it to 0"):
        validate(RunConfig, RUN | replay | several, "the test")
    with pytest.raises(
        ConfigError, match=r"replay\.success_pool needs trainer\.max_staleness above 0, one policy"
    ):
        validate(RunConfig, RUN | {"replay": {"success_pool": 1}} | several, "the test")
    assert validate(
        RunConfig, RUN | {"trainer": {"over_launch": 2, "when_stale": "drop"}} | several, "the test"
    )


def test_dapo_is_uniform_with_refills():
    told = validate(RunConfig, RUN | {"generate": {"selector": "dapo"}}, "the test")
    assert (told.filter.zero_signal, told.filter.refill_batches) == ("refill", 3)
    told = validate(
        RunConfig, RUN | {"generate": {"selector": "dapo"}, "filter": {"refill_batches": 1}}, "the test"
    )
    assert (told.filter.zero_signal, told.filter.refill_batches) == ("refill", 1)
    assert validate(RunConfig, told.model_dump(mode="json"), "the test") == told
    with pytest.raises(ConfigError, match=r"generate\.selector: dapo refills"):
        validate(
            RunConfig,
            RUN | {"generate": {"selector": "dapo"}, "filter": {"zero_signal": "leave_out"}},
            "the test",
        )


def test_two_harnesses_may_not_share_a_name():
    section = {"name": "a"}
    with pytest.raises(ConfigError, match="harnesses: two share a name: a, a"):
        load_config_dict(
            {
                "name": "r",
                "policy": {"path": "p"},
                "tasks": {"set": "lookup"},
                "harnesses": [section, section],
            }
        )


def load_config_dict(raw):
    from harnessgym.config import validate

    return validate(RunConfig, raw, "test")


class Choice(Config):
    name: Literal["ewma"] = "ewma"
    window: int = 1


class Learning(Config):
    lr: float = 1.0
    proximal: Literal["current", "behaviour"] | Choice = "current"


class Training(Config):
    steps: int = 1
    update: Learning = Learning()

    @model_validator(mode="after")
    def _possible(self):
        if self.steps == 13:
            raise ValueError("13 steps bring bad luck: take 12")
        return self


class Job(Config):
    name: str
    training: Training = Training()
    agents: tuple[Inner, ...] = Field((), min_length=1)

    @model_validator(mode="after")
    def _fits(self):
        if self.name == "none":
            raise ValueError("name: 'none' is kept for jobs that do nothing")
        return self


JOB = {"name": "x", "agents": [{}]}


FILE, LINE = "job.json has 1 wrong setting:\n  ", "The command line has 1 wrong setting:\n  "
NOT_A_CHOICE = "Input should be 'current' or 'behaviour' (got 'curent'). Did you mean 'current'?"
NOT_A_NUMBER = "Input should be a valid integer, unable to parse string as an integer"
CHOICE = '{name = "ewma", window = "w"}'


@pytest.mark.parametrize(
    ("overrides", "given", "said"),
    [
        (
            ["--training.lr", "1"],
            {},
            LINE + "--training.lr: there is no such setting. Did you mean 'training.update.lr'?",
        ),
        (
            [],
            {"training": {"lr": 1}},
            FILE + "training.lr: there is no such setting. Did you mean 'training.update.lr'?",
        ),
        (
            ["--trianing.steps", "1"],
            {},
            LINE + "--trianing.steps: there is no such setting. Did you mean 'training.steps'?",
        ),
        (
            ["--training.steps", "x"],
            {"agents": [{"steps": "y"}]},
            (
                f"{FILE}agents.0.steps: {NOT_A_NUMBER} (got 'y').\n{LINE}--training.steps: {NOT_A_NUMBER} "
                "(got "
                "'x')."
            ),
        ),
        (["--name", "none"], {}, LINE + "name: 'none' is kept for jobs that do nothing."),
        ([], {"name": "none"}, FILE + "name: 'none' is kept for jobs that do nothing."),
        (
            ["--training.steps", "13"],
            {"training": {"update": {"lr": 0.5}}},
            LINE + "training: 13 steps bring bad luck: take 12.",
        ),
        ([], {"agents": []}, FILE + "agents: Tuple should have at least 1 item after validation, not 0."),
        (
            [],
            {"agents": [{"stps": 1}]},
            FILE + "agents.0.stps: there is no such setting. Did you mean 'steps'?",
        ),
        (["--training.update.proximal", "curent"], {}, f"{LINE}--training.update.proximal: {NOT_A_CHOICE}"),
        (
            ["--training.update.proximal", CHOICE],
            {},
            f"{LINE}--training.update.proximal.window: {NOT_A_NUMBER} (got 'w').",
        ),
        (
            ["--training", "3"],
            {},
            LINE + "--training: this is a section, not a value (got 3). Known: steps, update.",
        ),
    ],
)
def test_each_problem_is_one_line_with_its_key_and_its_origin(tmp_path, overrides, given, said):
    path = tmp_path / "job.json"
    path.write_text(json.dumps(JOB | given))
    with pytest.raises(ConfigError) as caught:
        load_config(Job, path, overrides)
    assert str(caught.value).replace(str(path), "job.json") == said


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["--trainer.lr", "1"], "--trainer.lr: there is no such setting. Did you mean 'trainer.update.lr'"),
        (["--max_tokens", "1"], "Did you mean 'sampling.max_tokens'"),
        (
            ["--proxy.port", "1"],
            "`harnessgym proxy` has the setting 'port'; a run starts that process itself, and sets it.",
        ),
    ],
)
def test_a_setting_that_is_elsewhere_is_found_there(overrides, said):
    with pytest.raises(ConfigError) as caught:
        load_config(RunConfig, ROOT / "examples/quickstart.toml", overrides)
    assert str(caught.value).startswith("The command line has 1 wrong setting:\n  --")
    assert said in str(caught.value)
