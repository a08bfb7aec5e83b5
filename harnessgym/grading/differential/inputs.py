"""Inputs for functions: from tests, from literals in sources and docstrings, and from seeded mutations.

Mutations keep the types. Values are encoded as in `harnessgym.grading.runners.encoding`. Equal seeds give
equal inputs on every machine.
"""

import ast
import doctest
import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harnessgym.grading.differential.functions import Function
from harnessgym.grading.runners.encoding import encode

_EXAMPLES: Mapping[str, Sequence[Any]] = {
    "int": (0, 1, 2, 7, -3),
    "float": (0.0, 1.0, 2.5, -0.5),
    "str": ("", "a", "ab c", "A-1"),
    "bool": (True, False),
    "bytes": (b"", b"ab"),
    "list": ([], [1], [3, 1, 2]),
    "tuple": ((), (1, 2)),
    "set": (set(), {1, 2}),
    "dict": ({}, {"a": 1}),
}
"""Values for parameters of which only the annotation is known."""
_TRIES = 8
"""Most draws for each input."""


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """One call of a function."""

    args: Any
    kwargs: Any
    """Encoded arguments: a list and a dict."""
    new: Mapping[str, Any] | None = None
    """For a method: the `args` and `kwargs` that its object was made with."""
    seen: bool = False
    """Whether the call comes from a test or a docstring; else it was generated."""

    @property
    def key(self) -> str:
        """A text that is equal for equal calls."""
        return json.dumps([self.args, self.kwargs, self.new], sort_keys=True)

    @classmethod
    def of(cls, args: Sequence[Any], kwargs: Mapping[str, Any]) -> "FunctionCall | None":
        """A call with plain values; None if they cannot be encoded exactly."""
        try:
            return cls(encode(list(args), exact=True), encode(dict(kwargs), exact=True), seen=True)
        except ValueError:
            return None


def shown(function: Function, sources: Iterable[str]) -> list[FunctionCall]:
    """Calls with literal arguments in the sources and in the function's own docstring."""
    name = function.name.rpartition(".")[2]
    texts = [*sources, *_examples_in(ast.get_docstring(function.node) or "")]
    calls = []
    for text in texts:
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        for node in ast.walk(tree):
            call = _literal(node, name) if isinstance(node, ast.Call) else None
            if call is not None:
                calls.append(call)
    return calls


def annotated(function: Function, draw: random.Random, count: int) -> list[FunctionCall]:
    """Generates calls from annotations alone; none if a required parameter has no known annotation."""
    arguments = function.node.args
    plain = [*arguments.posonlyargs, *arguments.args]
    required_positional = plain[: len(plain) - len(arguments.defaults)]
    needed = [
        argument
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        if default is None
    ]
    if not [*required_positional, *needed] or "." in function.name:
        return []
    choices = [_EXAMPLES.get(_annotation(argument)) for argument in (*required_positional, *needed)]
    known = [choice for choice in choices if choice is not None]
    if len(known) < len(choices):
        return []
    calls = []
    for _ in range(count):
        values = [draw.choice(choice) for choice in known]
        named = {
            argument.arg: value
            for argument, value in zip(needed, values[len(required_positional) :], strict=True)
        }
        call = FunctionCall.of(values[: len(required_positional)], named)
        if call is not None:
            calls.append(FunctionCall(call.args, call.kwargs))
    return calls


def mutated(seeds: Sequence[FunctionCall], draw: random.Random, count: int) -> list[FunctionCall]:
    """Generates up to `count` new calls: changes arguments, and mixes those of calls with equal shapes."""
    known = {call.key for call in seeds}
    mutation = _CallMutation(seeds, draw)
    made: list[FunctionCall] = []
    for _ in range(_TRIES * count if seeds else 0):
        if len(made) == count:
            break
        call = mutation.of(draw.choice(seeds))
        if call.key not in known:
            known.add(call.key)
            made.append(call)
    return made


class Mutation:
    """Changes encoded values into others of the same type."""

    def __init__(self, draw: random.Random, known: Iterable[Any]) -> None:
        """`known` are encoded values; those in them are drawn too."""
        self._draw = draw
        self._pool: dict[type, list[Any]] = {}
        for value in known:
            self._collect(value)

    def value(self, value: Any) -> Any:  # noqa: PLR0911  # a table of types
        """Another value of the same type; the value itself if there is no mutation for the type."""
        match value:
            # Before `int`: a bool is one.
            case bool():
                return not value
            case int():
                return self._integer(value)
            case float():
                return self._draw.choice(
                    [-value, value * 2, value + 0.5, value / 3, 0.0, *self._known(float)]
                )
            case str():
                return self._string(value)
            case list():
                return self._list(value)
            case {"$dict": pairs}:
                return {"$dict": self._pairs(pairs)}
            case {"$tuple": items} if items:
                at = self._draw.randrange(len(items))
                return {"$tuple": [*items[:at], self.value(items[at]), *items[at + 1 :]]}
            case {"$set": items}:
                return {"$set": _distinct(self._list(items))}
            case {"$bytes": text}:
                return {
                    "$bytes": self._string(bytes.fromhex(text).decode("latin-1"))
                    .encode("latin-1", "replace")
                    .hex()
                }
        return value

    def _integer(self, value: int) -> int:
        near = [value - 1, value + 1, value - 2, value + 2, value * 2, value // 2, value * 3 + 1, 0, 1]
        wide = self._draw.randint(0, max(10, 3 * min(abs(value), 1 << 40)))
        signs = [-value, -wide] if any(known < 0 for known in self._known(int)) else []
        return int(self._draw.choice([*near, wide, wide, *signs, *self._known(int)]))

    def _string(self, value: str) -> str:
        known: list[str] = self._known(str)
        letters = "".join(known) + value or "a"
        at = self._draw.randrange(len(value) + 1)
        letter = self._draw.choice(letters)
        ways = [
            value[:at] + value[at + 1 :],
            value[:at] + letter + value[at:],
            value[:at] + letter + value[at + 1 :],
            value[::-1],
            value + value[at:],
            value.swapcase(),
            value + " ",
            letter + value,
            value + letter,
            value[at:] + value[:at],
            *known,
        ]
        cased = [at for at, letter in enumerate(value) if letter.swapcase() != letter]
        if cased:
            at = self._draw.choice(cased)
            ways += [f"{value[:at]}{value[at].swapcase()}{value[at + 1 :]}"] * 2
        digits = [at for at, letter in enumerate(value) if letter.isdecimal()]
        if digits:
            at = self._draw.choice(digits)
            ways += [f"{value[:at]}{self._draw.randrange(10)}{value[at + 1 :]}"] * 4
        return self._draw.choice(ways)

    def _list(self, items: list[Any]) -> list[Any]:
        if not items:
            known = self._known(int)
            return [self._draw.choice(known)] if known else items
        at = self._draw.randrange(len(items))
        other = self._draw.randrange(len(items))
        ways: list[Callable[[], list[Any]]] = [
            lambda: [*items[:at], *items[at + 1 :]],
            lambda: [*items[:at], items[other], *items[at:]],
            lambda: items[::-1],
            lambda: self._draw.sample(items, len(items)),
            lambda: [*items, *[self.value(item) for item in items]],
            lambda: [*items[:at], self.value(items[at]), *items[at + 1 :]],
            lambda: [self.value(item) for item in items],
        ]
        return self._draw.choice(ways)()

    def _pairs(self, pairs: list[list[Any]]) -> list[list[Any]]:
        if not pairs:
            return pairs
        at = self._draw.randrange(len(pairs))
        way = self._draw.randrange(4)
        key, value = pairs[at]
        if way == 0:
            return [*pairs[:at], *pairs[at + 1 :]]
        if way == 1:
            fresh = self.value(key)
            return pairs if any(fresh == each for each, _ in pairs) else [*pairs, [fresh, value]]
        return [*pairs[:at], [key, self.value(value)], *pairs[at + 1 :]]

    def _collect(self, value: Any) -> None:
        match value:
            case dict():
                for inner in value.values():
                    self._collect(inner)
            case list():
                for inner in value:
                    self._collect(inner)
            case int() | float() | str() if not isinstance(value, bool):
                pool = self._pool.setdefault(type(value), [])
                if value not in pool and len(pool) < 64:
                    pool.append(value)

    def _known(self, kind: type) -> list[Any]:
        """At most two of the values seen, so that they do not outnumber the mutations."""
        pool = self._pool.get(kind, [])
        return self._draw.sample(pool, min(2, len(pool)))


class _CallMutation(Mutation):
    """Changes calls into others with arguments of the same types."""

    def __init__(self, seeds: Sequence[FunctionCall], draw: random.Random) -> None:
        super().__init__(draw, ([seed.args, seed.kwargs, seed.new] for seed in seeds))
        self._seeds = seeds

    def of(self, call: FunctionCall) -> FunctionCall:
        """Another call: one or two arguments are changed, or taken from a call with as many."""
        other = self._draw.choice(self._seeds)
        args = list(call.args)
        named = [list(pair) for pair in call.kwargs["$dict"]]
        places = [*((args, at) for at in range(len(args))), *((pair, 1) for pair in named)]
        for where, at in self._draw.sample(places, min(len(places), self._draw.choice((1, 1, 2)))):
            same_shape = where is args and len(other.args) == len(args)
            mixed = same_shape and self._draw.random() < 0.25
            where[at] = other.args[at] if mixed else self.value(where[at])
        new = call.new
        if new is not None and (not places or self._draw.random() < 0.4):
            new = other.new if self._draw.random() < 0.3 and other.new is not None else self._made(new)
        return FunctionCall(args, {"$dict": named}, new)

    def _made(self, new: Mapping[str, Any]) -> Mapping[str, Any]:
        args = list(new["args"])
        if args:
            at = self._draw.randrange(len(args))
            args[at] = self.value(args[at])
        return {**new, "args": args}


def _literal(node: ast.Call, name: str) -> FunctionCall | None:
    called = (
        node.func.id
        if isinstance(node.func, ast.Name)
        else node.func.attr
        if isinstance(node.func, ast.Attribute)
        else ""
    )
    if called != name or any(keyword.arg is None for keyword in node.keywords):
        return None
    try:
        args = [ast.literal_eval(argument) for argument in node.args]
        return FunctionCall.of(
            args, {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in node.keywords}
        )
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None


def _examples_in(docstring: str) -> list[str]:
    try:
        return [example.source for example in doctest.DocTestParser().get_examples(docstring)]
    except ValueError:
        return []


def _annotation(argument: ast.arg) -> str:
    node = argument.annotation
    if isinstance(node, ast.Subscript):
        node = node.value
    return node.id.lower() if isinstance(node, ast.Name) else ""


def _distinct(items: list[Any]) -> list[Any]:
    return list({json.dumps(item, sort_keys=True): item for item in items}.values())
