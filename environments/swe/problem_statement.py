"""Describes a fault by what the package does: calls, their results, and the expected results.

It never says where the fault is. Every sentence comes from a failed test's own statement, with the values of
plain local names filled in.
"""

import ast
import builtins
import re
from collections.abc import Mapping, Sequence
from functools import cache
from random import Random
from typing import Any

from environments.swe.tree import Tree

Fact = Mapping[str, Any]
_EXAMPLES = 5
_NAMED = 3
"""Most functions that the title names."""
_LONGEST = 320
"""Longest expression or value that is shown, in characters."""
_UNSAID = re.compile(r" at 0x|/(?:root|home|tmp|usr|work|workspace)/|site-packages|<locals>")
"""Text that differs between machines and runs."""
_TITLES = (
    "{what} {verb} wrongly.",
    "Since a recent change, {what} {verb} wrongly.",
    "I found that {what} {verb} wrongly.",
    "Users report that {what} {verb} wrongly.",
)
_EQUALITIES = ("==", "is", "!=", "is not")


class _Values(ast.NodeTransformer):
    """Replaces plain names in an expression by their values."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Replaces a name that is read, if its value is short."""
        value_text = self._names.get(node.id, "")
        if not isinstance(node.ctx, ast.Load) or not value_text or len(value_text) > _LONGEST:
            return node
        try:
            return ast.parse(value_text, mode="eval").body
        except SyntaxError:
            return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.expr:
        """Leaves a lambda as it is: its arguments may have the names of locals."""
        return node


def statement(tree: Tree, facts: Mapping[str, Fact], random: Random) -> str | None:
    """The problem in the form of an issue; None if no failure can be described."""
    examples = _examples({test: {**fact, "shared": _shared(tree, test)} for test, fact in facts.items()})
    if not examples:
        return None
    names = _subjects(tree, examples, facts)
    what = (
        f"{_listed([f'`{name}`' for name in names])} of `{tree.package.name}`"
        if names
        else f"`{tree.package.name}`"
    )
    title = random.choice(_TITLES).format(what=what, verb="behave" if len(names) > 1 else "behaves")
    lines = [f"{title[0].upper()}{title[1:]}", ""]
    for test in examples:
        lines += [f"- {_indented(examples[test])}"]
    rest = len(facts) - len(examples)
    if rest:
        lines += [
            "",
            f"{rest} more case{'s' * (rest > 1)} of this kind {'are' if rest > 1 else 'is'} wrong too.",
        ]
    return "\n".join(lines)


def _examples(facts: Mapping[str, Fact]) -> dict[str, str]:
    """A few tests with a sentence for each, of as many different kinds as possible."""
    rounds: dict[str, list[tuple[str, str]]] = {}
    for test in sorted(facts):
        sentence = _sentence(facts[test])
        if sentence is not None and not _UNSAID.search(sentence):
            rounds.setdefault(test.partition("[")[0], []).append((test, sentence))
    chosen: dict[str, str] = {}
    kinds = sorted(rounds.values(), key=_shortest)
    for turn in range(_EXAMPLES):
        for kind in kinds:
            if (
                turn < len(kind)
                and len(chosen) < _EXAMPLES
                and not _repeats(kind[turn][1], list(chosen.values()))
            ):
                chosen[kind[turn][0]] = kind[turn][1]
    return chosen


def _shortest(kind: Sequence[tuple[str, str]]) -> tuple[bool, int, str]:
    """Sort key: sentences without a code block first, then by length."""
    return "```" in kind[0][1], len(kind[0][1]), kind[0][0]


def _repeats(sentence: str, others: Sequence[str]) -> bool:
    """Whether a sentence or its code block is in one of the others."""
    program = sentence.split("```")[1] if "```" in sentence else sentence
    return any(program in other for other in others)


def _sentence(fact: Fact) -> str | None:
    """A sentence for one failure, or None if there is no short one."""
    try:
        parsed = ast.parse(fact.get("statement", "")).body
    except SyntaxError:
        return None
    if len(parsed) != 1:
        return None
    node = parsed[0]
    made = _assigned(fact.get("code", ""))
    code = fact.get("code", "")
    alone = not _needs(fact, node, made)
    if not alone and not code:
        return None
    names = fact.get("names", {})
    read = set() if alone else _read(code) - made
    values = {name: value for name, value in names.items() if name in read and len(value) <= _LONGEST}
    values |= {
        name: value
        for name, value in fact["shared"].items()
        if re.search(rf"\b{name}\b", fact["statement"] if alone else code)
    }
    with_ = _listed([f"`{name} = {value}`" for name, value in sorted(values.items())])
    sentence = _symptom(
        fact
        if alone
        else {**fact, "names": {name: value for name, value in names.items() if name not in made}},
        node,
    )
    if not sentence or len(sentence) > 3 * _LONGEST:
        return None
    if alone:
        return f"With {with_}, {sentence}" if with_ else sentence
    head = f"In this, with {with_}:" if with_ else "In this:"
    return f"{head}\n\n```python\n{code}\n```\n\n{sentence}"


def _shared(tree: Tree, test: str) -> Mapping[str, str]:
    """The attributes that a test's class sets for all its tests: `self.name` to its source."""
    path, *names = test.partition("[")[0].split("::")
    return _set_in_class(tree.tests.get(path, ""), tuple(names[:-1]))


@cache
def _set_in_class(text: str, classes: tuple[str, ...]) -> Mapping[str, str]:
    attributes: dict[str, str] = {}
    body: list[ast.stmt] = ast.parse(text).body if classes else []
    for name in classes:
        body = next((node.body for node in body if isinstance(node, ast.ClassDef) and node.name == name), [])
    for node in body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if (
                len(value_text := ast.unparse(value)) <= _LONGEST
            ):
                attributes[f"self.{name}"] = value_text
            case _:
                pass
    return attributes


def _needs(fact: Fact, node: ast.stmt, made: set[str]) -> bool:
    """Whether a statement needs the test's earlier code: it reads names that were computed there."""
    read = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)} - {"self"}
    hidden = set(fact.get("locals", ())) - set(fact.get("names", {}))
    if read & hidden:
        return True
    if fact.get("code"):
        return bool(read & made)
    return bool(read & set(fact.get("names", {}))) and all(
        name.startswith("assert") for name in _called(fact["statement"], package="")
    )


def _read(code: str) -> set[str]:
    return {
        node.id
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }


def _assigned(code: str) -> set[str]:
    """Names to which a program assigns more than literals."""
    try:
        nodes = list(ast.walk(ast.parse(code)))
    except SyntaxError:
        return set()
    literal = {
        id(node.targets[0]) for node in nodes if isinstance(node, ast.Assign) and _is_plain({}, node.value)
    }
    stored = (node for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    return {node.id for node in stored if id(node) not in literal}


def _symptom(fact: Fact, node: ast.stmt) -> str | None:
    error = fact["error"]
    wanted = fact.get("wanted", "")
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda):
        return None
    if isinstance(node, ast.With) and wanted and error in ("Failed", "AssertionError"):
        body = "; ".join(_shown(fact, each) for each in node.body)
        return f"`{body}` raises nothing, where `{wanted}` is expected."
    if error not in ("AssertionError", "Failed"):
        first = str(fact["message"]).strip().split("\n")[0]
        raised = f"`{_shown(fact, _computed(fact, node))}` raises `{error}`" + (
            f" ({first})" if first else ""
        )
        return f"{raised}, where `{wanted}` is expected." if wanted else f"{raised}."
    if isinstance(node, ast.With | ast.For | ast.While | ast.If | ast.Raise):
        return None
    return _compared(fact, node) or _held(fact, node)


def _compared(fact: Fact, node: ast.stmt) -> str | None:
    sides = _sides(node)
    op = fact.get("op")
    if sides is None or op not in _EQUALITIES or not fact.get("left") or not fact.get("right"):
        return None
    (first, second), got, other = sides, fact["left"], fact["right"]
    if _is_plain(fact, first) and not _is_plain(fact, second):
        first, second, got, other = second, first, other, got
    verb = "is" if isinstance(first, ast.Name) else "gives"
    if op in ("!=", "is not"):
        return f"`{_shown(fact, first)}` {verb} `{got}`, which is not expected."
    if _is_plain(fact, second):
        return f"`{_shown(fact, first)}` {verb} `{got}`, where `{other}` is expected."
    return (
        f"`{_shown(fact, first)}` gives `{got}`, and `{_shown(fact, second)}` gives `{other}`; the two "
        "should be equal."
    )


def _held(fact: Fact, node: ast.stmt) -> str | None:
    match node:
        case ast.Assert(test=ast.UnaryOp(op=ast.Not(), operand=test)):
            return f"`{_shown(fact, test)}` should be false, and is not."
        case ast.Assert(test=ast.Call() | ast.Name() | ast.Attribute() | ast.Subscript() as test):
            return f"`{_shown(fact, test)}` should be true, and is not."
        case ast.Assert(test=test):
            return f"`{_shown(fact, test)}` should hold, and does not."
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr=name), args=[test, *_])) if name in (
            "assertTrue",
            "assertFalse",
        ):
            return f"`{_shown(fact, test)}` should be {name.removeprefix('assert').lower()}, and is not."
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr=name))) if name.startswith("assert"):
            return (
                f"`{_shown(fact, _checked(node))}` does not hold: {str(fact['message']).split(chr(10))[0]}."
            )
        case _:
            return None


def _checked(node: ast.stmt) -> ast.AST:
    """The expression of a statement, without the check around it."""
    match node:
        case ast.Assert(test=ast.UnaryOp(op=ast.Not(), operand=test)) | ast.Assert(test=test):
            return test
        case ast.Expr(value=value) | ast.Assign(targets=[ast.Name()], value=value):
            return value
        case _:
            return node


def _computed(fact: Fact, node: ast.stmt) -> ast.AST:
    """The side of a comparison that is no plain value; the whole expression if there is not exactly one."""
    sides = _sides(node)
    other = [] if sides is None else [side for side in sides if not _is_plain(fact, side)]
    return other[0] if len(other) == 1 else _checked(node)


def _sides(node: ast.stmt) -> tuple[ast.expr, ast.expr] | None:
    match node:
        case ast.Assert(test=ast.Compare(left=left, comparators=[right])):
            return left, right
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="assertEqual"), args=[left, right, *_])):
            return left, right
        case _:
            return None


def _shown(fact: Fact, node: ast.AST) -> str:
    """An expression on one line with the values of its names; without the values if it would be too long."""
    plain = ast.unparse(node)
    filled = ast.unparse(_Values(fact.get("names", {})).visit(ast.parse(plain)))
    return filled if len(filled) <= _LONGEST else plain


def _is_plain(fact: Fact, node: ast.AST) -> bool:
    """Whether a node is a value that the test itself states: literals, plain names, methods of literals."""
    match node:
        case ast.Name(id=name):
            return name in fact.get("names", {})
        case ast.Call(func=ast.Attribute(value=ast.Constant()), args=args, keywords=[]):
            return all(_is_plain(fact, each) for each in args)
        case (
            ast.Constant()
            | ast.Tuple()
            | ast.List()
            | ast.Dict()
            | ast.Set()
            | ast.UnaryOp()
            | ast.JoinedStr()
            | ast.FormattedValue()
        ):
            rest = (
                each
                for each in ast.iter_child_nodes(node)
                if not isinstance(each, ast.expr_context | ast.unaryop)
            )
            return all(_is_plain(fact, each) for each in rest)
        case _:
            return False


def _subjects(tree: Tree, messages: Mapping[str, str], facts: Mapping[str, Fact]) -> list[str]:
    """The package's public functions and classes that fail, most frequent first.

    If no failing statement calls one, those called earlier in the tests.
    """
    known = _public(tree)
    counts: dict[str, int] = {}
    for test in messages:
        for key, weight in (("statement", len(messages) + 1), ("code", 1)):
            for name in _called(facts[test].get(key) or "", tree.package.name) & known:
                counts[name] = counts.get(name, 0) + weight
    most = max(counts.values(), default=0)
    failing = [name for name in counts if counts[name] > len(messages) or most <= len(messages)]
    return sorted(failing, key=lambda name: (-counts[name], name))[:_NAMED]


def _called(code: str, package: str) -> set[str]:
    """Names of the functions and methods that a program calls, without builtins."""
    try:
        calls = [node.func for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
    except SyntaxError:
        return set()
    names = set()
    for call in calls:
        match call:
            case ast.Attribute(value=ast.Name(id=module), attr=name) if module == package:
                names.add(name)
            case ast.Attribute(attr=name) | ast.Name(id=name) if not hasattr(builtins, name):
                names.add(name)
            case _:
                pass
    return names


def _public(tree: Tree) -> set[str]:
    kinds = (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)
    names = {
        node.name
        for path in tree.code
        for node in ast.walk(ast.parse(tree.files[path]))
        if isinstance(node, kinds)
    }
    return {name for name in names if not name.startswith("_")}


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def _indented(text: str) -> str:
    return text.replace("\n", "\n  ").replace("\n  \n", "\n\n")
