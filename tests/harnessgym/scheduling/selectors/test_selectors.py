"""What every selector promises, whatever it prefers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harnessgym.errors import ConfigError
from harnessgym.registry import REGISTRY, names
from harnessgym.scheduling.selection import Pick, Visit, make_selector
from tests.harnessgym.scheduling.selectors.visiting import play, pool, visit

NAMES = names("selector")
CHOOSE_SIZES = ("dars", "dart", "gdro", "xrpo")
HISTORY = st.lists(
    st.builds(
        lambda task, rewards, size, version, is_open, fresh: Visit(
            f"t{task}", max(size, len(rewards), 2), version, () if is_open else tuple(rewards), is_open, fresh
        ),
        st.integers(0, 5),
        st.lists(st.sampled_from([0.0, 1.0, 0.3, -2.0, 7.5]), max_size=8),
        st.integers(2, 16),
        st.integers(0, 9),
        st.booleans(),
        st.booleans(),
    ),
    max_size=12,
)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=40, deadline=None)
@given(visits=HISTORY, wanted=st.integers(0, 9), group_size=st.integers(2, 9), per_step=st.integers(1, 5))
def test_any_history_gets_as_many_groups_as_were_asked_for_and_the_same_again(
    name, visits, wanted, group_size, per_step
):
    """Rewards of any size, tasks that have left the set, groups that nobody graded: all may be in a store."""
    own = pool(4, group_size, per_step)
    number = sum(item.fresh for item in visits)
    first, again = (make_selector(name, {}, own).choose(number, wanted, list(visits)) for _ in range(2))
    assert first == again
    assert len(first) == wanted
    assert {pick.task for pick in first} <= set(own.tasks)
    assert all(2 <= pick.rollouts <= 64 for pick in first)


@pytest.mark.parametrize("name", NAMES)
def test_another_seed_selects_otherwise(name):
    def chosen(seed):
        return [pick.task for pick in make_selector(name, {}, pool(32, seed=seed)).choose(0, 8, [])]

    assert chosen(0) == chosen(0)
    assert chosen(0) != chosen(1)


@pytest.mark.parametrize("name", NAMES)
def test_a_task_whose_group_is_open_waits_for_the_others(name):
    own = pool(6)
    selector = make_selector(name, {}, own)
    picks = [*selector.choose(0, 2, [])]
    visits = [Visit(pick.task, pick.rollouts, 0, open=True) for pick in picks]
    picks += selector.choose(2, 4, visits)
    assert sorted(pick.task for pick in picks) == sorted(own.tasks)


@pytest.mark.parametrize("name", ["gdro", "xrpo"])
@pytest.mark.parametrize("at_once", [1, 3, 4, 7])
def test_an_exact_budget_is_spent_exactly(name, at_once):
    """Sizes differ, and every batch's worth of groups has the rollouts that it would have without."""
    visits = play(name, np.linspace(0.02, 0.98, 12), 48, at_once=at_once, open_groups=3)
    sizes = [item.size for item in visits]
    assert len(set(sizes)) > 2
    assert [sum(sizes[first : first + 4]) for first in range(0, 48, 4)] == [32] * 12


def test_only_groups_that_were_chosen_count_towards_a_budget():
    """A group that replaces another spends what that one should have."""
    own = pool(6, 8, 4)
    visits = [visit("t0", 4, 12), visit("t1", 4, 12), visit("t1", 2, 12, fresh=False)]
    for name in ("gdro", "xrpo"):
        assert sum(pick.rollouts for pick in make_selector(name, {}, own).choose(2, 2, visits)) == 8


def test_a_group_without_rollouts_is_refused_where_it_is_made():
    assert Pick("t", 1).rollouts == 1
    with pytest.raises(ValueError, match="needs a rollout; the selector wants 0 of 't'"):
        Pick("t", 0)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=20, deadline=None)
@given(visits=HISTORY, wanted=st.integers(0, 9), per_step=st.integers(1, 5))
def test_where_a_group_is_one_rollout_it_stays_one_or_the_selector_is_refused(name, visits, wanted, per_step):
    own = pool(4, 1, per_step)
    if name in CHOOSE_SIZES:
        with pytest.raises(ConfigError, match=rf"(?s)selector {name} chooses group sizes.*raise group_size"):
            make_selector(name, {}, own)
    else:
        picks = make_selector(name, {}, own).choose(0, wanted, list(visits))
        assert [pick.rollouts for pick in picks] == [1] * wanted


def test_wrong_names_and_settings_are_told():
    with pytest.raises(ConfigError, match=r"no selector named 'vane'.*Did you mean 'vade'"):
        make_selector("vane", {}, pool())
    with pytest.raises(ConfigError, match=r"selector 'vade' has 1 wrong setting.*\n.*visit_decay"):
        make_selector("vade", {"visit_decay": 2}, pool())
    full = REGISTRY["selector"]["uniform"]
    assert len(make_selector(full, {}, pool()).choose(0, 3, [])) == 3


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("xrpo", {"base": 50}, "base = 50 is above trainer.group_size = 8"),
        ("xrpo", {"most": 3}, "most = 3 is below trainer.group_size = 8"),
        ("dars", {"most": 4}, "most = 4 is below"),
        ("dart", {"least": 20}, "least = 20 is above"),
        ("gdro", {"sizes": [16]}, "the least of sizes = 16 is above"),
        ("gdro", {"sizes": [2, 4]}, "the greatest of sizes = 4 is below"),
        ("gdro", {"sizes": [1, 9]}, "sizes"),
    ],
)
def test_sizes_that_the_usual_one_does_not_fit_are_refused(name, settings, said):
    with pytest.raises(ConfigError, match=said):
        make_selector(name, settings, pool(4, 8))


def test_dars_does_not_shrink_groups_that_are_larger_than_its_own_bound():
    with pytest.raises(ConfigError, match=r"most = 32 is below trainer\.group_size = 40"):
        make_selector("dars", {}, pool(4, 40))
