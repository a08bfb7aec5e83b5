"""What a user gets for a mistake: one message that names the cause and the remedy, before anything is
started.
"""

import json
import os
import socket
import subprocess
import sys
from contextlib import chdir
from pathlib import Path

import pytest

from harnessgym.store import TraceStore, runs
from tests.harnessgym.rollout.tiny import HERE
from tests.support.command import run_here

ROOT = Path(__file__).parents[1]
POLICY = ROOT / "environments/lookup/policy"


def harnessgym(*arguments):
    """A command in this process, as it would be in its own."""
    with chdir(ROOT):
        return run_here(arguments, COLUMNS="200")


def process(*arguments, path=None):
    """A command in a process of its own. `path` is a folder whose modules come before all others."""
    folders = [str(each) for each in (path, os.environ.get("PYTHONPATH")) if each]
    return subprocess.run(
        [sys.executable, "-m", "harnessgym", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        env=os.environ | {"COLUMNS": "200", "PYTHONPATH": os.pathsep.join(folders)},
        check=False,
    )


def refused(result, *, alone=True):
    """The one message of a command that refused, if `alone` before it had said anything else."""
    assert result.returncode == 2, result.stderr
    assert "Traceback" not in result.stdout + result.stderr
    assert result.stderr.startswith("harnessgym: ") or not alone
    assert result.stderr.count("harnessgym: ") == 1
    return result.stderr.removeprefix("harnessgym: ")


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        (
            ["--trainer.stesp", "3"],
            ["command line", "--trainer.stesp", "no such setting", "Did you mean 'steps'?"],
        ),
        (["--trianer.steps", "3"], ["--trianer.steps", "Did you mean 'trainer.steps'?"]),
        (["--engine.workers", "0"], ["command line", "engine.workers: no engine serves lookup-policy"]),
        (["--trainer.steps", "many"], ["trainer.steps", "integer", "'many'"]),
        (["--trainer.steps", "0"], ["trainer.steps", "greater than 0"]),
        (["--trainer.update.lrr", "1"], ["[trainer.update]", "lrr", "Did you mean 'lr'?"]),
        (
            ["--trainer.advantage", "hgpo", "--trainer.advantage_settings.histry", "1"],
            ["[trainer.advantage_settings]", "history"],
        ),
        (["--trainer.advantage_settings.eps", "1"], ["the advantage 'grpo' has no settings", "eps"]),
        (["--trainer.update.lr=-1"], ["[trainer.update]", "lr", "greater than 0"]),
        (["--tasks.set", "lookpu"], ["tasks.set", "'lookpu'", "Did you mean 'lookup'?", "Known: "]),
        (["--tasks.set", f"{HERE}:Nothing"], ["tasks.set", "Nothing"]),
        (["--tasks.set", f"{HERE}:Empty"], ["tasks.set", "no training tasks"]),
        (
            ["--sandbox.backend", "bubblewarp"],
            ["sandbox.backend", "Did you mean 'bubblewrap'?", "Known: bubblewrap, docker, process"],
        ),
        (["--sandbox.fallback", "prozess"], ["sandbox.fallback", "Did you mean 'process'?"]),
        (["--trainer.algorithm", "gpro"], ["trainer.algorithm", "Did you mean 'grpo'?"]),
        (["--trainer.advantage", "gropo"], ["trainer.advantage", "Did you mean 'grpo'?"]),
        (["--generate.selector", "vane"], ["generate", "Did you mean 'vade'?"]),
        (
            ["--generate.selector", "vade", "--generate.settings.decay", "2"],
            ["generate", "selector 'vade'", "decay"],
        ),
        (["--trainer.zero_signal", "refill"], ["trainer.zero_signal", "no such setting"]),
        (["--policy.path", "/nowhere/model"], ["policy.path", "/nowhere/model", "config.json"]),
        (["--trainer.steps"], ["--trainer.steps", "no value"]),
    ],
)
def test_a_wrong_setting_is_refused_before_anything_is_started(tmp_path, overrides, parts):
    said = refused(harnessgym("train", "examples/quickstart.toml", "--folder", tmp_path / "run", *overrides))
    for part in parts:
        assert part in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("harness", "parts"),
    [
        (
            {"name": "a", "type": "comand", "settings": {}},
            ["harness 'a'", "'comand'", "Did you mean 'command'?"],
        ),
        ({"name": "a", "settings": {"argv": ["python", "nowhere.py"]}}, ["harness 'a'", "nowhere.py"]),
        ({"name": "a", "settings": {"agrv": ["python"]}}, ["harness 'a'", "Did you mean 'argv'?"]),
        ({"name": "a", "settings": {"argv": ["python", "--key={key}"]}}, ["harness 'a'", "Put it into env"]),
    ],
)
def test_a_wrong_harness_is_refused_before_anything_is_started(tmp_path, harness, parts):
    config = {
        "name": "x",
        "policy": {"path": str(POLICY)},
        "tasks": {"set": "lookup"},
        "harnesses": [harness],
    }
    (tmp_path / "run.json").write_text(json.dumps(config))
    said = refused(harnessgym("train", tmp_path / "run.json", "--folder", tmp_path / "run"))
    for part in parts:
        assert part in said
    assert not (tmp_path / "run").exists()


def test_a_missing_and_a_malformed_file(tmp_path):
    assert "no config file" in refused(process("train", tmp_path / "run.toml"))
    (tmp_path / "run.toml").write_text("name = \n")
    said = refused(harnessgym("train", tmp_path / "run.toml"))
    assert "run.toml" in said
    assert "line 1" in said


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    said = refused(harnessgym("train", "examples/quickstart.toml", "--folder", tmp_path / "file" / "run"))
    assert str(tmp_path / "file") in said
    assert "--folder" in said


def test_an_agent_without_a_name_is_the_only_thing_that_is_wrong(tmp_path):
    config = {
        "name": "x",
        "policy": {"path": str(POLICY)},
        "tasks": {"set": "lookup"},
        "harnesses": [{"settings": {}}],
    }
    (tmp_path / "run.json").write_text(json.dumps(config))
    said = refused(harnessgym("train", tmp_path / "run.json", "--folder", tmp_path / "run"))
    assert (
        said == f"{tmp_path}/run.json has 1 wrong setting:\n  harnesses.0.name: this setting is required.\n"
    )


def test_what_the_system_refuses_is_one_message(tmp_path):
    said = refused(harnessgym("train", "examples/quickstart.toml", "--folder", "/proc/run"), alone=False)
    assert "/proc/run: No such file or directory" in said
    assert "Is a directory. Give a TOML or JSON file" in refused(harnessgym("train", tmp_path))


def test_a_read_only_disk_is_one_message(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("needs the right to mount a tmpfs")
    try:
        said = refused(
            harnessgym("train", "examples/quickstart.toml", "--folder", folder / "run"), alone=False
        )
    finally:
        subprocess.run(["umount", str(folder)], check=True)
    for part in (str(folder / "run"), "Read-only file system", "Give a folder on a disk that can be written"):
        assert part in said


def test_a_library_that_cannot_be_loaded_is_one_message(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text(
        "raise ImportError('libcudart.so.12: cannot open shared object file')\n"
    )
    said = refused(process("engine", POLICY, path=tmp_path))
    for part in ("libcudart.so.12: cannot open shared object file", "trainers/", "pip install"):
        assert part in said


@pytest.fixture
def taken():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_a_taken_port_of_the_proxy(tmp_path, taken):
    url = f"sqlite:///{tmp_path}/traces.db"
    with TraceStore.create(url) as store:
        run = store.write(lambda conn: runs.add(conn, "x", {}, "0", "training"))
    fixed = ["--store", url, "--run_id", run, "--policy", POLICY, "--control_key", "k"]
    taken_first, taken_second = (
        ["--port", taken, "--control_port", 0],
        ["--port", 0, "--control_port", taken],
    )
    for start, ports in ((process, taken_first), (harnessgym, taken_second)):
        said = refused(start("proxy", *fixed, *ports))
        assert f"127.0.0.1:{taken}" in said
        assert "in use" in said


def test_a_taken_port_of_an_engine(taken):
    said = refused(process("engine", POLICY, "--port", taken))
    assert f"127.0.0.1:{taken}" in said
    assert "Choose another --port" in said


def test_a_model_folder_that_is_none(tmp_path):
    assert str(tmp_path) in refused(process("engine", tmp_path, "--port", 0))


def test_a_store_that_is_not_there(tmp_path):
    said = refused(
        harnessgym(
            "proxy",
            "--store",
            f"sqlite:///{tmp_path}/no.db",
            "--run_id",
            "x",
            "--policy",
            POLICY,
            "--control_key",
            "k",
        )
    )
    assert "harnessgym store migrate" in said


def test_a_folder_that_holds_another_run(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    config = ["train", "examples/quickstart.toml", "--folder", folder]
    from harnessgym.config import load_config
    from harnessgym.run_config.run import RunConfig
    from harnessgym.supervisor import prepare

    prepare(load_config(RunConfig, ROOT / "examples/quickstart.toml"), folder)
    said = refused(harnessgym(*config, "--seed", 7, "--trainer.update.lr", 0.5))
    for part in (
        "another configuration",
        "seed was 0 and is 7",
        "trainer.update.lr was 0.0004 and is 0.5",
        "--folder",
    ):
        assert part in said


@pytest.mark.parametrize(
    "command", ["train", "proxy", "engine", "node", "train-worker", "traces", "store", "list", "doctor"]
)
def test_every_help_teaches(command):
    result = harnessgym(command, "--help")
    assert result.returncode == 0
    assert "Usage: harnessgym" in result.stdout or f"{command} [OPTIONS]" in result.stdout
    if command in ("train", "proxy", "engine"):
        assert f"harnessgym {command} " in result.stdout.partition("Example")[2]
    if command == "train":
        assert "--trainer.steps 3" in result.stdout
        assert "130 interrupted" in result.stdout


def test_an_unknown_command_and_a_missing_file_are_usage_errors():
    assert harnessgym("tarin").returncode == 2
    result = process("train")
    assert result.returncode == 2
    assert "harnessgym train run.toml" in result.stderr


def test_in_a_service_what_the_system_refuses_can_be_tried_again_and_looked_into():
    env = os.environ | {"HARNESSGYM_PARENT": str(os.getpid())}
    command = [sys.executable, "-m", "harnessgym", "train-worker", "--run", "/dev/null"]
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=60, cwd=ROOT, env=env, check=False
    )
    assert result.returncode == 1  # 2 would end the run
    assert "Traceback" in result.stderr
    assert result.stderr.splitlines()[-1].startswith(
        "harnessgym: /dev/null/config.json: Not a directory (harnessgym/"
    )
    alone = refused(harnessgym("train-worker", "--run", "/dev/null"))
    assert alone.startswith("/dev/null/config.json: Not a directory")
