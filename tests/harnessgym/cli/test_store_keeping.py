"""`harnessgym store freeze | thaw | prune | vacuum | export | import`."""

import json
import shutil
import sqlite3
from contextlib import closing

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from harnessgym.cli import app
from harnessgym.cli.store.prune import seconds_of
from harnessgym.errors import ConfigError, StoreError
from harnessgym.store import TraceStore, runs


@pytest.fixture
def keep():
    """`keep("freeze", path, "latest")`: a command of `harnessgym store`, in this process."""

    def run(*words, status=0):
        result = CliRunner(env={"COLUMNS": "200"}).invoke(app(), ["store", *map(str, words)])
        assert result.exit_code == status, (result.output, result.exception)
        return result

    return run


@pytest.fixture
def own(recorded, tmp_path):
    """A database of the test's own, of a run that is done."""
    path = shutil.copy(recorded.path, tmp_path / "traces.db")
    with TraceStore.open(f"sqlite:///{path}") as store:
        store.write(lambda conn: runs.set_status(conn, recorded.run_id, "done"))
    return path


def found(result):
    return json.loads(result.stdout)


def test_a_frozen_rollout_stays_when_others_are_pruned(own, recorded, keep, ask):
    one, _ = recorded.rollouts
    assert found(keep("freeze", own, one, "--json")) == {"rollouts": [one], "changed": 1}
    assert "0 rollouts frozen, 1 were so already." in keep("freeze", own, one).output
    result = keep("prune", own, "--older-than", "0s", "--trained")
    assert "1 rollouts pruned: 4.0 kB of tokens and texts." in result.stdout
    assert "1 rollouts stay: frozen." in result.stderr
    assert [row["id"] for row in json.loads(ask("list", own, "--json").stdout)] == [one]
    assert json.loads(ask("verify", own, "--json").stdout)["ok"]
    assert "1 rollouts thawed." in keep("thaw", own, "--run", "latest").output
    assert found(keep("prune", own, "--older-than", "0s", "--trained", "--json"))["rollouts"] == 1


def test_what_was_pruned_comes_back_from_its_file(own, recorded, keep, ask, tmp_path):
    before = ask("tokens", own, "latest", "--json").stdout
    keep("export", own, "latest", tmp_path / "run.hgrun")
    keep("prune", own, "--older-than", "0s", "--trained")
    assert json.loads(ask("list", own, "--json").stdout) == []
    keep("import", tmp_path / "run.hgrun", own)
    assert ask("tokens", own, "latest", "--json").stdout == before
    assert json.loads(ask("verify", own, "--json").stdout)["checked"]["rollouts"] == 2


def test_freezing_by_filters(own, recorded, keep):
    assert found(keep("freeze", own, "--harness", "a", "--json"))["rollouts"] == list(recorded.rollouts[:1])
    made = found(keep("freeze", own, "--run", "latest", "--purpose", "train", "--json"))
    assert made == {"rollouts": list(recorded.rollouts), "changed": 1}
    assert found(keep("thaw", own, "--run", recorded.run_id, "--harness", "b", "--json"))["rollouts"] == [
        recorded.rollouts[1]
    ]


def test_which_rollouts_must_be_said(own, keep):
    error = keep("freeze", own, status=1).exception
    assert isinstance(error, ConfigError)
    assert "Say which rollouts" in str(error)
    assert "not both" in str(keep("freeze", own, "latest", "--harness", "a", status=1).exception)
    assert "no run that begins with 'x'" in str(keep("thaw", own, "--run", "x", status=1).exception)


def test_a_dry_run_changes_nothing(own, keep):
    before = own.read_bytes()
    said = found(keep("prune", own, "--older-than", "0s", "--trained", "--dry-run", "--json"))
    assert (said["dry_run"], said["rollouts"], said["rows"]["calls"], said["rows"]["messages"]) == (
        True,
        2,
        14,
        19,
    )
    assert (
        "2 rollouts would be pruned"
        in keep("prune", own, "--older-than", "0s", "--trained", "--dry-run").output
    )
    assert own.read_bytes() == before
    done = found(keep("prune", own, "--older-than", "0s", "--trained", "--json"))
    assert (done["dry_run"], done["bytes"], done["rows"].pop("groups")) == (False, said["bytes"], 1)
    assert done["rows"] == said["rows"]


def test_age_and_run_choose(own, keep):
    said = found(keep("prune", own, "--older-than", "1h", "--trained", "--json"))
    assert (said["rollouts"], said["kept"]) == (0, {})
    assert "no run that begins with 'x'" in str(
        keep("prune", own, "--older-than", "0s", "--run", "x", status=1).exception
    )
    assert found(keep("prune", own, "--older-than", "0s", "--run", "latest", "--json"))["kept"] == {
        "in the ledger": 2
    }


@pytest.mark.parametrize(
    ("age", "seconds"), [("30d", 2_592_000), ("12h", 43_200), ("1.5m", 90), ("0s", 0), ("2w", 1_209_600)]
)
def test_ages(age, seconds):
    assert seconds_of(age) == seconds


@pytest.mark.parametrize("age", ["30", "d", "-1d", "1y", ""])
def test_what_is_no_age(age):
    with pytest.raises(ConfigError, match=r"e\.g\. 30d or 12h"):
        seconds_of(age)


def test_without_bodies_the_tokens_can_still_be_looked_at(own, keep, ask):
    tokens = ask("tokens", own, "latest", "--json").stdout
    tree = ask("tree", own, "latest", "--json").stdout
    assert found(keep("prune", own, "--older-than", "0s", "--bodies-only", "--json"))["rows"] == {
        "bodies": 14,
        "messages": 19,
    }
    assert ask("tokens", own, "latest", "--json").stdout == tokens
    assert ask("tree", own, "latest", "--json").stdout == tree
    assert json.loads(ask("verify", own, "--json").stdout)["ok"]
    assert ask("show", own, "latest").output


def test_vacuum_says_what_it_gave_back(own, keep):
    with closing(sqlite3.connect(own)) as raw:
        raw.execute("CREATE TABLE big AS SELECT randomblob(2000000) AS x")
        raw.execute("DROP TABLE big")
        raw.commit()
    size = own.stat().st_size
    said = found(keep("vacuum", own, "--json"))
    assert said["before"] - said["after"] > 1_900_000
    assert own.stat().st_size < size - 1_900_000
    assert "before," in keep("vacuum", own).output


def test_a_run_is_taken_elsewhere(recorded, keep, ask, tmp_path):
    file, new = tmp_path / "run.hgrun", tmp_path / "new.db"
    made = found(keep("export", recorded.path, "latest", file, "--json"))
    assert (made["run_id"], made["rollouts"], made["rows"]["calls"]) == (recorded.run_id, 2, 14)
    assert made["bytes"] == file.stat().st_size
    assert "2 rollouts, 14 calls" in keep("import", file, new).output
    for words in (("list",), ("tree", "latest"), ("tokens", "latest"), ("show", "latest"), ("verify",)):
        command, *rest = words
        assert (
            ask(command, new, *rest, "--json").stdout == ask(command, recorded.path, *rest, "--json").stdout
        )
        assert (
            ask(command, file, *rest, "--json").stdout == ask(command, recorded.path, *rest, "--json").stdout
        )
    assert isinstance(keep("import", file, new, status=1).exception, StoreError)
    assert "exists already" in str(keep("export", recorded.path, "latest", file, status=1).exception)


def test_migrate_and_revision(keep, tmp_path):
    revision = keep("revision").stdout.strip()
    assert (
        keep("migrate", f"sqlite:///{tmp_path / 'new.db'}")
        .stdout.strip()
        .endswith(f"has schema revision {revision}.")
    )


@pytest.mark.parametrize("name", ["freeze", "thaw", "prune", "vacuum", "export", "import"])
def test_every_command_teaches(name, keep):
    command = get_command(app()).commands["store"].commands[name]
    assert command.help
    assert f"`harnessgym store {name} " in command.epilog
    assert "JSON: " in command.epilog
    assert "Exit status: 0 " in command.epilog
    assert "--json" in {option for parameter in command.params for option in parameter.opts}
    assert keep(name, "--help").output.count("JSON") >= 1
