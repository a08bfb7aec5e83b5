"""Variants of a test: its source with other inputs, in which assertions report values and check nothing.

A variant calls what the test calls. Every operand of an assertion is passed to `__observe__`, which reports
it and returns it (`harnessgym.grading.runners.observing`), and the result of the assertion is one more value.
An error in an assertion is reported too, and the variant goes on. So a variant ends whatever the values are,
and two versions of a package can be compared by them.

The literals are drawn anew for each variant: inputs and expected values alike. What a variant expects is
therefore of no use to the code under test. The right values are those that the gold solution gives for the
same variant, elsewhere. Equal seeds give equal variants.
"""

import ast
import random
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from harnessgym.grading.differential.inputs import Mutation

_OBSERVE = "__observe__"
"""Name, among the builtins, of the function that reports a value and returns it."""
_OBSERVING = "__observing__"
"""Name, among the builtins, of the context of one assertion."""
_RATES = (0.15, 0.3, 0.6, 0.9)
"""Shares of a test's literals that are replaced. Few keep the test's sense; many leave less to look up."""
_NEAR = (1.0, 2.0)
"""Literals of a test that are replaced on average in a variant that stays near the test."""
_MOST = 0.9
"""Highest share of them."""
_ROWS = 8
"""Most rows of a table of inputs in a variant."""
_NAMES = frozenset({"match", "ids", "id", "reason", "encoding", "scope", "argnames", "indirect"})
"""Keyword arguments whose strings are no inputs."""
_BY_NAME = frozenset({"getattr", "setattr", "hasattr", "delattr", "parametrize", "mark", "skipif", "skip",
                      "xfail", "importorskip", "import_module", "usefixtures", "getfixturevalue",
                      "fixture"})  # fmt: skip
"""Functions whose string arguments are names. Of `parametrize` only the first argument is one."""
_EQUAL = frozenset({"assertEqual", "assertEquals", "assertListEqual", "assertDictEqual", "assertTupleEqual",
                    "assertSetEqual", "assertSequenceEqual", "assertMultiLineEqual"})  # fmt: skip
_OPERATORS: dict[str, type[ast.cmpop]] = {
    **dict.fromkeys(_EQUAL, ast.Eq),
    "assertNotEqual": ast.NotEq,
    "assertIn": ast.In,
    "assertNotIn": ast.NotIn,
    "assertIs": ast.Is,
    "assertIsNot": ast.IsNot,
    "assertGreater": ast.Gt,
    "assertLess": ast.Lt,
    "assertGreaterEqual": ast.GtE,
    "assertLessEqual": ast.LtE,
}
"""Assertions of `unittest` with two operands, and the operator between them."""
_RAISING = frozenset({"raises", "warns", "assertRaises", "assertRaisesRegex", "assertWarns",
                      "assertWarnsRegex", "assertLogs"})  # fmt: skip
"""Functions whose block, or whose callable, must raise or warn."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


class TestSource:
    """One test file, from which variants are drawn."""

    __test__ = False

    def __init__(self, file: str, text: str) -> None:
        """Raises SyntaxError or ValueError if the text is no Python."""
        self.file = file
        self._text = text
        tree = ast.parse(text)
        self._literals = [
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and type(node.value) in (int, float, str)
        ]
        self._alone: dict[str, str] = {}
        """Name of a test function to the file with that test only."""

    def original(self) -> str:
        """All tests with their own inputs, as observed source."""
        return _observable(ast.parse(self._text))

    def variant(
        self, function: str, draw: random.Random, forms: Collection[str] = (), *, near: bool = False
    ) -> str:
        """One test, such as `test_x` or `Class::test_x`, with inputs drawn anew, as observed source.

        `forms` are ids of parameters, such as `1-2`: tables of inputs keep more of their rows. A variant that
        is `near` the test has few other inputs, and of such tables these rows alone.
        """
        name = function.rpartition("::")[2]
        if name not in self._alone:
            tree = ast.parse(self._text)
            _keep(tree, frozenset([name]))
            self._alone[name] = ast.unparse(tree)
        tree = ast.parse(self._alone[name])
        rows = _Rows(frozenset([*forms, *map(_without_number, forms)]), alone=near)
        tests = [node for node in ast.walk(tree) if isinstance(node, Function) and node.name == name]
        body = [statement for test in tests for statement in test.body]
        rate = _near_rate(draw, body) if near else draw.choice(_RATES)
        _Redraw(draw, rate, self._literals, rows).visit(tree)
        return _observable(tree)


def _observable(tree: ast.Module) -> str:
    """The source of a tree, in which assertions report values."""
    _Observe().visit(tree)
    return ast.unparse(ast.fix_missing_locations(tree))


def _near_rate(draw: random.Random, nodes: Sequence[ast.AST]) -> float:
    """The share of the literals in these nodes that a variant replaces to stay near its test."""
    count = sum(isinstance(each, ast.Constant) for node in nodes for each in ast.walk(node))
    return min(_MOST, draw.choice(_NEAR) / max(1, count))


def _keep(tree: ast.Module | ast.ClassDef, names: frozenset[str]) -> None:
    """Removes all test functions but those with these names. A class may inherit them from another."""
    kept: list[ast.stmt] = []
    for node in tree.body:
        if isinstance(node, Function) and node.name.startswith("test") and node.name not in names:
            continue
        if isinstance(node, ast.ClassDef):
            _keep(node, names)
        kept.append(node)
    tree.body = kept or [ast.Pass()]


class _Observe(ast.NodeTransformer):
    """Replaces assertions by observations of their operands and their result."""

    def __init__(self) -> None:
        self._inside = False
        """Whether the statement is in a function."""

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        return _group(ast.Expr(_observed(self._operands(node.test))))

    def visit_With(self, node: ast.With) -> ast.stmt:
        """A block that must raise is an assertion too."""
        self.generic_visit(node)
        match node.items[0].context_expr:
            case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)) if name in _RAISING:
                return _group(node)
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        match node.value:
            case ast.Call(func=ast.Attribute(attr=name), args=args) if (
                name.startswith("assert") and name not in _RAISING and args
            ):
                return _group(ast.Expr(_observed(self._unittest(name, args))))
            case ast.Call() if self._inside:
                # A helper may hold assertions, and one error must not end all.
                return _group(node)
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        inside, self._inside = self._inside, True
        self.generic_visit(node)
        self._inside = inside
        return node

    def _unittest(self, name: str, args: Sequence[ast.expr]) -> ast.expr:
        if name in _OPERATORS and len(args) >= 2:
            # Membership does not change the container, and reading a cache as a whole may.
            contained = name in ("assertIn", "assertNotIn")
            right = args[1] if contained else self._operand(args[1])
            return ast.Compare(self._operand(args[0]), [_OPERATORS[name]()], [right])
        if name == "assertCountEqual" and len(args) >= 2:
            # In any order, so a right solution may give another one than gold does.
            left, right = (self._operand(_ordered(each)) for each in args[:2])
            return ast.Compare(left, [ast.Eq()], [right])
        if name in ("assertTrue", "assertFalse"):
            return self._operands(args[0])
        return ast.Tuple([self._operand(each) for each in args[:2]], ast.Load())

    def _operands(self, test: ast.expr) -> ast.expr:
        match test:
            case ast.Compare(left=left, ops=ops, comparators=comparators):
                contained = [isinstance(operator, ast.In | ast.NotIn) for operator in ops]
                rights = [
                    each if inside else self._operand(each)
                    for each, inside in zip(comparators, contained, strict=True)
                ]
                return ast.Compare(self._operand(left), ops, rights)
            case ast.BoolOp(op=op, values=values):
                return ast.BoolOp(op, [_observed(self._operands(value)) for value in values])
            case ast.UnaryOp(op=ast.Not() as op, operand=operand):
                return ast.UnaryOp(op, _observed(self._operands(operand)))
            case ast.Call(func=func, args=args, keywords=keywords):
                rest = [each if isinstance(each, ast.Starred) else self._operand(each) for each in args]
                return ast.Call(func, rest, keywords)
            case _:
                return test

    def _operand(self, node: ast.expr) -> ast.expr:
        """The operand, observed unless nothing of the package can be in it."""
        if isinstance(node, ast.Constant | ast.Starred | ast.Lambda | ast.GeneratorExp):
            return node
        return _observed(node)


def _ordered(items: ast.expr) -> ast.expr:
    """The items in an order that depends on them alone."""
    key = ast.keyword("key", ast.Name("repr", ast.Load()))
    return ast.Call(ast.Name("sorted", ast.Load()), [items], [key])


def _group(statement: ast.stmt) -> ast.stmt:
    """The statement as one group of values, after whose errors the test goes on."""
    return ast.With([ast.withitem(ast.Name(_OBSERVING, ast.Load()))], [statement])


def _observed(node: ast.expr) -> ast.expr:
    return ast.Call(ast.Name(_OBSERVE, ast.Load()), [node], [])


class _Redraw(ast.NodeTransformer):
    """Replaces a share of the literals by others of their type, and changes some lists, sets and dicts."""

    def __init__(self, draw: random.Random, rate: float, known: Sequence[Any], kept: "_Rows") -> None:
        self._draw = draw
        self._rate = rate
        self._kept = kept
        self._mutation = Mutation(draw, known)

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        if node.value is None or node.value is ... or self._draw.random() >= self._rate:
            return node
        return _literal(self._value(node.value))

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        return node if isinstance(node.value, ast.Constant) else self.generic_visit(node)  # a docstring

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        # The texts between the braces must stay plain constants, and format specifiers valid.
        for value in node.values:
            if isinstance(value, ast.FormattedValue):
                value.value = self.visit(value.value)
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        # An exponent that is drawn freely gives numbers that no computer holds.
        node.left = self.visit(node.left)
        if not isinstance(node.op, ast.Pow | ast.LShift):
            node.right = self.visit(node.right)
        return node

    def visit_List(self, node: ast.List) -> ast.AST:
        if _is_table(node):
            return self._rows(node)
        self.generic_visit(node)
        node.elts = self._items(node.elts)
        return node

    def visit_Tuple(self, node: ast.Tuple) -> ast.AST:
        return self._rows(node) if _is_table(node) else self.generic_visit(node)

    def visit_Set(self, node: ast.Set) -> ast.AST:
        self.generic_visit(node)
        node.elts = self._items(node.elts)
        return node

    def visit_Dict(self, node: ast.Dict) -> ast.AST:
        self.generic_visit(node)
        pairs = self._items(list(zip(node.keys, node.values, strict=True)))
        node.keys = [key for key, _ in pairs]
        node.values = [value for _, value in pairs]
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        match node.func:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                pass
            case _:
                name = ""
        if name not in _BY_NAME:
            node.func = self.visit(node.func)
            node.args = [self.visit(each) for each in node.args]
        elif name == "parametrize":
            node.args = [*node.args[:1], *(self._rows(each) for each in node.args[1:])]
        for keyword in node.keywords:
            if keyword.arg == "argvalues":
                keyword.value = self._rows(keyword.value)
            elif keyword.arg not in _NAMES and name not in _BY_NAME:
                keyword.value = self.visit(keyword.value)
        return node

    def _rows(self, rows: ast.expr) -> ast.expr:
        """The rows of a table: a sample, each with other literals but as many columns."""
        if isinstance(rows, ast.List | ast.Tuple):
            shuffled = self._draw.sample(rows.elts, len(rows.elts))
            rows.elts = [self._columns(row) for row in self._kept.of(shuffled)]
        else:
            self.generic_visit(rows)
        return rows

    def _columns(self, row: ast.expr) -> ast.expr:
        rate = self._rate
        if self._kept.alone:
            self._rate = _near_rate(self._draw, [row])
        changed = row
        if isinstance(row, ast.List | ast.Tuple):
            row.elts = [self.visit(each) for each in row.elts]
        else:
            changed = self.visit(row)
        self._rate = rate
        return changed

    def _items(self, items: list[Any]) -> list[Any]:
        if not items or self._draw.random() >= self._rate / 2:
            return items
        at = self._draw.randrange(len(items))
        other = self._draw.randrange(len(items))
        ways = (
            [*items[:at], *items[at + 1 :]],
            [*items[:at], items[other], *items[at:]],
            items[::-1],
            self._draw.sample(items, len(items)),
        )
        return self._draw.choice(ways)

    def _value(self, value: Any) -> Any:
        if isinstance(value, bytes):
            return str(self._mutation.value(value.decode("latin-1"))).encode("latin-1", "replace")
        if isinstance(value, complex):
            return complex(self._mutation.value(value.real), self._mutation.value(value.imag))
        return self._mutation.value(value)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Which rows of a table of parameters a variant keeps."""

    forms: frozenset[str]
    """Ids of wanted rows."""
    alone: bool
    """Whether no others are kept, where there are some of these, and each row stays near itself."""

    def of(self, rows: Sequence[ast.expr]) -> list[ast.expr]:
        """The rows that are kept, the wanted ones first."""
        wanted = [row for row in rows if _form(row) in self.forms]
        if wanted and self.alone:
            return wanted[:_ROWS]
        wanted = wanted[: _ROWS // 2]
        return [*wanted, *(row for row in rows if row not in wanted)][:_ROWS]


def _is_table(node: ast.List | ast.Tuple) -> bool:
    """Whether a list is a table of inputs: many rows with as many columns."""
    widths = {len(row.elts) if isinstance(row, ast.List | ast.Tuple) else 0 for row in node.elts}
    return len(node.elts) > _ROWS and len(widths) == 1 and widths != {0}


def _form(row: ast.expr) -> str:
    """The id that pytest gives a row of parameters, as far as they are literals and names of numbers."""
    columns = row.elts if isinstance(row, ast.List | ast.Tuple) else [row]
    return "-".join(str(_constant(column)) for column in columns)


def _without_number(form: str) -> str:
    """An id without what pytest appends to equal ones."""
    return re.sub(r"_?\d+$", "", form)


def _constant(node: ast.expr) -> object:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
        case ast.Attribute(attr="inf" | "nan" as name):
            return name
        case ast.UnaryOp(op=ast.USub(), operand=ast.Attribute(attr="inf")):
            return "-inf"
    return "?"


def _literal(value: Any) -> ast.expr:
    """An expression of a value. Negative numbers are no constants in the syntax."""
    if isinstance(value, int | float) and not isinstance(value, bool) and value < 0:
        return ast.UnaryOp(ast.USub(), ast.Constant(-value))
    return ast.Constant(value)
