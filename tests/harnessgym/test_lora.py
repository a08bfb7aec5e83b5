"""Settings of LoRA: what is taken, and what is refused with the reason."""

import pytest

from harnessgym.config import validate
from harnessgym.errors import ConfigError
from harnessgym.run_config.trainer import PROJECTIONS, LoraSection


def section(**given):
    return validate(LoraSection, given, "[trainer.lora]")


def test_without_a_rank_adapters_are_off():
    assert not section().on
    assert section(rank=1).on


def test_targets_are_named_or_all_and_keep_the_order_of_the_model():
    assert section(rank=4).layers == PROJECTIONS
    assert section(rank=4, targets=["v_proj", "q_proj"]).layers == ("q_proj", "v_proj")
    stored = section(rank=4, targets=["v_proj"]).model_dump(mode="json")
    assert section(**stored) == section(rank=4, targets=["v_proj"])
    assert section(**section().model_dump(mode="json")) == section()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"rank": 4, "dropout": 0.1}, "sample without dropout"),
        ({"rank": -1}, "rank"),
        ({"rank": 4, "alpha": 0}, "alpha"),
        ({"rank": 4, "targets": ["qkv_proj"]}, "targets"),
        ({"rank": 4, "targets": "all"}, "targets"),
        ({"rank": 4, "targets": []}, "no layer would be trained"),
        ({"alpha": 16}, "adapters need a rank"),
        ({"targets": ["q_proj"]}, "adapters need a rank"),
        ({"targets": "all-linear"}, "adapters need a rank"),
        ({"alpha": 32}, "adapters need a rank"),
        ({"rank": 4, "bias": "all"}, "bias"),
    ],
)
def test_what_means_nothing_is_refused(given, words):
    with pytest.raises(ConfigError, match=words):
        section(**given)
