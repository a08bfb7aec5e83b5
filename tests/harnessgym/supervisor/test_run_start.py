"""Which run a start is of: the folder's own in the folder's own database, or none at all."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import asdict
from functools import partial

import pytest
from typer.testing import CliRunner

from harnessgym.cli import app
from harnessgym.errors import ConfigError, HarnessGymError, StoreError
from harnessgym.run_folder import RunFolder, write_json
from harnessgym.run_identity import RunIdentity, enter_run, find_run, read_identity, run_of
from harnessgym.store import TraceStore, policies, runs
from harnessgym.store.backend import open_backend
from harnessgym.store.schema import head_revision, revision_of, upgrade
from harnessgym.supervisor import prepare
from harnessgym.supervisor.preparation import resolved
from tests.harnessgym.supervisor.starts import OUTSIDE, config, publish, refused, start, stored


def command(*words):
    """Runs `harnessgym ...` in this process."""
    return CliRunner().invoke(app(), [str(word) for word in words])


def without_identity(folder):
    """What a release that wrote no `run.json` left."""
    folder.identity_path.unlink()
    write_json(folder.root / "sandbox.json", "process")


@pytest.mark.parametrize("kind", ["inside", *OUTSIDE])
def test_a_run_is_started_once_and_then_continued(tmp_path, make_url, kind):
    told = config(make_url(kind))
    first = start(tmp_path / "run", told)
    assert str(first) == f"Starts run {first.run_id}: 6 steps."
    folder = RunFolder(tmp_path / "run")
    run = stored(folder.store_url())[0]
    assert read_identity(folder) == RunIdentity(
        first.run_id, "x", run.created_at, str(folder.root), in_store=True
    )
    assert (run.id, run.status) == (first.run_id, "evaluating_before")
    publish(folder, 0)
    publish(folder, 4)
    assert str(start(folder.root, told)) == f"Continues run {first.run_id} at step 4 of 6."
    assert [run.id for run in stored(folder.store_url())] == [first.run_id]


@pytest.mark.parametrize("kind", OUTSIDE)
@pytest.mark.parametrize("steps", [6, 4])
def test_a_database_that_holds_a_run_is_not_another_folders(tmp_path, make_url, kind, steps):
    url = make_url(kind)
    first = start(tmp_path / "first", config(url))
    refused(tmp_path / "second", config(url, steps), "holds another run already", first.run_id, "--store.url")
    publish(RunFolder(tmp_path / "first"), 0)
    said = refused(
        tmp_path / "second", config(url, steps), first.run_id, "'x'", f"of the folder {tmp_path / 'first'}"
    )
    assert f"continue that run with --folder {tmp_path / 'first'}" in said
    assert [run.id for run in stored(url)] == [first.run_id]
    assert not (tmp_path / "second" / "run.json").exists()
    second = start(
        tmp_path / "second", config(make_url(kind, "other"), seed=9)
    )  # what was refused binds nobody
    assert (second.kind, second.run_id == first.run_id) == ("starts", False)
    assert start(tmp_path / "first", config(url)).run_id == first.run_id


@pytest.fixture
def in_database():
    """`in_database(url, work)`: what work on a bare connection to a database returns."""
    engines = []

    def run(url, work):
        backend = open_backend(url)
        engines.append(backend.engine())
        with engines[-1].connect() as conn:
            return work(conn, backend)

    yield run
    for engine in engines:
        engine.dispose()


@pytest.mark.parametrize("kind", OUTSIDE)
def test_another_folders_run_of_an_earlier_release_is_refused_and_not_migrated(
    tmp_path, make_url, kind, in_database
):
    url = make_url(kind)
    values = resolved(config(url)).model_dump(mode="json")

    def release(conn, backend):
        upgrade(conn, backend.alone, "0010")
        with conn.begin():
            return runs.add(conn, "old", values, "0", "training")

    run_id = in_database(url, release)
    refused(tmp_path / "run", config(url), "holds another run already", run_id)
    assert in_database(url, lambda conn, _: revision_of(conn)) == "0010"
    folder = prepare(config(url), tmp_path / "old")
    identity = RunIdentity(run_id, "old", 1.0, str(folder.root), in_store=True)
    write_json(folder.identity_path, asdict(identity))
    assert start(folder.root, config(url)).run_id == run_id  # its own folder's start migrates it
    assert in_database(url, lambda conn, _: revision_of(conn)) == head_revision()


@pytest.mark.parametrize("kind", ["inside", *OUTSIDE])
def test_a_database_that_was_emptied_or_replaced_is_not_the_folders(tmp_path, make_url, kind):
    told, others = config(make_url(kind)), config(make_url(kind, "other"))
    first, other = start(tmp_path / "run", told), start(tmp_path / "other", others)
    folder, another = RunFolder(tmp_path / "run"), RunFolder(tmp_path / "other")
    if kind == "inside":
        for suffix in ("", "-wal", "-shm"):
            (folder.root / f"traces.db{suffix}").unlink(missing_ok=True)
        refused(
            folder.root, told, f"is the folder of run {first.run_id}", "it is empty", "Restore the database"
        )
        shutil.copy(another.root / "traces.db", folder.root / "traces.db")
        replaced = told
    else:
        emptied = config(make_url(kind, "empty"))
        refused(
            folder.root,
            emptied,
            f"is the folder of run {first.run_id}",
            "it is empty",
            "Restore the database",
        )
        replaced = others
    said = refused(folder.root, replaced, f"no longer holds: it holds run {other.run_id}", "another --folder")
    assert first.run_id in said
    assert folder.config().store.url == told.store.url
    if kind != "inside":
        assert start(folder.root, told).run_id == first.run_id


@pytest.mark.parametrize("kind", ["inside", *OUTSIDE])
def test_what_reads_a_run_refuses_a_database_that_holds_another(tmp_path, make_url, kind):
    first = start(tmp_path / "run", config(make_url(kind)))
    folder = RunFolder(tmp_path / "run")
    url = folder.store_url()
    identity = json.loads(folder.identity_path.read_text())
    write_json(folder.identity_path, identity | {"id": "elsewhere"})
    with (
        TraceStore.open(url) as store,
        pytest.raises(ConfigError, match=f"elsewhere .* holds run {first.run_id}"),
    ):
        store.read(partial(run_of, folder=folder))
    for words in (["watch", folder.root, "--once"], ["traces", "list", folder.root]):
        done = command(*words)
        assert (type(done.exception), first.run_id in str(done.exception)) == (ConfigError, True), done.output


def test_several_runs_in_one_database_are_refused_and_can_be_moved_apart(tmp_path, make_url):
    url, own = make_url("sqlite"), make_url("sqlite", "own")
    told = config(url)
    first = start(tmp_path / "run", told)
    with TraceStore.open(url) as store:
        other = store.write(lambda conn: runs.add(conn, "import", {}, "0", "done"))
        with pytest.raises(StoreError, match=f"holds 2 runs .*{other}"):
            store.read(runs.only)
        assert store.read(partial(run_of, folder=RunFolder(tmp_path / "run"))).id == first.run_id
    refused(tmp_path / "new", told, "holds 2 runs", first.run_id, other, "a database of its own")
    said = refused(
        tmp_path / "run", told, "holds 2 runs", other, f"store export {url} {first.run_id} run.hgrun"
    )
    for line in re.findall("`harnessgym (.*?)`", said):
        done = command(
            *line.replace("NEW_URL", own).replace("run.hgrun", str(tmp_path / "run.hgrun")).split()
        )
        assert done.exit_code == 0, (done.output, done.exception)
    assert start(tmp_path / "run", config(own)).run_id == first.run_id
    assert RunFolder(tmp_path / "run").config().store.url == own


def test_a_run_folder_takes_no_imports_and_no_wrapped_commands(tmp_path):
    start(tmp_path / "run", config())
    (tmp_path / "file.json").write_text("{}")
    wrap = ["wrap", "--upstream", "scripted", "--folder", tmp_path / "run", "--", "true"]
    for words in (
        ["store", "import", tmp_path / "file.json", tmp_path / "run"],
        ["traces", "import", tmp_path / "run", tmp_path / "file.json"],
        wrap,
    ):
        done = command(*words)
        assert isinstance(done.exception, HarnessGymError), done.output
        assert "its database holds that run alone" in str(done.exception)
    assert len(stored(RunFolder(tmp_path / "run").store_url())) == 1


def test_a_copied_folder_with_its_database_inside_is_a_run_of_its_own(tmp_path):
    first = start(tmp_path / "run", config())
    folder = RunFolder(tmp_path / "run")
    publish(folder, 0)
    publish(folder, 1)
    write_json(folder.processes_path, {"engine-0": [os.getpid(), 1]})
    shutil.copytree(folder.root, tmp_path / "copy")
    copy = RunFolder(tmp_path / "copy")
    assert str(start(copy.root, config())) == f"Continues run {first.run_id} at step 1 of 6."
    assert read_identity(copy).folder == str(copy.root)
    assert not copy.processes_path.exists()  # they are the original's
    assert folder.processes_path.exists()
    with TraceStore.open(copy.store_url()) as store:
        policy = store.read(lambda conn: policies.of_run(conn, first.run_id))["policy"]
        paths = [version.path for version in store.read(lambda conn: policies.versions(conn, policy))]
    assert paths == [str(copy.versions / name) for name in ("v00000000", "v00000001")]


@pytest.mark.parametrize("kind", OUTSIDE)
def test_of_two_copies_of_a_folder_one_alone_goes_on_with_the_run(tmp_path, make_url, kind):
    told = config(make_url(kind))
    first = start(tmp_path / "run", told)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    refused(tmp_path / "copy", told, f"is a copy of {tmp_path / 'run'}", first.run_id)
    shutil.rmtree(tmp_path / "run")
    assert start(tmp_path / "copy", told).run_id == first.run_id
    assert read_identity(RunFolder(tmp_path / "copy")).folder == str(tmp_path / "copy")


@pytest.mark.parametrize("kind", ["inside", *OUTSIDE])
def test_a_folder_of_an_earlier_release_is_taken_up_with_its_own_run(tmp_path, make_url, kind):
    told = config(make_url(kind))
    first = start(tmp_path / "run", told)
    folder = RunFolder(tmp_path / "run")
    publish(folder, 3)
    without_identity(folder)
    refused(folder.root, config(make_url(kind), seed=1), "seed was 0 and is 1")
    assert str(start(folder.root, told)) == f"Continues run {first.run_id} at step 3 of 6."
    assert read_identity(folder).id == first.run_id
    without_identity(folder)
    folder.root.rename(tmp_path / "moved")
    assert start(tmp_path / "moved", told).run_id == first.run_id


@pytest.mark.parametrize("kind", OUTSIDE)
def test_a_folder_of_an_earlier_release_that_adopted_anothers_run_is_refused(tmp_path, make_url, kind):
    told = config(make_url(kind))
    first = start(tmp_path / "run", told)
    publish(RunFolder(tmp_path / "run"), 3)
    adopter = prepare(told, tmp_path / "adopter")
    write_json(adopter.root / "sandbox.json", "process")
    refused(adopter.root, told, f"run {first.run_id}", f"of the folder {tmp_path / 'run'}")
    shutil.copytree(tmp_path / "run" / "versions", adopter.versions)
    refused(adopter.root, told, f"run {first.run_id}", f"of the folder {tmp_path / 'run'}")
    emptied = config(make_url(kind, "empty"))
    refused(adopter.root, emptied, "sandbox.json", "is empty", "Restore the database")


def test_a_database_in_the_folder_with_another_configuration_is_not_adopted(tmp_path):
    (tmp_path / "run").mkdir()
    with TraceStore.create(f"sqlite:///{tmp_path}/run/traces.db") as store:
        wrapped = store.write(lambda conn: runs.add(conn, "wrap", {"kind": "scripted"}, "0", "done"))
    refused(tmp_path / "run", config(), "holds another run already", wrapped)
    assert not (tmp_path / "run" / "run.json").exists()


class KilledError(Exception):
    """Here the process would be gone."""


def killed(conn, run_id):
    raise KilledError


@pytest.mark.parametrize("kind", ["inside", *OUTSIDE])
def test_a_start_that_was_killed_before_the_run_was_in_the_database_is_completed(tmp_path, make_url, kind):
    told = config(make_url(kind))
    folder = prepare(told, tmp_path / "run")
    with TraceStore.create(folder.store_url()) as store:
        assert find_run(folder, store, lambda _: True) is None
        with pytest.raises(KilledError):
            enter_run(folder, store, "x", killed)
        assert (store.read(runs.all_of), store.read(partial(run_of, folder=folder))) == ([], None)
    left = read_identity(folder)
    assert not left.in_store
    begun = start(folder.root, told)
    assert (begun.kind, begun.run_id) == ("starts", left.id)
    assert [run.id for run in stored(folder.store_url())] == [left.id]
    assert read_identity(folder).in_store


@pytest.mark.parametrize("kind", ["inside", *OUTSIDE])
def test_a_start_that_was_killed_behind_the_database_is_completed(tmp_path, make_url, kind):
    told = config(make_url(kind))
    first = start(tmp_path / "run", told)
    folder = RunFolder(tmp_path / "run")
    identity = json.loads(folder.identity_path.read_text())
    write_json(folder.identity_path, identity | {"in_store": False, "created_at": 1.0})
    assert str(start(folder.root, told)) == f"Continues run {first.run_id} at step 0 of 6."
    assert json.loads(folder.identity_path.read_text()) == identity


@pytest.mark.parametrize("left", ["config.json", "traces.db", "both"])
def test_a_start_that_was_killed_before_run_json_is_begun_again(tmp_path, left):
    folder = RunFolder(tmp_path / "run")
    if left != "traces.db":
        prepare(config(), folder.root)
    if left != "config.json":
        TraceStore.create(f"sqlite:///{folder.root}/traces.db").close()
    assert start(folder.root, config()).kind == "starts"


@pytest.mark.parametrize("kind", OUTSIDE)
def test_a_database_that_another_took_while_a_start_was_killed_is_refused(tmp_path, make_url, kind):
    told = config(make_url(kind))
    folder = prepare(told, tmp_path / "run")
    with TraceStore.create(folder.store_url()) as store, pytest.raises(KilledError):
        enter_run(folder, store, "x", killed)
    other = start(tmp_path / "other", told)
    refused(folder.root, told, "holds another run already", other.run_id)
    assert start(folder.root, config(make_url(kind, "own"))).kind == "starts"


RACE = """
import json, os, sys, pathlib
from harnessgym.config import validate
from harnessgym.run_config.run import RunConfig
from harnessgym.supervisor import prepare, start_run
from harnessgym.errors import ConfigError
config = validate(RunConfig, json.loads(sys.argv[1]), "the test")
folders = [prepare(config, pathlib.Path(root)) for root in sys.argv[2:]]
waits, go = os.pipe()
for folder in folders:
    if os.fork() == 0:
        os.close(go)
        os.read(waits, 1)
        try:
            said = start_run(folder, config).run_id
        except ConfigError as error:
            said = str(error)
        os.write(1, f"{said}\\n".encode())
        os._exit(0)
os.close(go)
for _ in folders:
    os.wait()
"""
"""Starts a run in each folder at once, every one in a process of its own. They are forked from one that has
imported everything, and start when its end of the pipe is closed."""


@pytest.mark.parametrize("kind", OUTSIDE)
def test_of_two_folders_that_start_at_the_same_moment_one_gets_the_database(tmp_path, make_url, kind):
    url = make_url(kind)
    TraceStore.create(url).close()
    told = json.dumps(config(url).model_dump(mode="json"))
    roots = [tmp_path / name for name in ("a", "b", "c")]
    race = [sys.executable, "-c", RACE, told, *map(str, roots)]
    said = subprocess.run(
        race, stdout=subprocess.PIPE, text=True, check=True, timeout=120
    ).stdout.splitlines()
    (run,) = stored(url)
    assert len(said) == 3
    assert said.count(run.id) == 1
    assert sum("holds another run already" in line for line in said) == 2
    assert sum((root / "run.json").exists() for root in roots) == 1


def test_a_torn_run_json_is_named(tmp_path):
    start(tmp_path / "run", config())
    (tmp_path / "run" / "run.json").write_text('{"id": ')
    refused(tmp_path / "run", config(), "run.json cannot be read", "Restore it from a copy")
