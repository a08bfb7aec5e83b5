"""What selectors of sizes refuse of a run's settings."""

import pytest

from harnessgym.errors import ConfigError
from harnessgym.scheduling.selection import Pick, make_selector
from harnessgym.scheduling.selectors.sizes import needs_groups, within
from tests.harnessgym.scheduling.selectors.visiting import pool, visit


@pytest.mark.parametrize("selector", ["dars", "dart", "xrpo", "gdro"])
def test_groups_of_one_rollout_are_refused(selector):
    with pytest.raises(ConfigError, match=rf"The selector {selector} .*trainer\.group_size = 1"):
        make_selector(selector, {}, pool(group_size=1))


@pytest.mark.parametrize("selector", ["uniform", "vade", "insight"])
def test_selectors_of_tasks_take_groups_of_one(selector):
    (pick,) = make_selector(selector, {}, pool(group_size=1)).choose(0, 1, [])
    assert pick.rollouts == 1


def test_two_rollouts_are_a_group():
    needs_groups("dars", pool(group_size=2))


@pytest.mark.parametrize("size", [4, 5, 6])
def test_a_size_within_its_limits_is_returned(size):
    assert within("xrpo", "base", size, least=4, most=6) == size


def test_limits_are_named_with_what_to_change():
    with pytest.raises(ConfigError, match=r"base = 3 is below trainer\.group_size = 4: raise it, or lower"):
        within("xrpo", "base", 3, least=4)
    with pytest.raises(ConfigError, match=r"most = 7 is above trainer\.group_size = 6: lower it, or raise"):
        within("xrpo", "most", 7, most=6)
    assert within("xrpo", "most", 7) == 7


@pytest.mark.parametrize(
    ("selector", "settings"),
    [
        ("dars", {"most": 7}),
        ("dart", {"least": 9}),
        ("xrpo", {"base": 9}),
        ("xrpo", {"most": 7}),
        ("vade", {"visit_decay": 0}),
        ("uniform", {"rate": 1}),
        ("insight", {"candidates": 0}),
    ],
)
def test_settings_that_do_not_fit_are_refused(selector, settings):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        make_selector(selector, settings, pool(group_size=8))


def test_a_pick_needs_a_rollout():
    with pytest.raises(ValueError, match="the selector wants 0 of 't'"):
        Pick("t", 0)


@pytest.mark.parametrize("selector", ["uniform", "vade", "insight", "dars", "dart", "xrpo", "gdro"])
def test_a_choice_depends_on_its_arguments_only(selector):
    visits = [visit("t0", 8), visit("t1", 0), visit("t2", 3)]
    first = make_selector(selector, {}, pool()).choose(3, 5, visits)
    again = make_selector(selector, {}, pool())
    again.choose(0, 2, [])
    assert again.choose(3, 5, visits) == first
    assert len(first) == 5
