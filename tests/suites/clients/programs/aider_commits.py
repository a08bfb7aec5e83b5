"""aider in a repository of its own, with one message. Prints what it wrote and committed as one line of JSON."""

import json
import os
import subprocess
import sys
from pathlib import Path

WORDS = (
    "--edit-format", "diff", "--no-check-update", "--analytics-disable", "--no-show-model-warnings",
    "--no-show-release-notes", "--no-gitignore", "--yes-always", "--no-detect-urls",
)  # fmt: skip


def play(case):
    """One case."""
    repository = Path(case["name"].replace(" ", "-"))
    env = {**os.environ, **case["env"], "LITELLM_LOCAL_MODEL_COST_MAP": "True"}

    def run(*argv):
        done = subprocess.run(argv, cwd=repository, env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{argv}: {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        return done.stdout

    repository.mkdir()
    for argv in (
        ("init", "--quiet"),
        ("config", "user.email", "a@b"),
        ("config", "user.name", "a"),
        ("commit", "--quiet", "--allow-empty", "-m", "Begin"),
    ):
        run("git", *argv)
    streaming = () if case["streams"] else ("--no-stream",)
    model = ("--model", "openai/policy")
    said = run(sys.executable, "-m", "aider", *model, *WORDS, *streaming, "-m", case["prompt"])
    written = repository / "hello.txt"
    if not written.exists():
        sys.exit(f"aider wrote nothing:\n{said[-2000:]}")
    return f"{written.read_text().strip()}: {run('git', 'log', '-1', '--format=%s').strip()}"


print(json.dumps({case["name"]: play(case) for case in json.loads(Path(sys.argv[1]).read_text())}))
