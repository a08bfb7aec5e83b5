"""Variables in values of a task are filled in, or named."""

import pytest

from harnessgym.errors import TaskError
from harnessgym.tasks.harbor_place import substituted, substituted_all


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("plain $A {A}", "plain $A {A}"),
        ("${A}", "1"),
        ("x${A}y${B:-2}z", "x1y2z"),
        ("${B:-}", ""),
        ("${E:-d}", "d"),
        ("${E}", ""),
    ],
)
def test_variables_are_filled_in(text, filled):
    assert substituted(text, {"A": "1", "E": ""}, "here") == filled


def test_a_variable_that_is_not_set_is_named_with_its_place():
    with pytest.raises(TaskError, match=r"task\.toml: verifier\.env\.KEY: .* SECRET is not set"):
        substituted_all({"KEY": "${SECRET}"}, {}, "task.toml: verifier.env")
