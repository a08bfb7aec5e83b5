"""A whole training run on PostgreSQL, whose server crashes in the middle and comes back."""

import json
import signal
import subprocess
import sys

import pytest

from tests.support.postgres import PostgresServer
from tests.test_bad_input_runs import ROOT, Run, none_left


@pytest.mark.postgres
def test_a_run_on_postgresql_outlives_a_crash_of_its_server(tmp_path):
    with PostgresServer() as cluster:
        url = cluster.create_database()
        run = Run(tmp_path, "good", store={"url": url}, trainer={"groups_per_step": 1}).start()
        run.wait(lambda: run.steps() >= 1)
        cluster.stop(signal.SIGQUIT)
        cluster.start()
        said = run.end()
        assert url in said
        summary = json.loads(run.paths().summary_path.read_text())
        assert run.steps() == 2
        assert summary["tokens_sampled"] == summary["tokens_trained"] + summary["tokens_excluded"]
        assert not (run.folder / "traces.db").exists()
        verify = [sys.executable, "-m", "harnessgym", "traces", "verify", url, "--json"]
        report = json.loads(
            subprocess.run(verify, capture_output=True, text=True, cwd=ROOT, check=True, timeout=60).stdout
        )
        assert report["checked"]["calls"] >= summary["calls"] > 0
    assert not none_left(run.folder)
