"""Evaluation scripts: runs one in a workspace and reads its log as hostile data; writes one for rows without.

A failure of the environment is an error, not a result. Rows of SWE-bench's version 5 contain their script.
Older rows leave it to the harness, which has a command for each repository. Those commands are here, in the
form that fits most versions of a repository; they run the tests that a test patch touches. A row's own
script always wins.
"""

import secrets
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from harnessgym.errors import SandboxError, TaskError
from harnessgym.grading.log import Parser, text_of
from harnessgym.grading.patches import patched_paths
from harnessgym.grading.verifiers.eval_log import END, START, Reading, instrumented, read_log
from harnessgym.sandbox import ExecResult, Sandbox
from harnessgym.task import Task

EVAL_S = 1_800.0
"""Time limit of a script in seconds, as in SWE-bench."""
_MOST = 48 << 20
"""Bytes that are kept of a log, from its end."""
_SCRIPT = "/tmp/harnessgym-eval.sh"  # noqa: S108  private to the sandbox
_NO_SHELL = (126, 127)
_TAIL = 2_000


@dataclass(frozen=True, slots=True)
class EvaluationRun:
    """How a script ended."""

    reading: Reading
    tail: str
    """The end of its output."""
    wall_s: float


async def evaluate(
    task: Task,
    sandbox: Sandbox,
    script: str,
    parser: Parser,
    timeout_s: float = EVAL_S,
    *,
    exit_code_decides: bool = True,
) -> EvaluationRun:
    """Runs `script` with bash in the workspace, as the agent's user. For `exit_code_decides` see `read_log`.

    Raises TaskError for a script or an image that cannot work, SandboxError when the environment failed.
    """
    if START not in script or END not in script:
        raise TaskError(
            f"The evaluation script of task {task.id!r} does not mark its tests' output. Print {START!r} and "
            f"{END!r}."
        )
    nonce = secrets.token_hex(16)
    result = await _run(sandbox, instrumented(script, nonce), timeout_s)
    log = text_of(result.stdout)
    tail = log[-_TAIL:]
    # Only the end of a long log is kept, so the start marker may be cut off. What is left is the tests'
    # output.
    if result.stdout_truncated and f"{START} {nonce}" not in log:
        log = f"{START} {nonce}\n{log}"
    if result.timed_out:
        return EvaluationRun(
            Reading(problem=f"the tests did not end within {timeout_s:.0f} s"), tail, result.wall_s
        )
    if not result.stdout_truncated and START not in log and result.exit_code in _NO_SHELL:
        raise TaskError(
            f"The evaluation script of task {task.id!r} could not be run: {tail.strip() or 'no output'}. It "
            "needs bash."
        )
    reading = read_log(log, parser, nonce, exit_code_decides=exit_code_decides)
    if reading.problem and reading.cause == "environment":
        raise SandboxError(
            f"The tests of task {task.id!r} gave no result: {reading.problem}. The end of the log:\n{tail}"
        )
    return EvaluationRun(reading, tail, result.wall_s)


async def _run(sandbox: Sandbox, script: str, timeout_s: float) -> ExecResult:
    """Writes and runs the script in one command, because the next command may see a different `/tmp`."""
    command = ["sh", "-c", 'cat >"$0" && exec bash "$0" 2>&1 </dev/null', _SCRIPT]
    return await sandbox.exec(command, stdin=script.encode(), timeout_s=timeout_s, max_output=_MOST)


_NO_TESTS = (".json", ".png", "csv", ".txt", ".md", ".jpg", ".jpeg", ".pkl", ".yml", ".yaml", ".toml")
_PYTEST = "pytest -rA"
INSTALLED_PYTEST = "installed_pytest"
"""In our scripts: runs the pytest that is installed. `python3 -m pytest` would run a folder `pytest/` of the
workspace. As there, the working folder comes first on the import path, then those of PYTHONPATH."""
_INSTALLED_PYTEST = f"""{INSTALLED_PYTEST}() {{ python3 -I -c 'import os, sys, pytest
sys.path[:0] = [os.getcwd(), *filter(None, os.environ.get("PYTHONPATH", "").split(":"))]
sys.exit(pytest.console_main())' "$@"; }}"""
_TOX = "tox --current-env -epy39 -v --"
_COMMANDS = {
    "astropy/astropy": "pytest -rA -vv -o console_output_style=classic --tb=no",
    "django/django": "./tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1",
    "mwaskom/seaborn": "pytest --no-header -rA",
    "sphinx-doc/sphinx": _TOX,
    "sympy/sympy": "PYTHONWARNINGS='ignore::UserWarning,ignore::SyntaxWarning' bin/test -C --verbose",
}
_PARSERS = {
    "astropy/astropy": "parse_log_astropy",
    "django/django": "parse_log_django",
    "matplotlib/matplotlib": "parse_log_matplotlib",
    "mwaskom/seaborn": "parse_log_seaborn",
    "psf/requests": "parse_log_requests",
    "pydicom/pydicom": "parse_log_pydicom",
    "pylint-dev/pylint": "parse_log_pylint",
    "scikit-learn/scikit-learn": "parse_log_scikit",
    "sphinx-doc/sphinx": "parse_log_sphinx",
    "sympy/sympy": "parse_log_sympy",
}
_FAIL_ONLY = frozenset(
    {
        "chartjs/Chart.js",
        "processing/p5.js",
        "markedjs/marked",
        "bpmn-io/bpmn-js",
        "openlayers/openlayers",
        "eslint/eslint",
    }
)
_ACTIVATE = (
    "if [ -f /opt/miniconda3/bin/activate ]; then source /opt/miniconda3/bin/activate; conda activate "
    "testbed; fi"
)


def parser_of(repo: str) -> str:
    """The log parser of a repository's tests."""
    return _PARSERS.get(repo, "parse_log_pytest")


def eval_type_of(repo: str) -> str:
    """The `eval_type` of a repository: `fail_only` if its test runner names only failures."""
    return "fail_only" if repo in _FAIL_ONLY else "pass_and_fail"


def eval_script(repo: str, test_patch: str, home: str, tests: Sequence[str] = (), command: str = "") -> str:
    """A script that runs the test files of a patch, or `tests` if given, with `command` if given.

    Without a `home`, the repository is in the script's working directory and is not installed.
    """
    files = [path for path in patched_paths(test_patch) if not path.endswith(_NO_TESTS)]
    asked = list(tests) or ([_module(path) for path in files] if repo == "django/django" else files)
    run = command or (_COMMANDS.get(repo, _PYTEST) if home else f"{INSTALLED_PYTEST} -rA")
    lines = [
        "#!/bin/bash",
        "set -uxo pipefail",
        f"{{ set +x; {_ACTIVATE}; set -x; }} 2>/dev/null",
        *([f"cd {shlex.quote(home)}"] if home else []),
        *([_INSTALLED_PYTEST] if INSTALLED_PYTEST in run else []),
        f": '{START}'",
        " ".join([run, *map(shlex.quote, asked)]),
        f": '{END}'",
    ]
    return "\n".join(lines) + "\n"


def _module(path: str) -> str:
    """The name of a file below `tests/` for Django's runner."""
    return ".".join(PurePosixPath(path.removeprefix("tests/")).with_suffix("").parts)
