"""Losses, corrections and all else of an update by name; combinations that mean nothing, refused with the
reason.
"""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from pydantic import Field, ValidationError

from harnessgym.config import validate
from harnessgym.errors import ConfigError
from tests.trainers.recorded_run import make_run, save_model
from trainers.corrections.settings import CorrectionSettings, IcePop, Tis
from trainers.losses.settings import Dapo, Gspo, LossSettings
from trainers.update_settings import EssRule, Ewma, UpdateSettings, settings_of


def checked(**given):
    return validate(UpdateSettings, given, "[trainer.update]")


class Squared(LossSettings):
    """A loss that another package could have."""

    function = "their.module:squared"
    power: float = Field(2.0, gt=0)


def test_the_defaults_are_dapos_range_against_the_policy_that_sampled():
    settings = UpdateSettings()
    assert settings.loss == Dapo(name="dapo", clip_low=0.2, clip_high=0.28)
    assert (settings.proximal, settings.weights, settings.whole_rollouts) == ("behaviour", (), False)
    assert (settings.lr_rule, settings.baseline, settings.normalisation) == ("constant", "none", "token")


def test_another_proximal_policy_is_weighted_unless_that_is_said_otherwise():
    assert checked(proximal="current").weights == (Tis(name="tis", cap=2.0),)
    assert checked(proximal="snapshot", corrections=[]).weights == ()


def test_names_and_tables_say_the_same():
    short = """
    loss = "gspo"
    proximal = "ewma"
    corrections = ["icepop"]
    lr_rule = "ess"
    """
    long = """
    [loss]
    name = "gspo"
    clip_low = 3e-4
    [proximal]
    name = "ewma"
    [[corrections]]
    name = "icepop"
    high = 5.0
    [lr_rule]
    name = "ess"
    """
    settings = checked(**tomllib.loads(short))
    assert settings == checked(**tomllib.loads(long))
    assert settings.loss == Gspo(name="gspo")
    assert settings.weights == (IcePop(name="icepop"),)
    assert (settings.proximal, settings.lr_rule) == (Ewma(), EssRule())
    assert checked(proximal={"name": "snapshot"}).proximal == "snapshot"


def test_settings_can_be_written_down_and_read_again():
    settings = checked(
        loss={"name": "gspo", "clip_low": 0.1}, proximal="snapshot", corrections=[{"name": "mis", "cap": 4}]
    )
    again = validate(UpdateSettings, settings.model_dump(mode="json"), "the same")
    assert (again.loss, again.corrections) == (settings.loss, settings.corrections)


def test_a_plugin_is_named_by_where_it_is():
    name = f"{__name__}:Squared"
    assert checked(loss={"name": name, "power": 3.0}).loss == Squared(name=name, power=3.0)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"loss": "gpso"}, "no loss named 'gpso'. Did you mean 'gspo'"),
        ({"loss": {"name": "ppo", "clip": 0.1}}, "clip"),
        ({"loss": {"clip_low": 0.1}}, "table with a name"),
        ({"loss": "trainers.losses.clipped:ppo"}, "not a loss"),
        ({"loss": "tis"}, "no loss named 'tis'"),
        ({"loss": {"name": "cispo", "cap": 0}}, "cap"),
        ({"corrections": "tis"}, "list"),
        ({"corrections": ["tiz"]}, "no correction named 'tiz'"),
        ({"corrections": [{"name": "icepop", "low": 5.0, "high": 0.5}]}, "band is empty"),
        ({"proximal": "nobody"}, "proximal"),
        ({"normalisation": "constant"}, r"length = 4096"),
        ({"normalisation": {"name": "constant"}}, r"length = 4096"),
        ({"normalisation": "sample"}, "normalisation"),
        ({"proximal": {"name": "ewma", "window": 0}}, "window"),
        ({"lr_rule": {"name": "ess", "target": 1.5}}, "target"),
        ({"clip_low": 0.1}, "no such setting"),
    ],
)
def test_what_there_is_not_is_refused(given, words):
    with pytest.raises(ConfigError, match=words):
        checked(**given)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"corrections": ["tis"]}, "1 everywhere"),
        ({"corrections": ["icepop"]}, "leave it out, or set proximal"),
        ({"corrections": ["geometric"]}, "against = 'current'"),
        ({"proximal": "current", "corrections": ["tis", "icepop"]}, "its square"),
        ({"loss": "gspo", "proximal": "current"}, "loss = 'reinforce'"),
        ({"loss": "cispo", "proximal": "current"}, "1 everywhere"),
        ({"loss": "minpro", "proximal": "current"}, "1 everywhere"),
        (
            {"loss": "minpro", "proximal": "snapshot", "corrections": [{"name": "mis", "level": "sequence"}]},
            "a second time",
        ),
        ({"loss": "minpro", "corrections": ["opsm"]}, "a second time"),
        ({"loss": "decoupled_ppo"}, "it equals loss = 'ppo'"),
        ({"loss": "decoupled_ppo", "proximal": "current", "corrections": ["mis"]}, "1 everywhere"),
        ({"loss": "decoupled_ppo", "proximal": "snapshot", "corrections": ["opsm"]}, "as if on-policy"),
        ({"loss": "ppo", "proximal": "current", "corrections": ["geometric"]}, "as if on-policy"),
        ({"proximal": "current", "corrections": []}, "loss = 'reinforce' if this is intended"),
        ({"loss": "dppo_tv", "proximal": "current"}, "proximal = 'behaviour'"),
        ({"loss": "reinforce"}, "only corrections weight off-policy"),
        ({"loss": "reinforce", "proximal": "ewma"}, "proximal = 'current'"),
        ({"loss": "reinforce", "lr_rule": "ess", "proximal": "current", "corrections": []}, "there are none"),
        (
            {"loss": "reinforce", "lr_rule": "ess", "proximal": "current", "corrections": ["geometric"]},
            "there are none",
        ),
        ({"baseline": "minimum_variance"}, "loss = 'reinforce'"),
        ({"baseline": "minimum_variance", "loss": "gspo"}, "does not have"),
        (
            {
                "baseline": "minimum_variance",
                "loss": "reinforce",
                "proximal": "current",
                "corrections": ["tis", "opsm"],
            },
            "sign of the advantage",
        ),
        ({"proximal": "ewma"}, "none of them masks"),
    ],
)
def test_what_means_nothing_is_refused_with_the_reason(given, words):
    with pytest.raises(ConfigError, match=words):
        checked(**given)


def run(tmp_path, **trainer):
    return make_run(tmp_path / "run", save_model(tmp_path / "model"), **trainer).config()


VCPO = {"loss": "reinforce", "proximal": "current", "baseline": "minimum_variance"}


@pytest.mark.parametrize(
    ("trainer", "words"),
    [
        ({"max_staleness": 0, "update": {"proximal": "snapshot"}}, "is 'current'"),
        ({"update": {"proximal": "recompute"}}, "raise epochs or mini_batches"),
        ({"stream": True, "update": {"epochs": 2}}, "several updates need the whole batch"),
        ({"max_staleness": 0, "update": {"proximal": "loglinear"}}, "raise max_staleness"),
        (
            {"max_staleness": 3, "publish": {"keep": 3}, "update": {"proximal": "snapshot"}},
            "publish.keep to 4",
        ),
        ({"update": VCPO}, "trainer.advantage = 'reward'"),
        ({"update": VCPO, "advantage": "reward", "processes": 2}, "gradient of each rollout"),
        ({"update": VCPO, "advantage": "reward", "steps_kept": 0.5}, "set filter.steps_kept = 1"),
    ],
)
def test_what_does_not_fit_the_run_is_refused_with_the_reason(tmp_path, trainer, words):
    with pytest.raises(ConfigError, match=words):
        settings_of(run(tmp_path, **trainer))


def test_settings_of_a_run_have_its_temperature_and_its_window(tmp_path):
    settings = settings_of(
        run(tmp_path, max_staleness=3, update={"proximal": "ewma", "corrections": ["mis"]})
    )
    assert settings.temperature == 1.0
    assert settings.proximal == Ewma(window=3)
    assert settings.proximal.beta == 3 / 5
    assert settings_of(run(tmp_path / "b", update=VCPO, advantage="reward")).baseline == "minimum_variance"
    assert settings_of(run(tmp_path / "c", update={"temperature": 1.0})).temperature == 1.0


def test_a_temperature_that_is_not_the_rollouts_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"temperature = 0\.5 is not the one"):
        settings_of(run(tmp_path, update={"temperature": 0.5}))


def test_a_correction_is_named_once():
    with pytest.raises(ConfigError, match="opsm 2 times"):
        validate(UpdateSettings, {"proximal": "current", "corrections": ["tis", "opsm", "opsm"]}, "the test")


def test_checking_settings_needs_no_torch():
    code = (
        "import sys; from trainers.update_settings import UpdateSettings; UpdateSettings(loss='gspo', "
        "proximal='snapshot', "
        "corrections=['icepop']); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_parts_keep_to_their_kind():
    with pytest.raises(ConfigError, match="must be a subclass of"):
        checked(proximal="current", corrections=["trainers.losses.settings:Gspo"])
    assert issubclass(Tis, CorrectionSettings)
    with pytest.raises(ValidationError):
        Tis(cap=-1)


def test_the_guide_has_every_setting_of_an_update_with_its_default():
    page = (Path(__file__).parents[2] / "docs/running.md").read_text()
    table = page.partition("| in `[trainer.update]` | default | |\n|---|---|---|\n")[2].partition("\n\n")[0]
    rows = [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in table.splitlines()]
    told = {name: default for name, default, meaning in rows if meaning}
    assert {*told} == {
        *UpdateSettings.model_fields,
        *(f"lr_rule.{name}" for name in EssRule.model_fields if name != "name"),
    }
    plain = {
        name: getattr(UpdateSettings(), name) for name in UpdateSettings.model_fields if name != "corrections"
    }
    known = (
        plain | {"loss": UpdateSettings().loss.name} | {f"lr_rule.{name}": value for name, value in EssRule()}
    )
    shown = {
        name: None if default == "none" else json.loads(default)
        for name, default in told.items()
        if name != "corrections"
    }
    assert shown == {name: value for name, value in known.items() if name != "lr_rule.name"}
