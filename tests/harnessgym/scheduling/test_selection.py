"""Selectors are made by name, and an unknown one lists what there is."""

import pytest

from harnessgym.errors import ConfigError
from harnessgym.scheduling.selection import make_selector
from harnessgym.scheduling.selectors.uniform import Uniform
from tests.harnessgym.scheduling.selectors.visiting import pool


def test_a_selector_is_made_by_name_or_by_class():
    assert isinstance(make_selector("uniform", {}, pool()), Uniform)
    path = "harnessgym.scheduling.selectors.uniform:Uniform"
    assert isinstance(make_selector(path, {}, pool()), Uniform)


def test_an_unknown_selector_is_refused():
    with pytest.raises(ConfigError, match="vade"):
        make_selector("vabe", {}, pool())


def test_an_unknown_setting_names_the_selector():
    with pytest.raises(ConfigError, match="selector 'vade'"):
        make_selector("vade", {"decay": 1}, pool())
