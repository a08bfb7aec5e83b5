"""`traces show`, `traces tree` and `traces list` on what a real proxy recorded of a planner with two
workers.
"""

import json

import pytest

from harnessgym.errors import StoreError


def test_show_reads_as_a_conversation(recorded, ask):
    said = ask("show", recorded.path, recorded.rollouts[1]).output
    order = [
        "finished · verdict valid",
        "reward process.brevity: 0.25  test: short enough",
        "#0 b  chat · side call (title)",
        "#1 main  chat · 42 prompt + 63 sampled tokens · version 0 · stop",
        "user: Count the fruit.",
        'main → Task({"prompt": "Count the apples."})',
        'main → Task({"prompt": "Count the pears."})',
        "#3 agent 1  chat · continues #2",
        "agent 1: There are 3 apples.",
        "agent 2: There are 4 pears.",
        "#5 main  chat · continues #1",
        "There are 3 apples.",
        "main: 7 in all.",
        "history break: edited_history",
        "+Count the fruit, quickly.",
        "main: Still seven.",
    ]
    at = 0
    for part in order:
        found = said.find(part, at)
        assert found >= at, (part, said[at:])
        at = found + len(part)
    assert said.count("You plan.") == 3  # once as it was added, twice in what breaks compare
    assert "\x1b" not in said
    assert all(line == line.rstrip() for line in said.splitlines() if not line.endswith(": "))


def test_agents_have_colours_of_their_own_and_side_calls_are_dim(recorded):
    from rich.console import Console

    from harnessgym.cli.traces.call_table import AgentLabels, heading
    from harnessgym.store import TraceStore
    from harnessgym.traces.graph import graph

    with TraceStore.open(f"sqlite:///{recorded.path}") as store:
        found = store.read(lambda conn: graph(conn, recorded.rollouts[0]))
    labels = AgentLabels(found.agents, "harness")
    assert len({labels.colour(agent.id) for agent in found.agents}) == len(found.agents) == 3
    numbers = {name: at for at, name in enumerate(found.calls)}
    lines = [heading(call, numbers, labels) for call in found.calls.values()]
    assert lines[0].style == "dim"
    assert [str(line.style) for line in lines[1:3]] == [
        f"bold {labels.colour(agent.id)}" for agent in found.agents[:2]
    ]
    console = Console(force_terminal=True, color_system="standard", width=200)
    with console.capture() as drawn:
        console.print(lines[1])
    assert "\x1b[1;36m#1 main" in drawn.get()


def test_long_texts_are_cut_unless_all_is_wanted():
    from harnessgym.cli.traces.printed import brief

    long = "word " * 200
    assert brief(long).startswith("word word")
    assert brief(long).endswith("… 600 characters more (--full)")
    assert brief(long, full=True) == long
    assert brief("a\n" * 20).count("\n") == 7
    assert brief("short\nenough") == "short\nenough"


def test_show_as_json_has_every_call_with_its_texts(recorded, ask):
    found = json.loads(ask("show", recorded.path, recorded.rollouts[0], "--json").stdout)
    assert set(found) == {"rollout", "rewards", "agents", "calls"}
    assert found["rollout"]["id"] == recorded.rollouts[0]
    assert {reward["channel"]: reward["value"] for reward in found["rewards"]} == {
        "reward": 1.0,
        "process.brevity": 0.25,
    }
    assert [agent["name"] for agent in found["agents"]] == ["main", "agent 1", "agent 2"]
    assert [call["number"] for call in found["calls"]] == list(range(recorded.calls))
    assert [call["continues"] for call in found["calls"]] == [None, None, None, 2, None, 1, None]
    assert found["calls"][0]["side_call"] == "title"
    planned = found["calls"][1]
    assert [message["content"] for message in planned["new"]] == ["You plan.", "Count the fruit."]
    assert [call["name"] for call in planned["answer"]["tool_calls"]] == ["Task", "Task"]
    assert (planned["versions"], planned["sampled_tokens"], planned["answer_source"]) == ([0], 63, "tokens")
    assert found["calls"][6]["break_class"] == "edited_history"


def test_the_calls_alone_are_a_table(recorded, ask):
    shown = ask("show", recorded.path, "latest", "--calls").output.splitlines()
    assert shown[0].startswith("Session ")
    assert [line.split()[0] for line in shown[2:]] == [str(at) for at in range(recorded.calls)]
    assert shown[2].split()[2] == "title"
    assert "edited_history" in shown[8]
    found = json.loads(ask("show", recorded.path, "latest", "--calls", "--json").stdout)
    assert len(found["calls"]) == recorded.calls
    assert "new" not in found["calls"][0]


def test_the_tree_has_who_started_whom_with_branches_and_tokens(recorded, ask):
    lines = ask("tree", recorded.path, "latest").output.splitlines()
    assert lines[0].startswith(f"Rollout {recorded.rollouts[1]}")
    assert lines[1].startswith("├── main  3 calls, 80 tokens sampled")
    assert lines[2].startswith("│   ├── branch #1, #5: 71 tokens")
    assert lines[3] == "│   ├── branch #6: 9 tokens  break: edited_history"
    assert lines[4].startswith("│   ├── agent 1  2 calls, 40 tokens sampled")
    assert "spawned by Task (inferred by header, arguments, " in lines[4]
    assert lines[5] == "│   │   └── branch #2-#3: 40 tokens"
    assert lines[6].startswith("│   └── agent 2  1 call, 14 tokens sampled")
    assert lines[-1].strip() == "└── branch title #0: 6 tokens"


def test_the_tree_has_events_in_order_when_they_are_wanted(recorded, ask):
    said = ask("tree", recorded.path, "latest", "--events").output
    kinds = [
        "tool_call",
        "orchestrator_decision",
        "spawn → agent 1",
        "spawn → agent 2",
        "aggregate #5 returns=2",
        "decision=stop",
    ]
    places = [said.index(kind) for kind in kinds]
    assert places == sorted(places)
    assert "return → main #5" in said


def test_the_tree_as_json(recorded, ask):
    found = json.loads(ask("tree", recorded.path, "latest", "--json").stdout)
    assert set(found) == {"rollout", "agents"}
    main, first, second, nobody = found["agents"]
    assert [main["name"], first["name"], second["name"], nobody["name"]] == [
        "main",
        "agent 1",
        "agent 2",
        None,
    ]
    assert first["parent_agent_id"] == second["parent_agent_id"] == main["id"]
    assert main["spawn"] is None
    assert first["spawn"]["tool"] == "Task"
    assert [branch["calls"] for branch in main["branches"]] == [[1, 5], [6]]
    assert nobody["branches"] == [{"calls": [0], "sampled_tokens": 6, "side": True}]
    assert sum(agent["sampled_tokens"] for agent in found["agents"]) == recorded.trajectory(1).sampled
    whole = json.loads(ask("tree", recorded.path, "latest", "--json", "--events").stdout)
    assert {"spawn", "return", "aggregate", "llm_call"} <= {event["kind"] for event in whole["events"]}
    assert {"spawn", "temporal", "return"} <= {edge["kind"] for edge in whole["edges"]}


def test_a_rollout_must_be_there_and_be_one(recorded, ask):
    common = recorded.rollouts[0][:6]
    for words, parts in (
        (("nothing",), ("No rollout begins with 'nothing'", "traces list")),
        ((common,), ("More than one", recorded.rollouts[0], recorded.rollouts[1])),
    ):
        for command in ("show", "tree", "tokens"):
            error = ask(command, recorded.path, *words, status=1).exception
            assert isinstance(error, StoreError)
            for part in parts:
                assert part in str(error)


@pytest.mark.parametrize("command", ["list", "show", "verify", "replay"])
def test_what_is_no_database_is_said_so(tmp_path, ask, command):
    (tmp_path / "notes.txt").write_text("no database at all, only words " * 100)
    error = ask(command, tmp_path / "notes.txt", status=1).exception
    assert isinstance(error, StoreError)
    assert "not a trace database" in str(error)


def test_rollouts_are_listed_newest_first(recorded, ask):
    lines = ask("list", recorded.path).output.splitlines()
    assert lines[0].split() == [
        "id",
        "group",
        "harness",
        "try",
        "ended",
        "verdict",
        "reward",
        "calls",
        "tokens",
    ]
    assert [line.split()[0] for line in lines[1:]] == list(reversed(recorded.rollouts))
    assert lines[1].split()[1:] == ["train", "0.1", "b", "0", "finished", "valid", "1", "7", "140"]
    assert ask("show", recorded.path).output.splitlines() == lines


@pytest.mark.parametrize(
    ("words", "slots"),
    [
        (("--harness", "a"), [0]),
        (("--harness", "c"), []),
        (("--verdict", "valid", "--status", "finished"), [1, 0]),
        (("--status", "failed"), []),
        (("--stop-reason", "finished", "--task", "count"), [1, 0]),
        (("--task", "other"), []),
        (("--min-reward", 0.5), [1, 0]),
        (("--max-reward", 0.5), []),
        (("--purpose", "after"), []),
        (("--limit", 1), [1]),
    ],
)
def test_lists_are_filtered(recorded, ask, words, slots):
    result = ask("list", recorded.path, *words, "--json")
    found = json.loads(result.stdout)
    assert [(item["id"], item["slot"]) for item in found] == [
        (recorded.rollouts[slot], slot) for slot in slots
    ]
    assert ("--limit N" in result.stderr) is ("--limit" in words)


def test_a_folder_that_is_not_there_is_named_with_the_one_that_may_be_meant(recorded, ask, tmp_path):
    (tmp_path / "runs/puzzles").mkdir(parents=True)
    error = ask("show", tmp_path / "runs/puzles", "latest", status=1).exception
    assert str(error) == (
        f"There is no folder or file {tmp_path}/runs/puzles. Did you mean {tmp_path}/runs/puzzles? Give a run's "
        "folder, a database file, or a database URL."
    )
    assert "There is no folder or file" in str(ask("list", tmp_path / "none", status=1).exception)
