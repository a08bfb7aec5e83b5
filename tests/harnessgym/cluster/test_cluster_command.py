"""What `harnessgym cluster` says before anything is placed."""

import json
import subprocess
import sys

import pytest

from harnessgym.cluster.backend import desired_nodes, set_desired_nodes
from harnessgym.errors import ConfigError
from harnessgym.run_folder import RunFolder
from tests.test_bad_input_runs import ROOT, Run

NOWHERE = "postgresql+psycopg:///nothing?host=/nonexistent"


def said(*arguments, code=0):
    done = subprocess.run(
        [sys.executable, "-m", "harnessgym", "cluster", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=100,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def run_file(tmp_path, **sections):
    return Run(tmp_path, "good", **sections).config


@pytest.mark.ray
def test_without_a_cluster_it_is_said_how_to_make_one(tmp_path):
    config = run_file(tmp_path, store={"url": NOWHERE}, cluster={"address": "127.0.0.1:9"})
    assert "ray start --head" in said(config, "--folder", tmp_path / "run", code=2)


def test_what_machines_cannot_share_is_refused(tmp_path):
    assert "cannot share a SQLite file" in said(run_file(tmp_path), "--folder", tmp_path / "a", code=2)
    serving = run_file(tmp_path, store={"url": NOWHERE}, node={"serve": "127.0.0.1:0"})
    assert "node.serve" in said(serving, "--folder", tmp_path / "b", code=2)


def test_a_misspelt_need_is_refused_with_the_nearest_one(tmp_path):
    config = run_file(tmp_path, cluster={"engine": {"gpu": 1}})
    assert "Did you mean 'gpus'?" in said(config, code=2)


def test_help_teaches_and_lists_the_settings():
    assert "ray start --address" in said("--help")
    assert "cluster.engine.gpus" in said("run", "--show-settings")


def test_nodes_are_shown_and_wished_for(tmp_path):
    config = json.loads(run_file(tmp_path).read_text()) | {"cluster": {"nodes": 2}}
    folder = RunFolder(tmp_path / "run")
    folder.root.mkdir()
    folder.config_path.write_text(json.dumps(config))
    assert desired_nodes(folder) == 2
    told = said("nodes", folder.root, "--add", 3, "--remove", 1)
    assert "4 nodes are wanted" in told
    assert "No process of it has a place now" in told
    assert "at least one must stay" in said("nodes", folder.root, "--remove", 4, code=2)
    assert desired_nodes(folder) == 4
    row = {"state": "running", "where": "pid 7 on a (10.0.0.1)", "restarts": 2}
    (folder.root / "places.json").write_text(json.dumps({"node-0": row}))
    assert "pid 7 on a (10.0.0.1)" in said("nodes", folder.root)
    with pytest.raises(ConfigError):
        set_desired_nodes(folder, 0)
    (folder.root / "nodes.json").write_text("torn")
    assert desired_nodes(folder) == 2
