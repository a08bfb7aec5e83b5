"""Runs a task's checks inside the container that its tests run in, for tasks written in Harbor's format.

Runs as `/tests/check.py` in the working folder, beside `checks.json`, `matching.py` and `file_rules.py`, with
only the standard library. A task with a `pytest` check also has `pytests.py` and its modules there. The
expected results are read, and their file removed, before any code of the agent's is started.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable, Dict, Tuple  # noqa: UP035 - for older Pythons

HERE = Path(__file__).resolve().parent
REWARDS = Path("/logs/verifier")
Judge = Callable[[Dict[str, Any], Path], Tuple[str, float]]  # noqa: UP006 - for older Pythons
"""A check and a copy of the working folder -> what is wrong (empty if nothing), and the fraction that
passed."""


def main(rewards: Path) -> None:
    """Runs every check in its own copy of the working folder, and writes the reward to `rewards`."""
    sys.path.insert(0, str(HERE))
    plan = json.loads((HERE / "checks.json").read_text(encoding="utf-8"))
    try:
        (HERE / "checks.json").unlink()
    except OSError as error:
        sys.stdout.write(f"checks.json stays: {error}\n")
    rewards.mkdir(parents=True, exist_ok=True)
    kinds = dict(KINDS)
    if any(check["kind"] == "pytest" for check in plan["checks"]):
        kinds["pytest"] = pytest_judge(plan["test_files"], rewards)
    parts = []
    for number, check in enumerate(plan["checks"]):
        with tempfile.TemporaryDirectory() as place:
            lay(plan["artifacts"], Path(place))
            problem, part = kinds[check["kind"]](check, Path(place))
        parts.append(part)
        sys.stdout.write(f"{check['name'] or number}: {problem or 'passed'}\n")
    weights = [check["weight"] for check in plan["checks"]]
    # For older Pythons.
    weighted = sum(weight * part for weight, part in zip(weights, parts)) / sum(weights)  # noqa: B905
    reward = float(all(part == 1.0 for part in parts)) if plan["score"] == "all" else weighted
    (rewards / "reward.txt").write_text(f"{reward!r}\n", encoding="utf-8")


def pytest_judge(names: list[str], rewards: Path) -> Judge:
    """See `harnessgym.grading.runners.pytests`. If this runs as root, only root can write to `rewards` from
    here on.
    """
    from pytests import PytestJudge  # type: ignore[import-not-found,unused-ignore]

    if os.geteuid() == 0:
        rewards.chmod(0o755)
    judge: Judge = PytestJudge(HERE, names, run).judge
    return judge


def lay(artifacts: list[str], place: Path) -> None:
    """Copies the artifacts from the working folder to `place`, without compiled Python unless it is named."""
    for name in artifacts:
        source, target = Path(name), place / name
        if source.is_dir() and not source.is_symlink():
            ignore = None if "__pycache__" in source.parts else shutil.ignore_patterns("__pycache__", "*.pyc")
            shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True, ignore=ignore)
        elif os.path.lexists(source):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)


def run(
    argv: list[str], place: Path, stdin: bytes, timeout_s: float, user: int | None = None, **env: str
) -> tuple[int | None, bytes]:
    """Runs a command as `user` (needs root) and returns its exit code and output.

    The exit code is None if the command timed out or a signal ended it.
    """
    owner: dict[str, Any] = {} if user is None else {"user": user, "group": user, "extra_groups": []}
    command = subprocess.Popen(
        argv,
        cwd=place,
        env={**os.environ, **env},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        **owner,
    )
    try:
        output, _ = command.communicate(stdin, timeout=timeout_s)
        code = command.returncode if command.returncode >= 0 else None
    except subprocess.TimeoutExpired:
        code = None
        output = b""
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(command.pid, signal.SIGKILL)
        command.wait()
    return code, output


def io(check: dict[str, Any], place: Path) -> tuple[str, float]:
    """See `harnessgym.grading.checks.io`."""
    wrong = []
    if check["compile"] and run(check["compile"], place, b"", check["compile_timeout_s"])[0] != 0:
        return "it does not compile", 0.0
    for number, case in enumerate(check["cases"]):
        if problem := io_case(check, case, place):
            wrong.append(f"case {number}: {problem}")
    good = len(check["cases"]) - len(wrong)
    return "; ".join(wrong[:3]), good / len(check["cases"]) if check["partial"] else float(not wrong)


def io_case(check: dict[str, Any], case: dict[str, Any], place: Path) -> str:
    """What is wrong with one run of the command; empty if nothing is."""
    from matching import matches  # type: ignore[import-not-found,unused-ignore]

    for path, text in case["files"].items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_bytes(text.encode())
    try:
        code, output = run(
            [*check["command"], *case["args"]], place, case["stdin"].encode(), check["timeout_s"]
        )
    except OSError as error:
        return f"it could not be started: {error}"
    if code is None or case["exit_code"] not in (None, code):
        return f"it ended with {code}"
    if case["stdout"] is not None and not matches(output, case["stdout"], check["match"], check["tolerance"]):
        return f"it printed something else: {output[:200]!r}"
    return ""


def files(check: dict[str, Any], place: Path) -> tuple[str, float]:
    """See `harnessgym.grading.checks.files`."""
    from file_rules import broken  # type: ignore[import-not-found,unused-ignore]

    problems = [(rule["path"], broken(SimpleNamespace(**rule), place)) for rule in check["rules"]]
    wrong = [f"{path}: {problem}" for path, problem in problems if problem]
    return "; ".join(wrong[:3]), float(not wrong)


def command(check: dict[str, Any], place: Path) -> tuple[str, float]:
    """See `harnessgym.grading.checks.command`."""
    code, output = run(["sh", str(HERE / check["script"])], place, b"", check["timeout_s"], TESTS=str(HERE))
    if check["result"] == "exit" or code is None:
        return "" if code == 0 else f"it ended with {code}", float(code == 0)
    reward = json.loads(output)["reward"]
    if isinstance(reward, bool) or not 0 <= reward <= 1:
        raise SystemExit(f"{check['script']} gave the reward {reward!r}, which is no number from 0 to 1")
    return "" if reward == 1 else f"reward {reward}", float(reward)


KINDS: dict[str, Judge] = {"io": io, "files": files, "command": command}

if __name__ == "__main__":
    main(Path(*sys.argv[1:]) if sys.argv[1:] else REWARDS)
