"""The verifier of R2E tasks: the tests' results must be exactly the expected ones.

It applies the change to the initial repository, then copies the tests and the script that runs them from the
image.
"""

from collections.abc import Mapping
from pathlib import Path

from harnessgym.errors import TaskError
from harnessgym.grading.change import apply, handed_in
from harnessgym.grading.log import Statuses, parser_named, without_escapes
from harnessgym.grading.verifier import Opener
from harnessgym.grading.verifiers.eval_log import END, START
from harnessgym.grading.verifiers.evaluation import evaluate
from harnessgym.grading.verifiers.swe_bench import no_grade, shown_patch
from harnessgym.sandbox import Sandbox
from harnessgym.sandboxes.containers import SET_ASIDE
from harnessgym.task import Grade, Task

_PARSER = "parse_log_pytest_summary"
_RUN = "run_tests.sh"
_TIMEOUT_S = 300.0
_SCRIPT = f"""\
#!/bin/bash
export PATH="$PWD/.venv/bin:$PATH"
echo '{START}'
bash ./{_RUN}
echo '{END}'
"""
_LAY = """\
set -e
rm -rf "./$3" ./r2e_tests
for tests in "$2" "$1/r2e_tests"; do
    if [ -n "$(ls -A "$tests" 2>/dev/null)" ]; then cp -a "$tests/." ./r2e_tests; break; fi
done
if [ ! -d r2e_tests ]; then echo "The image has no $2." >&2; exit 3; fi
if [ ! -f "$1/$3" ]; then echo "The image has no $3 in the repository." >&2; exit 3; fi
cp "$1/$3" "./$3"
chown -hR "$(stat -c %u:%g .)" r2e_tests "./$3"
"""
_LAY_S = 120.0
_SHOWN = 50


class R2eVerifier:
    """Reads `metadata["r2e"]`; see `harnessgym.tasks.r2e`."""

    async def verify(self, task: Task, workspace: Path, open_sandbox: Opener) -> Grade:  # noqa: ARG002
        """See `Verifier.verify`."""
        async with open_sandbox() as sandbox:
            change = await handed_in(task, sandbox)
            if change.problem or not change.patch.strip():
                return no_grade(change.problem or "nothing was changed", change.patch)
            return await _graded(task, sandbox, change.patch)


def results(statuses: Mapping[str, str]) -> dict[str, str]:
    """Test to status in the form of the expected results: without colours, and cut at ` - `."""
    return {
        without_escapes(test).split(" - ", maxsplit=1)[0]: str(status) for test, status in statuses.items()
    }


def same_results(statuses: Statuses, expected: Mapping[str, str]) -> bool:
    """Whether both have the same tests with the same statuses."""
    return results({test: status.value for test, status in statuses.items()}) == results(expected)


async def _graded(task: Task, sandbox: Sandbox, patch: bytes) -> Grade:
    spec = task.metadata.get("r2e")
    if not isinstance(spec, Mapping):
        raise TaskError(
            f"Task {task.id!r} has no metadata['r2e'], which holds the expected results of its tests."
        )
    if await apply(task, sandbox, patch) is None:
        return no_grade("the patch does not apply", patch)
    # Tests come after the patch and replace the agent's, so that its changes to them do not count.
    laid = await sandbox.exec(
        ["sh", "-c", _LAY, "lay", SET_ASIDE, spec["tests"], _RUN], user="root", timeout_s=_LAY_S
    )
    if not laid.ok:
        raise TaskError(f"The tests of task {task.id!r} could not be copied: {laid.describe(500)}.")
    run = await evaluate(task, sandbox, _SCRIPT, parser_named(_PARSER), _TIMEOUT_S)
    expected = spec["expected"]
    statuses = run.reading.statuses
    wanted = results(expected)
    got = results({test: status.value for test, status in statuses.items()})
    differing = sorted(test for test in wanted.keys() | got.keys() if wanted.get(test) != got.get(test))
    evidence = {
        "differing": differing[:_SHOWN],
        "problem": run.reading.problem,
        "exit_code": run.reading.exit_code,
        "log": run.tail,
        **shown_patch(patch),
    }
    part = sum(wanted[test] == got.get(test) for test in wanted) / len(wanted)
    return Grade({"reward": float(same_results(statuses, expected)), "part": part}, evidence=evidence)


verifier = R2eVerifier()
