"""The verifier of SWE-bench tasks: applies the change to the initial repository and runs the tests.

    what was left → a patch → the pristine repository + the patch → the original test files → the
    evaluation script

So only the change itself counts. Changes to files of the test patch, to `.git`, or to files that git ignores
are discarded. Changes to other tests remain, as always in SWE-bench. The reward is 1 if every expected test
has the right result, else 0. The channels `f2p` and `p2p` are the fractions that have it.

Whether the issue is resolved follows SWE-bench's rules (5.0.2):

- Every test that failed before (F2P) must pass. A skipped test does not count as a pass; an expected
  failure does.
- Every test that passed before (P2P) must still pass. A skipped test counts as a pass.
- An id that a dataset cut off inside its parameters stands for all tests that start with it, if they agree.
- If a runner reports only failures, every other test has passed.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import anyio.to_thread

from harnessgym.errors import TaskError
from harnessgym.grading.bytecode import is_compiled
from harnessgym.grading.change import apply, begin, handed_in, remove, restore
from harnessgym.grading.log import LogStatus, parser_named
from harnessgym.grading.negative_control import planted
from harnessgym.grading.patches import patch_bytes, patched_paths
from harnessgym.grading.verifier import Opener
from harnessgym.grading.verifiers.evaluation import EVAL_S, EvaluationRun, eval_script, evaluate
from harnessgym.sandbox import Sandbox
from harnessgym.task import Grade, Task

EvalType = Literal["pass_and_fail", "fail_only"]
_PASSING = frozenset({LogStatus.PASSED, LogStatus.XFAIL})


@dataclass(frozen=True, slots=True)
class Expectation:
    """What a task expects of its tests."""

    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...] = ()
    eval_type: EvalType = "pass_and_fail"
    """fail_only: the runner's output names only failures."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """Which expected tests passed and which failed."""

    f2p_passed: tuple[str, ...]
    f2p_failed: tuple[str, ...]
    p2p_passed: tuple[str, ...]
    p2p_failed: tuple[str, ...]

    @property
    def f2p(self) -> float:
        """Fraction of F2P that passed; 1 if F2P is empty."""
        return _part(self.f2p_passed, self.f2p_failed)

    @property
    def p2p(self) -> float:
        """Fraction of P2P that still passes; 1 if P2P is empty."""
        return _part(self.p2p_passed, self.p2p_failed)

    @property
    def resolved(self) -> bool:
        """Whether all tests of both lists passed."""
        return not self.f2p_failed and not self.p2p_failed


def resolution(statuses: Mapping[str, LogStatus], expected: Expectation) -> Resolution:
    """Sorts the expected tests into those that have the right status and those that do not."""
    f2p = [_fixed(test, statuses, expected.eval_type) for test in expected.fail_to_pass]
    p2p = [_kept(test, statuses, expected.eval_type) for test in expected.pass_to_pass]
    return Resolution(*_halves(expected.fail_to_pass, f2p), *_halves(expected.pass_to_pass, p2p))


def status_of(test: str, statuses: Mapping[str, LogStatus]) -> LogStatus | None:
    """The status of an expected test; None if it has none, or if the tests of a cut-off id disagree."""
    if test in statuses:
        return statuses[test]
    # An unclosed bracket is the sign of a cut-off id.
    if test.count("[") <= test.count("]"):
        return None
    meant = [status for other, status in statuses.items() if other.startswith(test)]
    return meant[0] if len({status in _PASSING for status in meant}) == 1 else None


def _fixed(test: str, statuses: Mapping[str, LogStatus], eval_type: EvalType) -> bool:
    if eval_type == "fail_only":
        return statuses.get(test) is not LogStatus.FAILED
    return status_of(test, statuses) in _PASSING


def _kept(test: str, statuses: Mapping[str, LogStatus], eval_type: EvalType) -> bool:
    return _fixed(test, statuses, eval_type) or status_of(test, statuses) is LogStatus.SKIPPED


def _halves(tests: Sequence[str], passed: Sequence[bool]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    pairs = list(zip(tests, passed, strict=True))
    return tuple(test for test, good in pairs if good), tuple(test for test, good in pairs if not good)


def _part(passed: Sequence[str], failed: Sequence[str]) -> float:
    return len(passed) / (len(passed) + len(failed)) if passed or failed else 1.0


_SHOWN = 50
"""Most tests of each kind that the evidence names."""
_PATCH_SHOWN = 64 << 10


@dataclass(frozen=True, slots=True)
class Prediction:
    """One entry of a predictions file."""

    instance_id: str
    model_patch: str | None
    model_name_or_path: str = ""


class SweBenchVerifier:
    """Reads `metadata["swe_bench"]`; see `harnessgym.tasks.swe_bench`."""

    async def verify(self, task: Task, workspace: Path, open_sandbox: Opener) -> Grade:  # noqa: ARG002
        """See `Verifier.verify`."""
        async with open_sandbox() as sandbox:
            change = await handed_in(task, sandbox)
            if change.problem or not change.patch.strip():
                return no_grade(change.problem or "nothing was changed", change.patch)
            return await _graded(task, sandbox, change.patch)


async def grade_prediction(task: Task, prediction: Prediction, open_sandbox: Opener) -> Grade:
    """Grades a patch from a predictions file.

    `open_sandbox` opens a sandbox of the task's image with an empty workspace and no network. Raises
    TaskError and SandboxError as `Verifier.verify` does.
    """
    if prediction.model_patch is None or not prediction.model_patch.strip():
        return no_grade("the prediction has no patch", b"")
    async with open_sandbox() as sandbox:
        await begin(task, sandbox)
        return await _graded(task, sandbox, patch_bytes(prediction.model_patch))


def read_predictions(path: Path) -> dict[str, Prediction]:
    """Reads predictions by instance id, from JSON lines, a JSON list, or a JSON object. Raises TaskError."""
    try:
        raw = path.read_text(encoding="utf-8")
        rows = (
            [json.loads(line) for line in raw.split("\n") if line.strip()]
            if path.suffix == ".jsonl"
            else json.loads(raw)
        )
    except (OSError, ValueError) as error:
        raise TaskError(f"{path} cannot be read as predictions: {error}.") from error
    if isinstance(rows, dict):
        rows = [{"instance_id": id_, **row} if isinstance(row, dict) else row for id_, row in rows.items()]
    if not isinstance(rows, list):
        raise TaskError(f"{path} must be a list of predictions, or an object with one per instance id.")
    predictions: dict[str, Prediction] = {}
    for number, row in enumerate(rows, 1):
        good = isinstance(row, dict) and isinstance(row.get("instance_id"), str) and "model_patch" in row
        if not good or not isinstance(row["model_patch"], str | None):
            raise TaskError(
                f"{path}: prediction {number} must have an instance_id and a model_patch, which is text or "
                "null."
            )
        if row["instance_id"] in predictions:
            raise TaskError(f"{path}: there are two predictions for {row['instance_id']!r}. Remove one.")
        predictions[row["instance_id"]] = Prediction(
            row["instance_id"], row["model_patch"], str(row.get("model_name_or_path") or "")
        )
    return predictions


async def _graded(task: Task, sandbox: Sandbox, patch: bytes) -> Grade:
    spec = _spec(task)
    how = await apply(task, sandbox, patch)
    if how is None:
        return no_grade("the patch does not apply", patch)
    # A predicted patch can add .pyc files, whose code need not be that of any source.
    changed = patched_paths(patch.decode(errors="replace"))
    await remove(task, sandbox, [path for path in changed if is_compiled(path)])
    # The order matters: the agent's versions of the test files are reset before the test patch is applied,
    # which would not apply over changes.
    owned = patched_paths(spec["test_patch"])
    await restore(task, sandbox, owned)
    script = spec["eval_script"] or eval_script(spec["repo"], spec["test_patch"], spec["home"])
    lays_tests = "git apply" in script or not spec["test_patch"].strip()
    if not lays_tests and await apply(task, sandbox, patch_bytes(spec["test_patch"])) is None:
        return no_grade("the task's tests do not apply over what was changed", patch)
    await _lay_assets(task, spec, sandbox)
    run = await evaluate(task, sandbox, script, parser_named(spec["log_parser"]), EVAL_S)
    grade = _grade(spec, run, patch, how, sorted(set(changed) & set(owned)))
    return await doubted(task, sandbox, grade, script, spec) if grade.rewards["reward"] else grade


async def doubted(
    task: Task,
    sandbox: Sandbox,
    grade: Grade,
    script: str,
    spec: Mapping[str, Any],
    *,
    exit_code_decides: bool = True,
) -> Grade:
    """Checks a successful grade with a planted test that must fail. If it does not, the grade is tampered.

    `spec` has `test_patch`, `fail_to_pass` and `log_parser`. For `exit_code_decides` see `read_log`.
    """
    # Only files of the test patch: the agent could have written any other test file.
    owned = set(patched_paths(spec["test_patch"]))
    tests = tuple(test for test in spec["fail_to_pass"] if test.split("::")[0] in owned)
    again = planted(script, spec["log_parser"], tests)
    if again is None:
        return grade
    try:
        await sandbox.read(again.path)
    except FileNotFoundError:
        return grade
    parser = parser_named(spec["log_parser"])
    run = await evaluate(task, sandbox, again.script, parser, EVAL_S, exit_code_decides=exit_code_decides)
    missed = again.missed(run.reading, exit_code_decides=exit_code_decides)
    return replace(
        grade,
        tampered=missed and f"{missed}.",
        evidence={**grade.evidence, "failing_test_planted": missed or "failed"},
    )


def _grade(
    spec: Mapping[str, Any], evaluation: EvaluationRun, patch: bytes, how: str, undone: list[str]
) -> Grade:
    if evaluation.reading.problem:
        return no_grade(
            evaluation.reading.problem,
            patch,
            applied=how,
            exit_code=evaluation.reading.exit_code,
            log=evaluation.tail,
        )
    expected = Expectation(tuple(spec["fail_to_pass"]), tuple(spec["pass_to_pass"]), spec["eval_type"])
    result = resolution(evaluation.reading.statuses, expected)
    evidence = {
        "applied": how,
        "f2p_failed": list(result.f2p_failed[:_SHOWN]),
        "p2p_failed": list(result.p2p_failed[:_SHOWN]),
        "f2p": f"{len(result.f2p_passed)} of {len(expected.fail_to_pass)}",
        "p2p": f"{len(result.p2p_passed)} of {len(expected.pass_to_pass)}",
        "exit_code": evaluation.reading.exit_code,
        "tests_restored": undone,
        "log": evaluation.tail,
        **shown_patch(patch),
    }
    return Grade({"reward": float(result.resolved), "f2p": result.f2p, "p2p": result.p2p}, evidence=evidence)


def no_grade(problem: str, patch: bytes, **more: Any) -> Grade:
    """A grade of 0, for a change that could not be tested."""
    return Grade(
        {"reward": 0.0, "f2p": 0.0, "p2p": 0.0}, evidence={"problem": problem, **more, **shown_patch(patch)}
    )


def shown_patch(patch: bytes) -> dict[str, Any]:
    """A patch as evidence: its size, and its beginning."""
    return {"patch_bytes": len(patch), "patch": patch[:_PATCH_SHOWN].decode(errors="replace")}


async def _lay_assets(task: Task, spec: Mapping[str, Any], sandbox: Sandbox) -> None:
    """Writes the binary files that the test patch needs, from a task repository on this machine.

    The assets of the row's own patch belong to the solution and are left out.
    """
    folder = str(spec.get("assets") or "")
    for entry in spec["image_assets"].get("test_patch", ()) if folder else ():
        file = Path(folder) / entry["path"]
        try:
            data = await anyio.to_thread.run_sync(file.read_bytes)
        except OSError as error:
            raise TaskError(
                f"Task {task.id!r} needs the asset {file}, which cannot be read: {error.strerror}."
            ) from error
        await sandbox.write(entry["path"], data)


def _spec(task: Task) -> Mapping[str, Any]:
    """The task's `swe_bench` metadata. Raises TaskError for a task of another format."""
    spec = task.metadata.get("swe_bench")
    if not isinstance(spec, Mapping):
        raise TaskError(
            f"Task {task.id!r} has no metadata['swe_bench'], which says what is expected of its tests."
        )
    return spec


verifier = SweBenchVerifier()
