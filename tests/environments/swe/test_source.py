import ast

import pytest

from environments.swe.edit import edited
from environments.swe.source import Source


class Parsed:
    """A text, its tree, and what edits of it give."""

    def __init__(self, text):
        self.text = text
        self.source = Source("m.py", text)
        self.tree = ast.parse(text)

    def first(self, kind):
        return next(node for node in ast.walk(self.tree) if isinstance(node, kind))

    def after(self, edit):
        return None if edit is None else edited({"m.py": self.text}, [edit])["m.py"]


def test_columns_are_counted_in_bytes():
    parsed = Parsed("größe = 'ä' + name\n")
    operation = parsed.first(ast.BinOp)
    assert parsed.source.text(operation.right) == "name"
    assert parsed.source.span(operation.left) == (10, 14)


@pytest.mark.parametrize(
    ("text", "old", "new", "after"),
    [
        ("a < b", "<", "<=", "a <= b"),
        ("a not  in b", "not in", "in", "a in b"),
        ("(a is\n not b)", "is not", "is", "(a is b)"),
        ("'ä' < b", "<", ">", "'ä' > b"),
        ("(a) < (b)", "<", ">", "(a) > (b)"),
    ],
)
def test_an_operator_is_replaced_between_its_operands(text, old, new, after):
    parsed = Parsed(text)
    comparison = parsed.first(ast.Compare)
    edit = parsed.source.between(comparison.left, comparison.comparators[0], old, new)
    assert parsed.after(edit) == after


@pytest.mark.parametrize("text", ["(a # < or\n < b)", "(a # <\n > b)", "a > b"])
def test_an_operator_that_cannot_be_found_for_sure_is_left_alone(text):
    parsed = Parsed(text)
    comparison = parsed.first(ast.Compare)
    assert parsed.source.between(comparison.left, comparison.comparators[0], "<", "<=") is None


def test_the_same_operator_is_no_edit():
    parsed = Parsed("a < b")
    comparison = parsed.first(ast.Compare)
    assert parsed.source.between(comparison.left, comparison.comparators[0], "<", "<") is None


def test_nodes_are_swapped_with_what_lies_between_them():
    parsed = Parsed("f(ä,  # first\n  b + 1)")
    call = parsed.first(ast.Call)
    assert parsed.after(parsed.source.swapped(*call.args)) == "f(b + 1,  # first\n  ä)"


@pytest.mark.parametrize(("text", "order"), [("f(a, a)", (0, 1)), ("f(a, b)", (1, 0))])
def test_equal_nodes_and_nodes_out_of_order_are_not_swapped(text, order):
    parsed = Parsed(text)
    arguments = parsed.first(ast.Call).args
    assert parsed.source.swapped(*(arguments[at] for at in order)) is None


def test_an_operand_is_removed_with_its_operator():
    parsed = Parsed("x = a and  b\n")
    first, second = parsed.first(ast.BoolOp).values
    assert parsed.after(parsed.source.without_second(first, second)) == "x = a\n"
    assert parsed.after(parsed.source.without_first(first, second)) == "x = b\n"


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("f(a, key=1)", "f(a)"),
        ("f(key=1, other=2)", "f(other=2)"),
        ("f(key=1)", "f()"),
        ("f(key=1,)", "f()"),
        ("f(a,\n  key=1,\n  other=2)", "f(a,\n  other=2)"),
    ],
)
def test_a_keyword_argument_is_removed_with_one_comma(text, after):
    parsed = Parsed(text)
    call = parsed.first(ast.Call)
    keyword = next(argument for argument in call.keywords if argument.arg == "key")
    assert parsed.after(parsed.source.without_argument(call, keyword)) == after


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("a = 1\nb = 2\nc = 3\n", "a = 1\nc = 3\n"),
        ("a = 1\nb = (\n  2\n)\n", "a = 1\n"),
        ("a = 1\nb = 2", "a = 1\n"),
    ],
)
def test_a_statement_is_removed_with_its_lines(text, after):
    parsed = Parsed(text)
    assert parsed.after(parsed.source.without_statement(parsed.tree.body[1])) == after


@pytest.mark.parametrize("text", ["a = 1; b = 2\n", "a = 1\nb = 2  # why\n", "a = 1\nb = 2;\n"])
def test_a_statement_that_shares_its_line_is_kept(text):
    parsed = Parsed(text)
    assert parsed.source.without_statement(parsed.tree.body[1]) is None


@pytest.mark.parametrize(
    ("text", "after"), [("min(a)", "max(a)"), ("x.min (a)", "x.max (a)"), ("min.min(a)", "min.max(a)")]
)
def test_a_called_function_is_renamed_at_its_last_name(text, after):
    parsed = Parsed(text)
    assert parsed.after(parsed.source.renamed(parsed.first(ast.Call).func, "min", "max")) == after


@pytest.mark.parametrize(
    ("old", "new", "valid"),
    [("1", "2", True), ("1", "1 ", False), ("1", "1 # one", False), ("1", "(", False), ("1", "1_0", True)],
)
def test_an_edit_must_change_the_syntax_tree_and_leave_valid_python(old, new, valid):
    parsed = Parsed(f"a = {old}\n")
    edit = parsed.source.replaced(parsed.first(ast.Constant), new)
    assert parsed.source.parses_with(edit) is valid


def test_what_only_warns_is_valid():
    parsed = Parsed("a = b == 1\n")
    assert parsed.source.parses_with(parsed.source.between(*operands(parsed), "==", "is"))


def operands(parsed):
    comparison = parsed.first(ast.Compare)
    return comparison.left, comparison.comparators[0]


def test_a_replacement_by_the_same_text_is_no_edit():
    parsed = Parsed("a = 1\n")
    assert parsed.source.replaced(parsed.first(ast.Constant), "1") is None
