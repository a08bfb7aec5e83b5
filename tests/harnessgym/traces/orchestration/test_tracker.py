"""What the traffic of agents says of them: every pattern played by hand, and any interleaving of them."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harnessgym.message import Message
from tests.harnessgym.traces.orchestrated import Play, result, use, user

TASK, FOLDER = "Find out what the folder is called.", "The folder is called workspace."


@pytest.fixture(params=[False, True], ids=["running", "restarted"])
def play(request: pytest.FixtureRequest) -> Play:
    """A session whose process stays, or one that is restarted before every step."""
    return Play(restarts=request.param)


def asking(call_id: str, prompt: str, tool: str = "Task", **more: Any) -> Any:
    return use(call_id, tool, json.dumps({"description": "d", "prompt": prompt, **more}))


def test_a_turn_is_one_event_that_has_the_calls_id(play: Play) -> None:
    call = play.turn("main", [user("Hi")], "Hello.")
    (event,) = play.events
    assert (event.id, event.call_id, event.kind, event.agent_id, event.attributes) == (
        call,
        call,
        "llm_call",
        "main",
        {"kind": "policy"},
    )
    assert play.edges == []


def test_a_side_call_decides_nothing(play: Play) -> None:
    play.turn("main", [user("Hi")], "", use("a", "get"))
    call = play.ask(None, result("a"), kind="side", side_call="title")
    play.say(call, "", use("b", "set"))
    assert play.events[-1].attributes == {"kind": "side", "side_call": "title"}
    assert [event.kind for event in play.events] == ["llm_call", "tool_call", "llm_call"]
    play.turn("main", [result("a")], "Done.")
    assert play.one("tool_result").attributes["tool"] == "get"


def test_results_are_joined_by_their_calls_ids(play: Play) -> None:
    play.turn("main", [user("Hi")], "", use("a", "get", '{"k": 1}'), use("b", "set"))
    last = play.turn("main", [result("b", "two"), result("a", "one!")], "Done.")
    assert [
        (event.attributes["tool"], event.attributes["bytes"], event.evidence)
        for event in play.of("tool_result")
    ] == [
        ("set", 3, None),
        ("get", 4, None),
    ]
    assert play.of("tool_call")[0].attributes == {
        "tool": "get",
        "tool_call_id": "a",
        "arguments": '{"k": 1}',
        "index": 0,
    }
    assert play.drawn("causal") == [("call0", "tool_call get"), ("call0", "tool_call set")]
    assert play.drawn("tool_dependency") == [
        ("tool_call set", "tool_result set"),
        ("tool_result set", last),
        ("tool_call get", "tool_result get"),
        ("tool_result get", last),
    ]
    play.check()


@pytest.mark.parametrize(
    ("name", "evidence", "tools"), [("set", "order and name", ["set"]), (None, "order", ["get"])]
)
def test_a_result_without_its_calls_id_is_joined_by_order_and_name(
    play: Play, name: str, evidence: str, tools: list[str]
) -> None:
    play.turn("main", [user("Hi")], "", use("a", "get"), use("b", "set"))
    play.turn("main", [result("x", "1", name)], "Done.")
    found = play.one("tool_result")
    assert (found.evidence, [found.attributes["tool"]]) == (evidence, tools)
    assert found.confidence is not None
    assert found.confidence < 1


def test_a_result_that_fits_nowhere_is_kept_unmatched(play: Play) -> None:
    play.turn("main", [result("x", "1"), result("y", "2", "other"), result(None, "3")], "Hi")
    assert [event.evidence for event in play.of("tool_result")] == ["unmatched"] * 3
    play.turn("main", [user("Hi")], "", use("a", "get"))
    play.turn("main", [result("z", "1", "other")], "Done.")
    assert play.of("tool_result")[-1].evidence == "unmatched"


def test_results_that_come_again_make_nothing(play: Play) -> None:
    play.turn("main", [user("Hi")], "", use("a", "get"))
    play.turn("main", [result("a"), result("x", "foreign")], "Done.")
    before = len(play.events)
    play.turn("main", [user("summary"), result("a", "[cleared]"), result("x", "foreign")], "Done.")
    assert [event.kind for event in play.events[before:]] == ["llm_call"]


def test_a_repeated_request_reads_the_same(play: Play) -> None:
    if play.restarts:
        pytest.skip("what a call read is not kept")
    play.turn("main", [user("Hi")], "", use("a", "get"))
    play.machine.failed(play.ask("main", result("a")))
    again = play.ask("main", again=True)
    assert [edge.target_event_id for edge in play.edges][-2:] == ["call1", again]
    play.check()


def test_a_sub_agent_is_started_and_comes_back(play: Play) -> None:
    play.turn("main", [user("Go")], "", asking("a", TASK))
    child = play.turn(
        "child",
        [Message("system", "You help."), user(f"<task>\n{TASK}</task>")],
        "",
        use("b", "ls"),
        parent="main",
    )
    last = play.turn("child", [result("b", "workspace")], FOLDER)
    end = play.turn("main", [result("a", json.dumps({"said": FOLDER}))], "Done.")
    spawn, back = play.one("spawn"), play.one("return")
    assert (spawn.agent_id, spawn.target_agent_id, spawn.evidence, spawn.confidence) == (
        "main",
        "child",
        "arguments",
        0.95,
    )
    assert spawn.attributes == {"tool": "Task", "tool_call_id": "a"}
    assert (back.agent_id, back.target_agent_id, back.evidence, back.confidence) == (
        "child",
        "main",
        "result text",
        0.95,
    )
    assert [(event.attributes["channel"], event.attributes["text"]) for event in play.of("message")] == [
        ("task", TASK),
        ("result", FOLDER),
    ]
    assert play.one("orchestrator_decision").attributes == {"decision": "delegate"}
    assert play.drawn("spawn") == [("spawn Task", child)]
    assert play.drawn("return") == [(last, "return Task"), ("return Task", end)]
    assert play.drawn("message") == [("message main", child), ("message child", end)]
    assert play.one("despawn").agent_id == "child"
    play.seal()
    assert [event.agent_id for event in play.of("despawn")] == ["child", "main"]
    play.check()


def test_a_text_in_json_comes_back_too(play: Play) -> None:
    play.turn("main", [user("Go")], "", asking("a", 'Über\n"this"'))
    play.turn("child", [user('Über\n"this"')], 'It is\n"ä".', parent="main")
    play.turn("main", [result("a", json.dumps({"text": 'It is\n"ä".'}))])
    assert (play.one("spawn").confidence, play.one("return").confidence) == (0.95, 0.95)


@pytest.mark.parametrize(
    ("uses", "evidence", "confidence"),
    [
        ([asking("a", "x" * 30), use("b", "ls")], "only spawn call", 0.7),
        ([use("b", "look")], "only call", 0.5),
        ([asking("a", "x" * 30), asking("b", "y" * 30)], "order", 0.3),
    ],
)
def test_without_words_in_common_it_is_the_only_call_that_can_be(
    play: Play, uses: list[Any], evidence: str, confidence: float
) -> None:
    play.turn("main", [user("Go")], "", *uses)
    play.turn("child", [user("Something else altogether.")], "Yes", parent="main")
    spawn = play.one("spawn")
    assert (spawn.evidence, spawn.confidence, spawn.attributes["tool_call_id"]) == (
        evidence,
        confidence,
        uses[0].id,
    )


def test_nobody_starts_an_agent_while_nothing_waits(play: Play) -> None:
    play.turn("main", [user("Go")], "", use("a", "ls"))
    play.turn("main", [result("a")], "Done.")
    play.turn("other", [user("Go")], "Done.")
    assert play.of("spawn") == []


def test_a_harness_that_names_its_agents(play: Play) -> None:
    play.turn("main", [user("Go")], "", asking("a", TASK), harness_names_agents=True)
    play.turn("one", [user(TASK)], "Yes", parent="main", harness_names_agents=True)
    play.turn("two", [user("Something else.")], "Yes", parent="main", harness_names_agents=True)
    first, second = play.of("spawn")
    assert (first.evidence, first.confidence) == ("header, arguments", 0.99)
    assert (second.evidence, second.confidence, second.agent_id) == ("header", None, "main")


def test_an_answer_that_is_not_in_the_result_came_back_by_time(play: Play) -> None:
    play.turn("main", [user("Go")], "", asking("a", TASK))
    play.turn("child", [user(TASK)], FOLDER, parent="main")
    play.turn("main", [result("a", "It was found.")], "Done.")
    assert (play.one("return").evidence, play.one("return").confidence) == ("time order", 0.7)


def test_an_agent_in_the_background_comes_back_through_another_call(play: Play) -> None:
    play.turn(
        "main", [user("Go")], "", asking("a", TASK, "multi_agent_v1__spawn_agent"), harness_names_agents=True
    )
    second = play.ask("main", result("a", '{"agent_id": "7"}'), harness_names_agents=True)
    child = play.ask("child", user(TASK), parent="main", harness_names_agents=True)
    play.say(second, "", use("w", "multi_agent_v1__wait_agent"))
    play.say(child, FOLDER)
    play.turn(
        "main", [result("w", json.dumps({"7": {"completed": FOLDER}}))], "Done.", harness_names_agents=True
    )
    assert (play.one("spawn").attributes["tool_call_id"], play.one("spawn").confidence) == ("a", 0.99)
    assert (play.one("return").evidence, play.one("return").target_agent_id) == ("result text", "main")
    play.check()


def test_the_answer_of_a_background_agent_is_not_taken_from_its_start(play: Play) -> None:
    play.turn("main", [user("Go")], "", asking("a", TASK, "Agent", run_in_background=True))
    play.turn("child", [user(TASK)], FOLDER, parent="main")
    play.turn("main", [result("a", "It runs.")], "I wait.")
    assert play.of("return") == []
    play.turn("main", [user(f"Agent finished: {FOLDER}")], "Done.")
    assert play.one("return").confidence == 0.95


def test_an_agent_that_ends_with_a_tool(play: Play) -> None:
    play.turn("main", [user("Go")], "", asking("a", TASK, "invoke_agent"))
    play.turn(
        "child",
        [user(TASK)],
        "",
        use("b", "complete_task", json.dumps({"result": {"response": FOLDER}})),
        parent="main",
    )
    play.turn("main", [result("a", f"Result:\n{FOLDER}")], "Done.")
    assert (play.one("return").agent_id, play.one("return").confidence) == ("child", 0.95)


def test_parallel_agents_each_have_their_own_call_and_are_gathered(play: Play) -> None:
    tasks = ["Count the files of the left folder.", "Count the files of the right folder."]
    play.turn("main", [user("Go")], "", *(asking(f"a{at}", task) for at, task in enumerate(tasks)))
    second = play.ask("right", user(tasks[1]), parent="main")
    first = play.ask("left", user(tasks[0]), parent="main")
    play.say(first, "There are seven on the left.")
    play.say(second, "There are eight on the right.")
    both = [result("a0", "There are seven on the left."), result("a1", "There are eight on the right.")]
    end = play.turn("main", both, "Fifteen.")
    assert {event.target_agent_id: event.attributes["tool_call_id"] for event in play.of("spawn")} == {
        "left": "a0",
        "right": "a1",
    }
    assert {event.agent_id: event.attributes["tool_call_id"] for event in play.of("return")} == {
        "left": "a0",
        "right": "a1",
    }
    assert play.one("aggregate").attributes == {"returns": 2}
    assert play.drawn("aggregate") == [("return Task", "aggregate main")] * 2 + [("aggregate main", end)]
    assert len(play.of("orchestrator_decision")) == 1
    play.check()


def test_an_agent_that_is_started_again(play: Play) -> None:
    for at, task in enumerate((TASK, "Now look into the other one.")):
        play.turn("main", [user("Go") if not at else user("More")], "", asking(f"a{at}", task))
        play.turn("child", [user(task)], f"{FOLDER} {at}", parent="main")
        play.turn("main", [result(f"a{at}", f"{FOLDER} {at}")], "Done.")
    assert [event.attributes.get("resumed") for event in play.of("spawn")] == [None, True]
    assert [event.attributes["tool_call_id"] for event in play.of("return")] == ["a0", "a1"]
    play.check()


@pytest.mark.parametrize("by_id", [True, False])
def test_another_agent_goes_on_with_the_same_history(play: Play, by_id: bool) -> None:
    calls = (use("a", "transfer_to_coder"),) if by_id else ()
    play.turn("planner", [user("Go")], "The coder can do that.", *calls)
    said = Message("assistant", "The coder can do that.", tool_calls=calls)
    history = [user("Go"), said, *([result("a", '{"assistant": "coder"}')] if by_id else [])]
    call = play.turn("coder", history, "Done.", parent="planner")
    play.seal()
    handoff, stop = play.of("orchestrator_decision")
    assert (handoff.attributes["decision"], handoff.agent_id, handoff.target_agent_id) == (
        "handoff",
        "planner",
        "coder",
    )
    assert (stop.attributes["decision"], stop.agent_id, stop.call_id) == ("stop", "coder", call)
    assert play.one("message").attributes["channel"] == "handoff"
    assert play.drawn("message") == [("message planner", call)]
    assert play.of("spawn") == []
    play.check()


def test_work_that_is_handed_back(play: Play) -> None:
    play.turn("a", [user("Go")], "", use("1", "transfer_to_b"))
    play.turn(
        "b",
        [user("Go"), Message("assistant", tool_calls=(use("1", "transfer_to_b"),)), result("1")],
        "",
        use("2", "transfer_to_a"),
        parent="a",
    )
    play.turn("a", [Message("assistant", tool_calls=(use("2", "transfer_to_a"),)), result("2")], "Done.")
    play.seal()
    decided = [(event.attributes["decision"], event.agent_id) for event in play.of("orchestrator_decision")]
    assert decided == [("handoff", "a"), ("handoff", "b"), ("stop", "a")]
    play.check()


def test_a_worker_that_hands_over_comes_back_as_the_other(play: Play) -> None:
    play.turn("main", [user("Go")], "", asking("a", TASK))
    play.turn("child", [user(TASK)], "", use("1", "transfer_to_expert"), parent="main")
    last = play.turn(
        "expert",
        [user(TASK), Message("assistant", tool_calls=(use("1", "transfer_to_expert"),)), result("1")],
        FOLDER,
    )
    play.turn("main", [result("a", FOLDER)], "Done.")
    assert play.drawn("return")[0] == (last, "return Task")
    assert play.one("return").agent_id == "child"
    play.check()


@pytest.mark.parametrize(
    ("said", "finish_reason", "stops"), [((), "stop", 1), ((), "length", 0), ((use("a", "ls"),), "stop", 0)]
)
def test_the_last_answer_decides_to_stop_if_nothing_follows(
    play: Play, said: Any, finish_reason: str, stops: int
) -> None:
    play.turn("main", [user("Hi")], "One moment.")
    play.say(play.ask("main", user("And?")), "Done.", *said, finish_reason=finish_reason)
    play.seal()
    assert [event.call_id for event in play.of("orchestrator_decision")] == ["call1"] * stops
    assert play.one("despawn").agent_id == "main"
    play.check()


def test_a_call_that_is_not_answered_stops_nothing(play: Play) -> None:
    play.turn("main", [user("Hi")], "One moment.")
    play.machine.failed(play.ask("main", user("And?")))
    play.seal()
    assert play.of("orchestrator_decision") == []


def test_of_siblings_only_the_one_that_is_gone_on_with_acts(play: Play) -> None:
    first, second = (play.ask("main", user("Hi"), siblings=2, again=bool(at)) for at in range(2))
    play.say(first, "", use(f"x_{first}_0", "get"))
    play.say(second, "", use(f"x_{second}_0", "set"))
    assert play.of("tool_call") == []
    play.turn("main", [result(f"x_{second}_0")], "Done.", parent_call=second)
    assert (play.one("tool_call").call_id, play.one("tool_call").attributes["tool"]) == (second, "set")
    assert len(play.of("tool_result")) == 1
    play.check()


def test_a_compaction_reads_results_and_decides_nothing(play: Play) -> None:
    play.turn("main", [user("Hi")], "", use("a", "get"))
    play.turn("main", [result("a"), user("Summarise.")], "Summary.", kind="compaction")
    play.turn("main", [user("Summary.")], "Done.")
    play.seal()
    assert play.one("tool_result").call_id == "call1"
    assert play.one("orchestrator_decision").call_id == "call2"


TOOLS = ("Task", "spawn_agent", "transfer_to_b", "ls")
AGENTS = ("main", "a", "b", "c")


@settings(max_examples=200, deadline=None)
@given(st.data(), st.booleans())
def test_any_interleaving_gives_a_sound_graph(data: st.DataObject, restarts: bool) -> None:
    play, open_calls, made = Play(restarts=restarts), list[str](), list[tuple[str, str]]()
    for step in range(data.draw(st.integers(1, 14))):
        if open_calls and data.draw(st.booleans()):
            call = open_calls.pop(data.draw(st.integers(0, len(open_calls) - 1)))
            uses = [
                asking(f"t{call}{at}", f"Do the work {call}.", data.draw(st.sampled_from(TOOLS)))
                for at in range(data.draw(st.integers(0, 2)))
            ]
            made += [(use.id, use.name) for use in uses]
            play.say(call, data.draw(st.sampled_from(["", "Done.", FOLDER])), *uses)
            continue
        agent = data.draw(st.sampled_from((*AGENTS, None)))
        new = (
            [user(f"Do the work call{data.draw(st.integers(0, step))}.")] if data.draw(st.booleans()) else []
        )
        for call_id, name in data.draw(st.lists(st.sampled_from(made), max_size=3)) if made else []:
            new.append(
                result(
                    data.draw(st.sampled_from([call_id, "x", None])),
                    FOLDER,
                    data.draw(st.sampled_from([name, None])),
                )
            )
        fields = {
            "harness_names_agents": data.draw(st.booleans()),
            "siblings": data.draw(st.sampled_from([1, 1, 2])),
        }
        parent = data.draw(st.sampled_from((None, *AGENTS)))
        open_calls.append(
            play.ask(
                agent,
                *new,
                parent=None if parent == agent else parent,
                kind="side" if agent is None else "policy",
                **fields,
            )
        )
    play.seal()
    play.check()
    assert sorted(event.id for event in play.of("llm_call")) == sorted(play.calls)
