"""Finds the faults that can be put into a Python file. Each is an edit that keeps the file's formatting.

Faults are mistakes that people make: a reversed comparison, a forgotten condition, an off-by-one, a removed
guard, two swapped arguments. Only function bodies are changed, not annotations, decorators or error messages.
"""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from environments.swe.edit import SourceEdit
from environments.swe.source import Source

_COMPARED: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
_REVERSED: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", ">"),
    ast.LtE: ("<=", ">="),
    ast.Gt: (">", "<"),
    ast.GtE: (">=", "<="),
}
_COMPUTED: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.FloorDiv: ("//", "%"),
    ast.Mod: ("%", "//"),
    ast.Div: ("/", "*"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
}
_NAMES = {
    "min": "max", "any": "all", "first": "last", "lower": "upper", "startswith": "endswith",
    "lstrip": "rstrip",
    "find": "rfind", "strip": "lstrip", "split": "rsplit", "partition": "rpartition", "keys": "values",
    "append": "extend",
    "start": "end", "left": "right", "add": "discard", "ljust": "rjust", "index": "rindex", "prev": "next",
}  # fmt: skip
_TWINS = {
    **_NAMES,
    **{
        other: name
        for name, other in _NAMES.items()
        if other not in ("extend", "lstrip", "discard", "values")
    },
}
_DROPPED_CALLS = frozenset(
    {"strip", "lower", "upper", "copy", "lstrip", "rstrip", "title", "items", "reverse", "sort"}
)
_QUIET = frozenset({"__repr__", "__dir__", "__del__", "__reduce__", "__init_subclass__", "__sizeof__"})
"""Functions whose faults few tests detect."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault."""

    kind: str
    function: str
    """Qualified name of the function with the fault."""
    edit: SourceEdit


def faults(path: str, text: str) -> list[Fault]:
    """All possible faults of a file, in the order of the text. A file that is no Python has none.

    The result may not be valid Python, or may mean the same: check it with `Source.parses_with`.
    """
    try:
        module = ast.parse(text)
    except SyntaxError:
        return []
    source = Source(path, text)
    file_faults = []
    for name, function in _functions(module, ""):
        seen: set[SourceEdit] = set()
        for kind, edit in _in_function(source, function):
            if edit is not None and edit not in seen:
                seen.add(edit)
                file_faults.append(Fault(kind, name, edit))
    return sorted(file_faults, key=_order)


def _order(fault: Fault) -> tuple[int, str, str]:
    return fault.edit.start, fault.kind, fault.edit.new


Function = ast.FunctionDef | ast.AsyncFunctionDef


def _functions(node: ast.AST, above: str) -> Iterator[tuple[str, Function]]:
    """Functions and methods with their qualified names. A nested function belongs to the outer one."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            if child.name not in _QUIET and not any(
                "overload" in ast.dump(mark) for mark in child.decorator_list
            ):
                yield f"{above}{child.name}", child
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{above}{child.name}.")
        elif isinstance(child, ast.If | ast.Try):
            yield from _functions(child, above)


def _in_function(source: Source, function: Function) -> Iterator[tuple[str, SourceEdit | None]]:
    for default in [
        *function.args.defaults,
        *(each for each in function.args.kw_defaults if each is not None),
    ]:
        if isinstance(default, ast.Constant):
            yield "default", _other_constant(source, default)
    for block in _blocks(function):
        for statement in block:
            yield from _of_statement(source, statement, block)
    for node in _expressions(function):
        yield from _of_expression(source, node)


def _expressions(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that are evaluated when the function runs, without error messages and assertions."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "args") and isinstance(
            node, Function | ast.AnnAssign | ast.arg
        ):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(
                child, ast.Raise | ast.Assert | ast.JoinedStr | ast.MatchValue
            ):
                yield child
                yield from _expressions(child)


def _blocks(node: ast.AST) -> Iterator[Sequence[ast.stmt]]:
    for _, value in ast.iter_fields(node):
        if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
            yield value
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _blocks(child)


def _of_statement(
    source: Source, statement: ast.stmt, block: Sequence[ast.stmt]
) -> Iterator[tuple[str, SourceEdit | None]]:
    match statement:
        case ast.If(test=test) | ast.While(test=test):
            yield "negate", _negated(source, test)
        case ast.Return(value=ast.expr() as value):
            yield "return", _other_result(source, value)
        case ast.AugAssign(op=op, target=target, value=value) if type(op) in _COMPUTED:
            old, new = _COMPUTED[type(op)]
            yield "arithmetic", source.between(target, value, f"{old}=", f"{new}=")
        case ast.Break() | ast.Continue():
            yield (
                "loop",
                source.replaced(statement, "continue" if isinstance(statement, ast.Break) else "break"),
            )
        case _:
            pass
    if len(block) > 1:
        if _is_guard(statement):
            yield "guard", source.without_statement(statement)
        if _can_go(statement):
            yield "dropped", source.without_statement(statement)


def _is_guard(statement: ast.stmt) -> bool:
    """Whether a statement is a condition that only leaves early."""
    match statement:
        case ast.If(body=[ast.Raise() | ast.Return() | ast.Continue() | ast.Break()], orelse=[]):
            return True
        case _:
            return False


def _other_result(source: Source, value: ast.expr) -> SourceEdit | None:
    match value:
        case ast.Constant(value=bool()):
            return _other_constant(source, value)
        case ast.Tuple(elts=[first, second]) | ast.IfExp(body=first, orelse=second):
            return source.swapped(first, second)
        case _:
            return None


def _can_go(statement: ast.stmt) -> bool:
    """Whether a statement can be removed without making names undefined that are read later."""
    match statement:
        case ast.AugAssign() | ast.Expr(value=ast.Call()):
            return True
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            return True
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            return any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(value))
        case _:
            return False


def _of_expression(source: Source, node: ast.AST) -> Iterator[tuple[str, SourceEdit | None]]:
    match node:
        case ast.Compare() | ast.BoolOp() | ast.IfExp():
            yield from _of_condition(source, node)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _COMPUTED and not _is_text(left):
            yield "arithmetic", source.between(left, right, *_COMPUTED[type(op)])
        case ast.UnaryOp(op=ast.Not() | ast.USub() as op, operand=operand):
            yield "negate" if isinstance(op, ast.Not) else "sign", source.replaced(node, source.text(operand))
        case ast.Slice(lower=lower, upper=upper):
            yield from (
                ("slice", source.replaced(bound, "")) for bound in (lower, upper) if bound is not None
            )
        case ast.Constant(value=value):
            yield from _of_constant(source, node, value)
        case ast.Call():
            yield from _of_call(source, node)
        case _:
            pass


def _of_condition(
    source: Source, node: ast.Compare | ast.BoolOp | ast.IfExp
) -> Iterator[tuple[str, SourceEdit | None]]:
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            for turned in (_COMPARED, _REVERSED):
                if type(op) in turned:
                    yield "compare", source.between(left, right, *turned[type(op)])
        case ast.BoolOp(op=op, values=values):
            old, new = ("and", "or") if isinstance(op, ast.And) else ("or", "and")
            for first, second in pairwise(values):
                yield "boolean", source.between(first, second, old, new)
                yield "condition", source.without_second(first, second)
            yield "condition", source.without_first(values[0], values[1])
        case ast.IfExp(test=test, body=first, orelse=second):
            yield "negate", _negated(source, test)
            yield "branches", source.swapped(first, second)
        case _:
            pass


def _of_constant(
    source: Source, node: ast.Constant, value: object
) -> Iterator[tuple[str, SourceEdit | None]]:
    if isinstance(value, bool):
        yield "flag", _other_constant(source, node)
    elif isinstance(value, int) and abs(value) < 1_000:
        yield "off-by-one", source.replaced(node, str(value + 1))
        yield "off-by-one", source.replaced(node, str(value - 1)) if value > 0 else None


def _of_call(source: Source, node: ast.Call) -> Iterator[tuple[str, SourceEdit | None]]:
    for first, second in pairwise(node.args):
        if not isinstance(first, ast.Starred) and not isinstance(second, ast.Starred):
            yield "arguments", source.swapped(first, second)
    for keyword in node.keywords:
        if keyword.arg is not None:
            yield "keyword", source.without_argument(node, keyword)
    match node.func:
        case ast.Attribute(value=value, attr=name) if (
            name in _DROPPED_CALLS and not node.args and not node.keywords
        ):
            yield "call", source.replaced(node, source.text(value))
        case _:
            pass
    match node.func:
        case ast.Name(id=name) | ast.Attribute(attr=name) if name in _TWINS:
            yield "twin", source.renamed(node.func, name, _TWINS[name])
        case _:
            pass


def _negated(source: Source, test: ast.expr) -> SourceEdit | None:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return source.replaced(test, source.text(test.operand))
    # A comparison has faults of its own kind, and some of them are its negation.
    if isinstance(test, ast.Compare):
        return None
    plain = isinstance(test, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
    return source.replaced(test, f"not {source.text(test)}" if plain else f"not ({source.text(test)})")


def _other_constant(source: Source, node: ast.Constant) -> SourceEdit | None:
    value = node.value
    if isinstance(value, bool):
        return source.replaced(node, str(not value))
    if isinstance(value, int) and abs(value) < 1_000:
        return source.replaced(node, str(value + 1))
    return None


def _is_text(node: ast.expr) -> bool:
    """Whether a node is a string, for which `+` and `%` have another meaning."""
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    )
