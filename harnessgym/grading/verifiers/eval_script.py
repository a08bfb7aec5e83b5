"""Evaluation scripts for SWE-bench rows that have none: they run the tests that a test patch touches.

Rows of version 5 contain their script. Older rows leave it to the harness, which has a command for each
repository. Those commands are here, in the form that fits most versions of a repository. A row's own script
always wins.
"""

import shlex
from collections.abc import Sequence
from pathlib import PurePosixPath

from harnessgym.grading.patches import patched_paths
from harnessgym.grading.verifiers.eval_log import END, START

_NO_TESTS = (".json", ".png", "csv", ".txt", ".md", ".jpg", ".jpeg", ".pkl", ".yml", ".yaml", ".toml")
_PYTEST = "pytest -rA"
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
_ACTIVATE = "if [ -f /opt/miniconda3/bin/activate ]; then source /opt/miniconda3/bin/activate; conda activate testbed; fi"


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
    run = command or (_COMMANDS.get(repo, _PYTEST) if home else f"python3 -m {_PYTEST}")
    lines = [
        "#!/bin/bash",
        "set -uxo pipefail",
        f"{{ set +x; {_ACTIVATE}; set -x; }} 2>/dev/null",
        *([f"cd {shlex.quote(home)}"] if home else []),
        f": '{START}'",
        " ".join([run, *map(shlex.quote, asked)]),
        f": '{END}'",
    ]
    return "\n".join(lines) + "\n"


def _module(path: str) -> str:
    """The name of a file below `tests/` for Django's runner."""
    return ".".join(PurePosixPath(path.removeprefix("tests/")).with_suffix("").parts)
