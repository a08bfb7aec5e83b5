"""Runs whose processes are containers: what they are told, and what they cannot be."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def prepare(config, folder, *overrides):
    command = [sys.executable, "docker/run.py", "prepare", str(config), str(folder), *overrides]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


def test_several_policies_are_refused_before_anything_is_made(tmp_path):
    done = prepare("examples/two_policies.toml", tmp_path / "run")
    assert done.returncode == 1
    assert done.stderr.startswith(
        "harnessgym: examples/two_policies.toml: there is one engine and one trainer"
    )
    assert "harnessgym cluster" in done.stderr
    assert not (tmp_path / "run").exists()


def test_one_policy_has_settings_for_each_container_and_once(tmp_path):
    folder = tmp_path / "run"
    assert prepare("examples/quickstart.toml", folder, "--sandbox.backend", "process").returncode == 0
    services = {path.stem: json.loads(path.read_text()) for path in (folder / "services").iterdir()}
    assert set(services) == {"proxy", "engine", "node", "train-worker"}
    assert services["engine"]["agent"]["policy_id"]
    assert len({services["proxy"]["control_key"], services["node"]["control_key"]}) == 1
    assert prepare("examples/quickstart.toml", folder, "--sandbox.backend", "process").returncode == 0
    assert {path.stem: json.loads(path.read_text()) for path in (folder / "services").iterdir()} == services
