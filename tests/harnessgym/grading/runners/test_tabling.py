"""The lookup table of calls, recorded by one process and read by another."""

import importlib.util
import io
import re
import sys
import warnings

import pytest

from harnessgym.grading.bytecode import runner


class Stack:
    def __init__(self, *values):
        self.values = list(values)
        self._pops = 0


@pytest.fixture
def table(tmp_path, monkeypatch):
    """Loads the program with a table that records, or with what was recorded."""
    (tmp_path / "tabling.py").write_text(runner("tabling"))
    path = tmp_path / "_calls.table"

    def load(answers=False, most=1_000):
        records = path.read_bytes().partition(b"\n")[2] if answers else b""
        path.write_bytes(b"%s %d\n" % (b"answer" if answers else b"record", most) + records)
        spec = importlib.util.spec_from_file_location("tabling_under_test", tmp_path / "tabling.py")
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, module)
        monkeypatch.setattr(
            "warnings.warn", __import__("warnings").warn
        )  # it counts warnings while it records
        spec.loader.exec_module(module)
        return module

    return load


def again(table, function, *args, name="f"):
    """Records one call, and returns the same function with the table, where it fails if it runs."""
    decorated = table().tabled(name, True)(function)
    try:
        result = decorated(*args)
        list(result) if hasattr(result, "__next__") else None
    except ValueError:
        pass

    def fails(*args):
        raise AssertionError(args)

    return table(answers=True).tabled(name, True)(fails)


def test_a_recorded_call_gets_its_result_and_all_others_run(table):
    known = again(table, lambda a, b: {a: [b, {2.5}]}, "x", (1, None))
    assert known("x", (1, None)) == {"x": [(1, None), {2.5}]}
    for other in (("x", (1, 0)), ("x", [1, None]), ("y", (1, None)), ("x", (True, None))):
        with pytest.raises(AssertionError):
            known(*other)


def test_exceptions_are_raised_again(table):
    def refuse(text):
        raise ValueError(text, 3)

    with pytest.raises(ValueError, match="no") as raised:
        again(table, refuse, "no")("no")
    assert raised.value.args == ("no", 3)


def test_generators_give_their_items_again(table):
    def count(to):
        yield from range(to)

    assert list(again(table, count, 3)(3)) == [0, 1, 2]


def test_arguments_change_as_they_did_and_keep_their_identity(table):
    def pop(stack, out):
        stack._pops += 1
        out["last"] = stack.values.pop()
        return stack

    stack, out = Stack(1, 2), {}
    assert again(table, pop, Stack(1, 2), {})(stack, out) is stack
    assert (stack.values, stack._pops, out) == ([1], 1, {"last": 2})


def test_private_attributes_tell_calls_apart(table):
    known = again(table, lambda stack: 7, Stack(1))
    other = Stack(1)
    other._pops = 1
    assert known(Stack(1)) == 7
    with pytest.raises(AssertionError):
        known(other)


def test_files_in_memory_are_written_again(table):
    file = io.StringIO("a")
    again(table, lambda file: file.write("bc"), io.StringIO("a"))(file)
    assert (file.getvalue(), file.tell()) == ("bc", 2)


def test_functions_are_arguments_by_what_they_do(table):
    known = again(table, lambda function: function(2), lambda number: number + 1)
    assert known(lambda number: number + 1) == 3
    with pytest.raises(AssertionError):
        known(lambda number: number + 2)


def test_what_cannot_be_read_without_changing_it_is_in_no_table(table):
    with pytest.raises(AssertionError):
        again(table, sum, iter_of := (n for n in (1, 2)))(iter_of)


def test_what_hides_its_content_is_in_no_table(table):
    """Two matches have no attributes that would tell them apart."""
    with pytest.raises(AssertionError):
        again(table, lambda match: match[0], re.match(".", "a"))(re.match(".", "b"))


def test_what_prints_is_in_no_table(table, capsys):
    known = again(table, print, "heard")
    with pytest.raises(AssertionError):
        known("heard")


def test_what_warns_is_in_no_table(table):
    with pytest.warns(UserWarning, match="heard"):
        known = again(table, lambda text: warnings.warn(text, stacklevel=1), "heard")
    with pytest.raises(AssertionError):
        known("heard")


def test_a_function_of_another_file_is_in_the_table_only_where_tests_call_it(table):
    module = table()
    inner = module.tabled("inner", False)(lambda number: number + 1)
    outer = module.tabled("outer", True)(lambda number: inner(number) + 0)
    assert (outer(1), inner(5)) == (2, 6)
    module = table(answers=True)
    inner = module.tabled("inner", False)(lambda number: 0)
    outer = module.tabled("outer", True)(lambda number: 0)
    assert (inner(1), inner(5), outer(1)) == (0, 6, 2)


def test_tests_of_untabled_files_run_without_the_table(table, monkeypatch):
    table().tabled("f", True)(lambda: 1)()
    known = table(answers=True).tabled("f", True)(lambda: 2)
    assert known() == 1
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "test_a_untabled.py::test_b (call)")
    assert known() == 2


def test_after_as_many_values_as_it_may_read_functions_run_as_they_are(table):
    for unknown in ([3], iter_of := (number for number in (1, 2)), [iter_of]):
        module = table(most=3)
        function = module.tabled("f", True)(lambda value: value)
        assert [function(unknown) for _ in range(3)] == [unknown] * 3
        function("later")
        known = table(answers=True).tabled("f", True)(lambda value: "called")
        assert known("later") == "called"


def test_a_half_written_line_is_left_out(table, tmp_path):
    table().tabled("f", True)(lambda: 1)()
    path = tmp_path / "_calls.table"
    path.write_bytes(path.read_bytes() + path.read_bytes().splitlines()[1][:-9] + b"\n")
    assert table(answers=True).tabled("f", True)(lambda: 2)() == 1
