"""`traces export`, `import`, `replay`, `verify` and the command group itself."""

import json
import shutil
import sqlite3

import pytest
from typer.main import get_command

from harnessgym.cli.traces import app
from harnessgym.errors import ConfigError, StoreError, TraceError


def test_what_is_exported_is_imported_again(recorded, ask, tmp_path):
    out = tmp_path / "atif.jsonl"
    made = json.loads(ask("export", recorded.path, "--format", "atif", "--out", out, "--json").stdout)
    assert made == {"path": str(out), "format": "atif", "rollouts": 2, "records": made["records"]}
    result = ask("import", tmp_path / "new.db", out, "--format", "atif", "--json")
    found = json.loads(result.stdout)
    assert found["rollouts"] == list(recorded.rollouts)
    theirs = json.loads(ask("tree", tmp_path / "new.db", "latest", "--json").stdout)
    ours = json.loads(ask("tree", recorded.path, "latest", "--json").stdout)
    assert sum(agent["sampled_tokens"] for agent in theirs["agents"]) <= sum(
        agent["sampled_tokens"] for agent in ours["agents"]
    )
    assert {agent["name"] for agent in ours["agents"] if agent["name"]} <= {
        agent["name"] for agent in theirs["agents"]
    }


def test_one_rollout_can_be_exported_for_people_to_see(recorded, ask, tmp_path):
    said = ask("export", recorded.path, "latest", "--format", "sft", "--out", tmp_path / "said.jsonl").output
    assert "1 rollouts (sft)" in said
    assert (tmp_path / "said.jsonl").read_text().count("\n") >= 1


def test_a_run_is_found_by_how_it_begins_and_nothing_is_never_written(recorded, ask, tmp_path):
    out = tmp_path / "said.jsonl"
    out.write_text("kept")
    for given in ("latest", recorded.run_id[:10]):
        listed = json.loads(ask("list", recorded.path, "--run", given, "--json").stdout)
        assert {item["id"] for item in listed} == set(recorded.rollouts)
        made = ask(
            "export", recorded.path, "--run", given, "--format", "sft", "--out", tmp_path / given, "--json"
        )
        assert json.loads(made.stdout)["rollouts"] == 2
    for command in (("list",), ("export", "--format", "sft", "--out", out)):
        error = ask(command[0], recorded.path, "--run", "nothing", *command[1:], status=1).exception
        assert isinstance(error, StoreError)
        assert recorded.run_id in str(error)
    error = ask(
        "export", recorded.path, "--purpose", "nothing", "--format", "sft", "--out", out, status=1
    ).exception
    assert isinstance(error, ConfigError)
    assert "meets the filters" in str(error)
    assert out.read_text() == "kept"


def test_an_unknown_format_names_the_known_ones(recorded, ask, tmp_path):
    error = ask("export", recorded.path, "--format", "parquett", "--out", tmp_path / "x", status=1).exception
    assert isinstance(error, ConfigError)
    assert "Did you mean 'parquet'?" in str(error)
    error = ask("import", tmp_path / "new.db", tmp_path, "--format", "nothing", status=1).exception
    assert "atif" in str(error)
    assert list(tmp_path.iterdir()) == []


def test_nothing_to_import_makes_no_store(tmp_path, ask):
    error = ask("import", tmp_path / "new.db", tmp_path / "no.json", status=1).exception
    assert isinstance(error, TraceError)
    assert list(tmp_path.iterdir()) == []


def test_a_replay_gives_the_recorded_prompts(recorded, ask):
    found = json.loads(ask("replay", recorded.path, "--json").stdout)
    assert found["ok"] is True
    assert [item["rollout"] for item in found["rollouts"]] == list(recorded.rollouts)
    assert all(len(item["calls"]) == recorded.calls for item in found["rollouts"])
    assert ask("replay", recorded.path, "latest").output.split()[-2:] == ["the", "same"]


def test_a_replay_that_differs_is_status_1(recorded, ask, tmp_path):
    changed = tmp_path / "traces.db"
    shutil.copy(recorded.path, changed)
    with sqlite3.connect(changed) as raw:
        raw.execute("DROP TRIGGER frozen_messages_update")
        found = raw.execute("UPDATE messages SET body = replace(body, 'There are 3', 'There are 5')").rowcount
    raw.close()
    assert found
    said = ask("replay", changed, "latest", status=1)
    assert "differs at call 5" in said.output
    assert json.loads(ask("replay", changed, "latest", "--json", status=1).stdout)["ok"] is False


def test_verify_as_json(recorded, ask, tmp_path):
    found = json.loads(ask("verify", recorded.path, "--json").stdout)
    assert (found["ok"], found["findings"], found["checked"]["calls"]) == (True, [], 2 * recorded.calls)
    changed = tmp_path / "traces.db"
    shutil.copy(recorded.path, changed)
    with sqlite3.connect(changed) as raw:
        raw.execute("UPDATE calls SET completion_hash = 'x' WHERE ordinal = 1")
    raw.close()
    found = json.loads(ask("verify", changed, "--json", status=1).stdout)
    assert {item["kind"] for item in found["findings"]} == {"completion_hash"}


def test_a_database_of_another_schema_says_what_to_do(recorded, ask, tmp_path):
    old = tmp_path / "traces.db"
    shutil.copy(recorded.path, old)
    with sqlite3.connect(old) as raw:
        raw.execute("UPDATE alembic_version SET version_num = '0001'")
    raw.close()
    error = ask("list", old, status=1).exception
    assert isinstance(error, StoreError)
    assert "harnessgym store migrate" in str(error)


@pytest.mark.parametrize(
    "name", ["list", "show", "tree", "tokens", "diff", "verify", "export", "import", "replay", "sql"]
)
def test_every_command_teaches(name, ask):
    command = get_command(app).commands[name]
    assert command.help
    assert f"`harnessgym traces {name} " in command.epilog
    assert "JSON: " in command.epilog
    assert "Exit status: 0 " in command.epilog
    assert "--json" in {option for parameter in command.params for option in parameter.opts}
    assert ask(name, "--help").output.count("JSON") >= 1
