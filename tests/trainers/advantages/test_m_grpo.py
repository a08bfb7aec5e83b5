"""M-GRPO: main agents among themselves, sub-agents among themselves."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainers.advantages.groups import rollout
from trainers.advantages.m_grpo import MGrpo, MGrpoSettings, copies


def team(name, reward, *experts, **fields):
    """A main agent, and a sub-agent with one call for each of its experts' rewards."""
    own = {f"{name}sub{at}": {"expert": expert} for at, expert in enumerate(experts, 1)}
    branches = [[(f"c{at}", "s")] for at in range(len(experts) + 1)]
    return rollout(name, branches, reward, ["", *[f"{name}main"] * len(experts)], agent_rewards=own, **fields)


def test_sub_agents_are_not_judged_by_the_main_agents_baseline():
    group = [team("a", 1.0, 1.0), team("b", 1.0, 0.0), team("c", 0.0)]
    (main_a, sub_a), (main_b, sub_b), (main_c,) = MGrpo(MGrpoSettings(invocations=1))(group)
    assert main_a == main_b == pytest.approx(1 / np.sqrt(2), rel=1e-3)
    assert main_c == pytest.approx(-np.sqrt(2), rel=1e-3)
    assert (sub_a, sub_b) == (pytest.approx(1.0, rel=1e-3), pytest.approx(-1.0, rel=1e-3))  # 0.9 and 0.4


def test_without_rewards_of_their_own_sub_agents_have_the_main_agents():
    group = [team("a", 1.0, 0.0), team("b", 0.0, 0.0)]
    assert [values[1] for values in MGrpo(MGrpoSettings())(group)] == [
        pytest.approx(s, rel=1e-3) for s in (1, -1)
    ]


def test_rollouts_with_more_sub_agents_do_not_outvote_the_others():
    group = [team("a", 0.0, 1.0, 1.0, 1.0, 1.0), team("b", 0.0, 0.0)]
    found = MGrpo(MGrpoSettings(invocations=4))(group)
    assert found[0][1:] == [pytest.approx(1.0, rel=1e-3)] * 4
    assert found[1][1] == pytest.approx(-1.0, rel=1e-3)  # four copies against four, not one against four


def test_beyond_d_trajectories_are_masked_and_the_rest_weigh_for_them():
    group = [team("a", 0.0, *[1.0] * 6), team("b", 0.0, 0.0)]
    own = MGrpo(MGrpoSettings(invocations=3))
    subs = own(group)[0][1:]
    assert sorted(subs) == [0.0] * 3 + [pytest.approx(2.0, rel=1e-3)] * 3
    assert own(group)[0][1:] == subs


@given(st.text(max_size=5), st.integers(1, 9), st.integers(1, 9))
def test_copies_are_as_many_as_wanted_and_as_even_as_can_be(name, have, wanted):
    found = copies(name, have, wanted)
    assert (len(found), found.sum()) == (have, wanted)
    assert found.max() - found.min() <= 1
