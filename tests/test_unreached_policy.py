"""A run of two policies whose harness reaches only one of them, or asks for a name that neither has, says
so.
"""

import json
import re

import pytest

from tests.test_bad_input_runs import POLICY, Run, make_run  # noqa: F401

HELPER = [{"name": "helper", "path": str(POLICY), "workers": 1}]


def of_harness(run, program):
    """Let the run's harness be this program."""
    path = run.config.parent / "good.py"
    path.write_text(path.read_text().partition("open('answer.txt'")[0] + program)
    return run


FIRST_UNREACHED = (
    "The policy 'policy' was trained on nothing in step N: no call reached it. Harnesses asked for 'helper';"
)
HELPER_UNREACHED = (
    "The policy 'helper' was trained on nothing in step N: no call reached it. Harnesses asked for 'hepler', "
)
UNKNOWN = "Harnesses asked for the model 'hepler', which is the name of no policy: the first policy, 'policy', answered."
ANSWER = "open('answer.txt', 'w').write('x')"


@pytest.mark.parametrize(
    ("program", "warnings", "silent"),
    [
        (f"call(model='helper'); {ANSWER}", [FIRST_UNREACHED], "which is the name of no policy"),
        (f"call(); call(model='hepler'); {ANSWER}", [UNKNOWN, HELPER_UNREACHED], "The policy 'policy'"),
        (f"call(); call(model='helper'); {ANSWER}", [], "policy '"),
    ],
)
def test_a_policy_that_no_call_reaches_is_named_once(make_run, program, warnings, silent):  # noqa: F811
    run = of_harness(make_run("good", policies=HELPER), program)
    said = re.sub(r"in step \d", "in step N", run.end(timeout_s=240))
    for warning in warnings:
        assert said.count(warning) == 1
    assert silent not in said
    trained = json.loads(run.paths().summary_path.read_text())["policies"]
    for name, policy in trained.items():
        assert (f"The policy {name!r} was trained on no token." in said) == (policy["tokens_trained"] == 0)
    run.assert_verified()
