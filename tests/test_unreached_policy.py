"""A run of two policies whose harness reaches only one of them, or asks for a name that neither has, says
so.
"""

import io
import json

import pytest
from rich.console import Console

from harnessgym.cli import train
from harnessgym.task import Limits, Task
from tests.harnessgym.rollout.tiny import Tiny
from tests.test_bad_input_runs import POLICY, make_run  # noqa: F401

HERE = "tests.test_unreached_policy"
HELPER = [{"name": "helper", "path": str(POLICY), "workers": 1}]
AS_INSTRUCTED = "exec(open('instruction.txt').read().rpartition('---')[2])"
ANSWER = "open('answer.txt', 'w').write('x')"
SEEN = "while not os.path.exists(os.environ['MARK'] + '{}'): time.sleep(0.05)\n"
PROGRAMS = (
    f"call(model='helper')\n{ANSWER}",
    SEEN.format(1) + f"call(); call(model='hepler')\n{ANSWER}",
    SEEN.format(2) + f"call(); call(model='helper')\n{ANSWER}",
)
"""What a harness does in steps 1 to 3: from the second on, it waits until the step before was looked at."""
FIRST_UNREACHED = (
    "The policy 'policy' was trained on nothing in step 1: no call reached it. Harnesses asked for 'helper';"
)
HELPER_UNREACHED = (
    "The policy 'helper' was trained on nothing in step 2: no call reached it. Harnesses asked for 'hepler', "
)
UNKNOWN = "Harnesses asked for the model 'hepler', which is the name of no policy: the first policy, 'policy', answered."
WARNINGS = {1: [FIRST_UNREACHED], 2: [UNKNOWN, HELPER_UNREACHED]}


class Named(Tiny):
    """One task per step, with a harness's program as its instruction."""

    def tasks(self, split):
        texts = [f"Answer.\n---\n{program}" for program in PROGRAMS]
        # The first epoch of a run of seed 0 takes them from the last to the first.
        return [
            Task(
                f"named/{split}/{i}",
                text,
                split,
                i,
                limits=Limits(wall_s=120.0, turns=4),
                grader="tests.harnessgym.rollout.tiny:grade",
            )
            for i, text in enumerate(reversed(texts))
        ]


def of_harness(run, program):
    """Let the run's harness be this program."""
    path = run.config.parent / "good.py"
    path.write_text(path.read_text().partition("open('answer.txt'")[0] + program)
    return run


@pytest.mark.timeout(400)
def test_a_policy_that_no_call_reaches_is_named_once(make_run, tmp_path):  # noqa: F811
    """In step 1 no call reaches the first policy, in step 2 none reaches the other, in step 3 both are
    reached.
    """
    made = make_run(
        "good",
        policies=HELPER,
        tasks={"set": f"{HERE}:Named"},
        trainer={"steps": 3, "groups_per_step": 1, "group_size": 2},
    )
    run = of_harness(made, AS_INSTRUCTED).start()
    for step, warnings in WARNINGS.items():
        run.wait(lambda warnings=warnings: all(warning in run.said() for warning in warnings))
        (tmp_path / f"mark{step}").touch()
    said = run.end(timeout_s=240)
    for warning in (warning for warnings in WARNINGS.values() for warning in warnings):
        assert said.count(warning) == 1
    assert said.count("which is the name of no policy") == 1
    assert said.count("was trained on nothing") == 2
    summary = json.loads(run.paths().summary_path.read_text())
    assert all(policy["tokens_trained"] for policy in summary["policies"].values())
    assert "was trained on no token" not in said
    run.assert_verified()
    for name in summary["policies"]:
        printed = said_at_the_end(summary, run.folder, untrained=name)
        assert printed.count("was trained on no token") == 1
        assert f"The policy {name!r} was trained on no token." in printed


def said_at_the_end(summary, folder, untrained):
    """What `harnessgym train` prints of a run in which a policy was trained on nothing."""
    summary = json.loads(json.dumps(summary))
    summary["policies"][untrained]["tokens_trained"] = 0
    text = io.StringIO()
    train._print(summary, folder, Console(file=text, width=200), "traces.db")
    return text.getvalue()
