"""Trace contracts: each kind broken and kept, the first violating step named, whatever else happens around
it.
"""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessgym.config import load_config, validate
from harnessgym.errors import ConfigError
from harnessgym.run_config.session import SessionOptions
from harnessgym.store import agents, events, new_id
from harnessgym.store.agents import AgentRow
from harnessgym.store.events import EventRow
from harnessgym.traces import contracts
from harnessgym.traces.contracts import ContractMonitor, Contracts, check, online
from harnessgym.traces.graph import graph
from harnessgym.traces.step import RolloutStep, steps_of


def made(*raw):
    return validate(Contracts, {"contracts": list(raw)}, "the test").contracts


def rollout(*what):
    """Steps one second apart. `"bash:ls"` calls a tool, `"12"` is a model call that samples 12 tokens,
    `"a>12"` one of a.
    """
    steps = []
    for number, whole in enumerate(what):
        agent, _, text = whole.rpartition(">")
        if text.isdecimal():
            steps.append(RolloutStep(f"s{number}", "llm_call", number, agent or "main", tokens=int(text)))
        else:
            tool, _, command = text.partition(":")
            arguments = json.dumps({"command": command})
            steps.append(
                RolloutStep(
                    f"s{number}", "tool_call", number, agent or "main", tool=tool, arguments=arguments
                )
            )
    return steps


BASH = {"tool": "bash", "arguments": {"command": "rm"}}


@pytest.mark.parametrize(
    ("contract", "kept", "broken", "step"),
    [
        ({"kind": "never_before", "never": {"tool": "commit"}, "before": {"tool": "test"}},
         ["5", "test:", "commit:", "commit:"], ["5", "commit:", "test:", "commit:"], 1),
        ({"kind": "at_most", "what": {"tool": "search"}, "n": 2}, ["search:a", "other:", "search:b"],
         ["search:a", "search:b", "research:", "search:c", "search:d"], 3),
        ({"kind": "at_most", "what": {"tool": "search"}, "n": 1, "per": "agent"}, ["a>search:x", "b>search:x"],
         ["a>search:x", "b>search:x", "b>search:y"], 2),
        ({"kind": "at_most", "what": {"step": "llm_call"}, "n": 2}, ["1", "1"], ["1", "1", "1"], 2),
        ({"kind": "budget", "tokens": 10}, ["4", "6"], ["4", "6", "1", "9"], 2),
        ({"kind": "budget", "tokens": 10, "per": "agent"}, ["a>9", "b>9"], ["a>9", "b>9", "a>2"], 2),
        ({"kind": "budget", "calls": 1}, ["4", "bash:"], ["4", "bash:", "4"], 2),
        ({"kind": "budget", "wall_s": 2}, ["4", "bash:", "1"], ["4", "bash:", "1", "bash:", "1"], 3),
        ({"kind": "forbidden_tool", "tool": "bash|sh", "arguments": {"command": r"\brm\b"}},
         ["bash:ls", "cat:rm", "bash:farm"], ["bash:ls", "sh:rm -rf /", "bash:rm"], 1),
        ({"kind": "forbidden_tool", "tool": "bash", "arguments": {"*": "command.*rm"}}, ["bash:ls"], ["bash:rm"], 0),
        ({"kind": "forbidden_tool", "tool": "ba.*"}, ["xba:"], ["bash:"], 0),
    ],
)  # fmt: skip
def test_each_kind_is_kept_or_broken_at_a_step(contract, kept, broken, step):
    assert check(made(contract), rollout(*kept)) == []
    steps = rollout(*broken)
    (violation,) = check(made({**contract, "name": "mine"}), steps)
    assert (violation.contract, violation.ordinal, violation.step) == ("mine", step, steps[step])
    assert f"mine: step {step} ({steps[step].kind} s{step} by agent {steps[step].agent_id})" in str(violation)


def test_agents_and_tools_must_return():
    spawned = RolloutStep("e1", "spawn", 1, "main", "child", tool="Task", tool_call_id="t1")
    unknown = RolloutStep("e2", "spawn", 2, "main", tool="Task", tool_call_id="t2")
    back = RolloutStep("e3", "return", 3, "child", "main")
    told = RolloutStep("e4", "return", 4, None, "main", tool_call_id="t2")
    agents_return = made({"kind": "must_return"})
    assert check(agents_return, [spawned, unknown, told, back]) == []
    assert [(item.step, item.ordinal) for item in check(agents_return, [spawned, unknown, back])] == [
        (unknown, 1)
    ]
    assert [item.step for item in check(agents_return, [spawned, unknown])] == [spawned]
    called = [
        RolloutStep(f"c{n}", "tool_call", n, tool=tool, tool_call_id=f"t{n}")
        for n, tool in enumerate(["bash", "finish"])
    ]
    result = RolloutStep("r0", "tool_result", 5, tool_call_id="t0")
    tools_return = {"kind": "must_return", "what": "tools"}
    assert [item.step for item in check(made(tools_return), [*called, result])] == [called[1]]
    assert "has no result" in str(check(made(tools_return), called)[0])
    assert check(made({**tools_return, "tool": "bash"}), [*called, result]) == []


def test_violations_come_by_step_and_each_contract_has_one():
    rules = made(
        {"kind": "must_return", "what": "tools"},
        {"kind": "budget", "tokens": 5},
        {"kind": "forbidden_tool", "tool": "rm"},
    )
    found = check(rules, rollout("1", "rm:", "9", "rm:"))
    assert [(item.contract, item.ordinal) for item in found] == [
        ("must_return", 1),
        ("forbidden_tool", 1),
        ("budget", 2),
    ]


def test_arguments_that_were_cut_are_searched_as_they_are():
    rules = made({"kind": "forbidden_tool", **BASH})
    cut = RolloutStep("s", "tool_call", 0, tool="bash", arguments='{"command": "rm -rf ' + "x" * 50)
    assert len(check(rules, [cut])) == 1
    other = RolloutStep("s", "tool_call", 0, tool="bash", arguments='{"comment": "rm"}')
    nested = RolloutStep("s", "tool_call", 0, tool="bash", arguments='{"command": ["rm", "-rf"]}')
    assert check(rules, [other]) == []
    assert len(check(rules, [nested])) == 1


@given(
    st.lists(st.sampled_from(["1", "7", "bash:ls", "bash:rm", "a>bash:rm", "test:", "commit:"]), max_size=12)
)
def test_each_contract_is_judged_as_if_it_were_alone_and_once(what):
    rules = made(
        {"kind": "budget", "tokens": 9, "calls": 2, "wall_s": 6},
        {"kind": "at_most", "what": BASH, "n": 1},
        {"kind": "never_before", "never": {"tool": "commit"}, "before": {"tool": "test"}},
    )
    steps, watch, first = rollout(*what), ContractMonitor(rules), None
    for number, step in enumerate(steps):
        watch.see(step)
        if first is None and watch.violation is not None:
            first = watch.violation
            assert first.ordinal == number
    alone = [found for rule in rules for found in check([rule], steps)]
    together = watch.end()
    assert sorted(together, key=str) == sorted(alone, key=str)
    assert together[:1] == ([] if first is None else [first])


def test_only_what_the_proxy_sees_is_judged_online():
    rules = made(
        {"kind": "budget", "calls": 2},
        {"kind": "must_return"},
        {"kind": "at_most", "what": {"step": "spawn"}, "n": 1},
        {"kind": "never_before", "never": BASH, "before": {"step": "human_intervention"}},
        {"kind": "never_before", "never": BASH, "before": {"tool": "test"}},
        {"kind": "forbidden_tool", "tool": "rm"},
    )
    assert online(rules) == [rules[0], rules[4], rules[5]]


@pytest.mark.parametrize(
    ("contract", "reason"),
    [
        ({"kind": "budget"}, "needs tokens, calls or wall_s"),
        ({"kind": "sometimes"}, "sometimes"),
        ({"kind": "forbidden_tool", "tool": "("}, "no regular expression"),
        ({"kind": "at_most", "what": {"arguments": {"a": "["}}, "n": 1}, "no regular expression"),
        ({"kind": "at_most", "what": {"step": "dance"}, "n": 1}, "dance"),
        ({"kind": "at_most", "what": {}, "n": -1}, "greater than or equal to 0"),
    ],
)
def test_a_wrong_contract_is_refused(contract, reason):
    with pytest.raises(ConfigError, match=reason):
        made(contract)


def test_the_example_in_the_documentation_can_be_read(tmp_path):
    text = contracts.__doc__.split("```toml\n")[1].split("```")[0]
    (tmp_path / "contracts.toml").write_text(text)
    found = load_config(Contracts, tmp_path / "contracts.toml").contracts
    assert [item.kind for item in found] == [
        "never_before",
        "at_most",
        "must_return",
        "budget",
        "forbidden_tool",
    ]
    assert len(check(found, rollout("bash:rm  -rf /home"))) == 1


def test_session_options_keep_contracts_through_json():
    options = SessionOptions(
        contracts=made({"kind": "forbidden_tool", **BASH}, {"kind": "budget", "calls": 2})
    )
    stored = options.model_dump(mode="json", exclude_unset=True)
    assert SessionOptions.model_validate(json.loads(json.dumps(stored))) == options


def test_steps_of_a_recorded_rollout(recording):
    recording.publish(0)
    _, (rollout_id, other) = recording.group()
    session = recording.session(rollout_id)
    agent = AgentRow(new_id(), rollout_id, session.id, "main", "main", None, "content")
    first = session.call(versions=(0,) * 7)
    session.call(after=first, kind="side")
    said = {"tool": "bash", "tool_call_id": "t1", "arguments": '{"command": "rm x"}', "index": 0}

    def work(conn):
        agents.add(conn, agent)
        events.add(conn, EventRow(rollout_id, "tool_call", said, agent_id=agent.id))
        events.add(conn, EventRow(rollout_id, "refused_request", {}))
        events.add(conn, EventRow(other, "tool_call", said))

    recording.store.write(work)
    last = session.call(after=first)
    steps = steps_of(recording.store.read(lambda conn: graph(conn, rollout_id)))
    assert [(step.kind, step.tokens, step.agent_id) for step in steps] == [
        ("llm_call", 7, None), ("tool_call", 0, agent.id), ("llm_call", 4, None),
    ]  # fmt: skip
    assert (steps[0].id, steps[2].id) == (first, last)
    rules = made(
        {"kind": "forbidden_tool", **BASH},
        {"kind": "budget", "tokens": 10},
        {"kind": "must_return", "what": "tools"},
    )
    found = check(rules, steps)
    assert [(item.contract, item.ordinal) for item in found] == [
        ("forbidden_tool", 1),
        ("must_return", 1),
        ("budget", 2),
    ]
