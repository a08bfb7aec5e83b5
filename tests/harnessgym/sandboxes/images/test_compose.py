"""The compose file: what it runs exists, in images that recipes make."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from harnessgym.run_folder import RunFolder
from harnessgym.sandboxes.images.recipes import recipe_name
from harnessgym.store import TraceStore, runs

ROOT = Path(__file__).parents[4]
COMPOSE = ROOT / "docker" / "compose.yaml"


def services():
    return yaml.safe_load(COMPOSE.read_text())["services"]


def words(command):
    """A command's words, with the defaults of its variables."""
    return [re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", word) for word in command]


def test_every_service_runs_a_recipes_image_without_rights():
    for name, service in services().items():
        recipe = recipe_name(service["image"])
        assert recipe in ("proxy", "trainer"), name
        assert (ROOT / "docker" / service["build"]["dockerfile"]).is_file() or (
            ROOT / service["build"]["dockerfile"]
        ).is_file()
        assert service["cap_drop"] == ["ALL"]
        assert not any("docker.sock" in volume for volume in service["volumes"])


def test_the_services_wait_for_what_makes_the_run_ready():
    found = services()
    assert set(found) == {"prepare", "proxy", "engine", "node", "trainer"}
    for name in set(found) - {"prepare"}:
        assert found[name]["depends_on"] == {"prepare": {"condition": "service_completed_successfully"}}


def test_what_is_prepared_is_what_the_services_read(tmp_path):
    folder = tmp_path / "compose"
    command = [
        sys.executable,
        *(word.replace("/runs/compose", str(folder)) for word in words(services()["prepare"]["command"])[1:]),
    ]
    for _ in range(2):  # the second time changes nothing
        subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
        made = {path.stem: path.read_text() for path in (folder / "services").glob("*.json")}
        assert set(made) == {"proxy", "engine", "node", "train-worker"}
        with TraceStore.open(RunFolder(folder).store_url()) as store:
            assert store.read(runs.only).status == "training"
    for name, service in services().items():
        for path in re.findall(r"/runs/compose/services/([\w-]+)\.json", " ".join(service["command"])):
            assert path in made, name
            assert f" {path} " in " ".join(service["command"])


def test_finishing_closes_the_run(tmp_path):
    folder = tmp_path / "compose"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    script = [sys.executable, str(ROOT / "docker" / "run.py")]
    subprocess.run(
        [*script, "prepare", "examples/quickstart.toml", str(folder)], check=True, cwd=ROOT, env=env
    )
    subprocess.run([*script, "finish", str(folder)], check=True, cwd=ROOT, env=env)
    with TraceStore.open(RunFolder(folder).store_url()) as store:
        assert store.read(runs.only).status == "done"


def test_compose_itself_reads_it():
    docker = shutil.which("docker")
    if (
        docker is None
        or subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode != 0
    ):
        pytest.skip("needs the compose plugin of the docker command")
    subprocess.run([docker, "compose", "-f", str(COMPOSE), "config", "--quiet"], check=True)
