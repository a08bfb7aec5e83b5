"""Reasoning: questions from the seeded generators of `reasoning-gym`.

The package is from Stojanovski et al., 2025, arXiv:2505.24760. The agent writes `answer.txt`, and the
family's own `score_answer` scores it. The reward is 1 for a full score, else 0: in many families a partial
score needs no knowledge (any number, or the answer among other text). The score itself is the channel
`score`.

The package runs in a process of its own, for questions and for scores: it is large, uses `random` and prints.
If it cannot score an answer in time, that is an error and gives no reward. Families whose score would
evaluate an answer as an expression are not used: an answer is data. Each family's items are compared with a
digest, so an id is the same task on every machine, or does not exist.
"""

import functools
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from harnessgym.errors import ConfigError, TaskError
from harnessgym.grading.matching import is_number
from harnessgym.task import Grade, Limits, Solution, Split, Task

DIGESTS: Mapping[str, str] = {
    "base_conversion": "f9adc61755bd45ff",
    "caesar_cipher": "065c2a91062b06d9",
    "chain_sum": "9430a9f9d69596ba",
    "count_primes": "5957a95fab21d402",
    "gsm_symbolic": "c0a8387dcc7b660c",
    "knights_knaves": "650cbabf21a894b9",
    "largest_island": "6d8c2b788d079ce8",
    "lcm": "2e3ac8ee2d20cf47",
    "maze": "973db3cfa394ecb0",
    "mini_sudoku": "ffbcd3bfa5dc0bc5",
    "rotate_matrix": "6d1ab815f4313f72",
    "shortest_path": "78da26498f643619",
    "simple_equations": "92d7532bbccc3d70",
    "string_manipulation": "5200206f73365dd3",
    "tower_of_hanoi": "32c9e26e9a4102cb",
    "word_sorting": "51592ad5ea2c7583",
}
"""Family to the digest of its items, made by reasoning-gym 0.1.25."""
_SEEDS = 20
_TEST_PART = 5
"""One item in five is in the test split."""
_LIMITS = Limits(wall_s=300.0, turns=32)
_TIMEOUT_S = 240.0
"""Seconds for the other process. Importing the package takes one to three."""
_MAX_BYTES = 16 << 10
"""Longest answer. A longer one is wrong."""
_FILE = "answer.txt"
_INSTRUCTION = """\
{question}

Write the answer, and nothing else, into the file answer.txt in the current folder."""


class ReasoningTasks:
    """The items of all families; `reasoning/lcm-3` is the fourth of `lcm`.

    Raises ConfigError if the package is missing.
    """

    name = "reasoning"

    def tasks(self, split: Split) -> Sequence[Task]:
        """The tasks of a split. Raises TaskError if no family gives the expected items."""
        if not _made()[0]:
            raise TaskError("No family gives the expected items.\n  " + "\n  ".join(self.problems))
        return [task for task in _made()[0] if task.split == split]

    @property
    def problems(self) -> Sequence[str]:
        """A sentence for each family that is left out because it gives other items on this machine."""
        return _made()[1]


def grade(task: Task, workspace: Path) -> Grade:
    """Grades the answer: 1 for a full score by the family's own function. Raises TaskError if it fails."""
    answer = _answer(workspace / _FILE)
    if not answer:
        return Grade({"reward": 0.0, "score": 0.0}, evidence={"detail": f"there is no text in {_FILE}"})
    # The generator's answer has a full score, or `_made` would have left the item out. This saves a process.
    if answer == task.metadata["answer"]:
        return Grade({"reward": 1.0, "score": 1.0})
    job = {key: task.metadata[key] for key in ("family", "seed", "question")}
    reply = _ask({"score": {**job, "answer": answer}}, f"Task {task.id!r}")
    if "other" in reply:
        raise TaskError(
            f"Task {task.id!r}: this generator gives another question. Install reasoning-gym 0.1.25."
        )
    if "raised" in reply:
        raise TaskError(
            f"Task {task.id!r}: the family {job['family']!r} cannot score the answer: {reply['raised']}."
        )
    score = reply.get("score")
    if not is_number(score) or not 0 <= score <= 1:
        raise TaskError(
            f"Task {task.id!r}: the family {job['family']!r} gave the score {score!r}, not a number "
            "from 0 to 1."
        )
    return Grade({"reward": float(score >= 1), "score": float(score)})


def digest_of(items: Sequence[Mapping[str, Any]]) -> str:
    """A digest of a family's items."""
    texts = json.dumps([[item["question"], item["answer"], item["score"]] for item in items])
    return hashlib.sha256(texts.encode()).hexdigest()[:16]


def generated(families: Sequence[str]) -> Mapping[str, Sequence[Mapping[str, Any]]]:
    """The items of families from the generators."""
    items_by_family: Mapping[str, Sequence[Mapping[str, Any]]] = _ask(
        {"ask": {family: [_seed(family, number) for number in range(_SEEDS)] for family in families}},
        "The set 'reasoning'",
    )
    return items_by_family


@functools.cache
def _made() -> tuple[tuple[Task, ...], tuple[str, ...]]:
    tasks: list[Task] = []
    problems = []
    for family, items in generated(list(DIGESTS)).items():
        if digest_of(items) != DIGESTS[family]:
            problems.append(
                f"The family {family!r} gives other items. Install the version in constraints.txt."
            )
            continue
        questions: set[str] = set()
        for number, item in enumerate(items):
            if item["score"] == 1.0 and item["question"] not in questions:
                questions.add(item["question"])
                tasks.append(_task(family, number, item))
    return tuple(tasks), tuple(problems)


def _task(family: str, number: int, item: Mapping[str, Any]) -> Task:
    metadata = {
        "family": family,
        "seed": _seed(family, number),
        "question": item["question"],
        "answer": item["answer"],
    }
    return Task(
        id=f"reasoning/{family}-{number}",
        instruction=_INSTRUCTION.format(question=item["question"].strip()),
        split="test" if number % _TEST_PART == _TEST_PART - 1 else "train",
        seed=metadata["seed"],
        limits=_LIMITS,
        artifacts=(_FILE,),
        grader="environments.code.reasoning:grade",
        solution=Solution({_FILE: item["answer"] + "\n"}),
        metadata=metadata,
    )


def _seed(family: str, number: int) -> int:
    """A seed from a hash, so that items are not those of common seeds such as 0 or 42."""
    return int.from_bytes(hashlib.sha256(f"{family}/{number}".encode()).digest()[:4])


def _answer(path: Path) -> str:
    """The stripped text of the answer; empty if the file is no regular text file or too large."""
    if path.is_symlink() or not path.is_file() or path.stat().st_size > _MAX_BYTES:
        return ""
    try:
        return path.read_bytes().decode().strip()
    except UnicodeDecodeError:
        return ""


def _ask(job: Mapping[str, Any], whose: str) -> Any:
    """Asks the other process and returns its reply.

    Raises TaskError if there is no reply, ConfigError if the package is missing.
    """
    if find_spec("reasoning_gym") is None:
        raise ConfigError(
            "These questions come from the package reasoning-gym. Install it: pip install "
            "'harnessgym-rl[reasoning]'. This needs a C compiler."
        )
    program = (files("environments.code") / "generator.py").read_text(encoding="utf-8")
    # A small, fixed environment: variables of this machine could change the items, and the digest would not
    # match. `-P` keeps modules in the working folder out.
    kept = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
    env = kept | {"PYTHONHASHSEED": "0", "MPLBACKEND": "Agg", "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-s", "-P", "-W", "ignore", "-c", program]
    try:
        done = subprocess.run(
            command,
            input=json.dumps(job).encode(),
            capture_output=True,
            timeout=_TIMEOUT_S,
            env=env,
            check=False,
        )
        return json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        raise TaskError(f"{whose}: reasoning-gym gave no reply within {_TIMEOUT_S:.0f} s.") from None
    except (IndexError, ValueError) as error:
        reason = done.stderr[-800:].decode(errors="replace").strip() or f"exit status {done.returncode}"
        raise TaskError(f"{whose}: reasoning-gym gave no reply: {reason}") from error
