"""Agents as a tree: who started whom, and which calls continue each other in one branch."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from harnessgym.traces.agent_branches import agent_tree, flat
from tests.support.graphs import a_call, a_graph, an_agent, an_event


def branches(*calls):
    """The ids of the calls in each branch of one agent."""
    (agent,) = agent_tree(a_graph(*calls, agents=[an_agent("a")]))
    return [[call.id for call in branch.calls] for branch in agent.branches]


def test_an_empty_graph_has_no_agents():
    assert agent_tree(a_graph()) == ()


def test_calls_that_continue_each_other_are_one_branch():
    assert branches(a_call("1", "a"), a_call("2", "a", "1"), a_call("3", "a", "2")) == [["1", "2", "3"]]


def test_the_first_call_behind_a_call_extends_its_branch_and_the_second_opens_one():
    calls = [a_call("1", "a"), a_call("2", "a", "1"), a_call("3", "a", "1"), a_call("4", "a", "2")]
    assert branches(*calls) == [["1", "2", "4"], ["3"]]


def test_a_side_call_does_not_share_a_branch_with_policy_calls():
    calls = [a_call("1", "a"), a_call("2", "a", "1", kind="side"), a_call("3", "a", "2", kind="count")]
    assert branches(*calls) == [["1"], ["2", "3"]]


def test_a_policy_call_behind_a_side_call_opens_a_branch():
    assert branches(a_call("1", "a", kind="side"), a_call("2", "a", "1")) == [["1"], ["2"]]


def test_a_parent_of_another_agent_does_not_join_branches():
    graph = a_graph(a_call("1", "a"), a_call("2", "b", "1"), agents=[an_agent("a"), an_agent("b")])
    assert [len(agent.branches) for agent in agent_tree(graph)] == [1, 1]


def test_tokens_of_a_branch_leave_out_calls_that_sampled_none():
    calls = [a_call("1", "a"), a_call("2", "a", "1", completion_len=None)]
    (agent,) = agent_tree(a_graph(*calls, agents=[an_agent("a")]))
    assert agent.branches[0].sampled == 5
    assert not agent.branches[0].side


def test_children_stand_below_the_agent_that_started_them():
    agents = [an_agent("root"), an_agent("child", "root", "spawn"), an_agent("grandchild", "child")]
    spawn = an_event("spawn", "spawn", agent_id="root", target_agent_id="child")
    (root,) = agent_tree(a_graph(agents=agents, events=[spawn]))
    assert root.spawn is None
    assert [item.agent.id for item in root.children] == ["child"]
    assert root.children[0].spawn is spawn
    assert [item.agent.id for item in flat([root])] == ["root", "child", "grandchild"]


def test_an_agent_whose_parent_is_unknown_is_a_root():
    (root,) = agent_tree(a_graph(agents=[an_agent("a", "gone", "gone too")]))
    assert root.agent.id == "a"
    assert root.spawn is None


def test_calls_of_no_agent_come_last():
    tree = agent_tree(a_graph(a_call("1"), a_call("2", "a"), agents=[an_agent("a")]))
    assert [item.agent and item.agent.id for item in tree] == ["a", None]
    assert [call.id for call in tree[1].calls] == ["1"]


@given(st.lists(st.tuples(st.integers(0, 11), st.sampled_from(["policy", "side", "count"])), max_size=12))
def test_every_call_is_in_exactly_one_branch_and_follows_its_parent(drawn):
    calls = [
        a_call(str(at), "a", str(parent) if parent < at else None, kind=kind)
        for at, (parent, kind) in enumerate(drawn)
    ]
    found = branches(*calls)
    assert sorted(name for branch in found for name in branch) == sorted(call.id for call in calls)
    parents = {call.id: call.parent_call_id for call in calls}
    for branch in found:
        assert all(parents[later] == earlier for earlier, later in itertools.pairwise(branch))
