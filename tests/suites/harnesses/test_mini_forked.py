"""mini-swe-agent, unmodified and forked, configured by its own file: its one command is run and graded."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from environments.one_liners import OneLiners
from harnessgym.harnesses.mini_swe_agent import MiniSweAgent, MiniSweAgentConfig
from tests.suites.harnesses.run import prepared

ROOT = Path(__file__).parents[3]
CONFIG = tomllib.loads((ROOT / "benchmarks/smollm2.toml").read_text())["harnesses"][0]["settings"]["config"]
TASK = OneLiners().tasks("train")[1]

pytestmark = [pytest.mark.bubblewrap, pytest.mark.agents]


@pytest.mark.parametrize("fence", [False, True], ids=["plain", "fenced"])
def test_one_command_is_run_and_graded(tmp_path: Path, fence: bool) -> None:
    settings = MiniSweAgentConfig(config=CONFIG, prewarm=True)
    if not prepared(MiniSweAgent(settings).install()):
        pytest.skip("the agent is not installed: harnessgym install mini_swe_agent")
    assert TASK.solution is not None
    command = TASK.solution.run[0][-1]
    said = f"```bash\n{command}\n```\nDone." if fence else f"{command}\nrm -r ."
    (tmp_path / "script.toml").write_text(f"answers = [{json.dumps(said)}]\n")
    words = [sys.executable, "-m", "harnessgym", "rollout", "--tasks", "one_liners", "--task", TASK.id]
    words += ["--harness", "mini_swe_agent", "--set", f"config={json.dumps(CONFIG)}", "--set", "prewarm=true"]
    words += [
        "--upstream",
        f"scripted:{tmp_path}/script.toml",
        "--policy",
        "environments/lookup/policy",
        "--retry",
        "0",
    ]
    subprocess.run([*words, "--folder", str(tmp_path / "run")], cwd=ROOT, check=True, capture_output=True)
    (line,) = (json.loads(line) for line in (tmp_path / "run/results.jsonl").read_text().splitlines())
    assert (line["verdict"], line["reward"], line["calls"], line["stop_reason"]) == (
        "valid",
        1.0,
        1,
        "finished",
    )
