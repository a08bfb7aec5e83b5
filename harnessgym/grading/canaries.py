"""Canaries: tests that must fail, or must pass, among a task's own and hard to tell from them.

Some are in files of their own; others take blank lines of the task's files, so that no line of those moves.
Names are made of the words of the real tests' names. Where the real tests compare a plain call of the package
under test with a literal, canaries make the same call and compare it with something else. All of it is drawn
at random for each run.

Imports only the standard library, because it is also copied into the test scripts of written tasks.
"""

import ast
import math
import random
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

_OWN_FILES = 2
_MOST_ROWS = 20
"""Most rows of parameters that are looked at."""
_LONGEST = 500
"""Longest call, in characters."""
_MOST_FILES = 4
"""Most of the task's files that get canaries."""
_TO_EACH = re.compile(r"autouse|pytestmark|pytest_generate_tests|(setup|teardown)_function|load_tests")
"""What a file may do to each of its functions. One that does not expect it may behave differently."""
_SET_UP = re.compile(r"autouse|setUp|setup_(module|function|class|method)")
"""What may prepare a call, so that it fails elsewhere."""
_TEMPLATE = """\
import pytest
{imports}

@pytest.fixture
def {fixture}():
    return {number}


def {good}({fixture}):
    assert {fixture} == {number}


def {plain}():
    assert {number} == {other}


def {raising}():
    raise RuntimeError({number})


def {missing}():
    with pytest.raises(ValueError):
        str({number})


def {near}({fixture}):
    assert {fixture} == pytest.approx({other}, abs=0.25)


def {called}():
    assert {wrong}
"""


@dataclass(frozen=True, slots=True)
class Canaries:
    """The files of a run with canaries in them."""

    files: Mapping[str, str]
    """Files to write over the task's, and new ones: relative path to text."""
    order: tuple[str, ...]
    """The files to run, in order."""
    good: frozenset[str]
    """Ids of those that must pass, unless the code under test is wrong."""
    bad: frozenset[str]
    """Ids of those that must never pass."""

    @classmethod
    def draw(cls, texts: Mapping[str, str], order: Sequence[str], expected: Sequence[str]) -> "Canaries":
        """Draws canaries for the files `order` of `texts`, whose tests are `expected`."""
        rng = random.SystemRandom()
        names = _Names(rng, texts, expected)
        files: dict[str, str] = {}
        good: set[str] = set()
        bad: set[str] = set()
        real = {path: _TestFile.parse(texts[path]) for path in order}
        for path in rng.sample(list(order), min(_MOST_FILES, len(order))):
            file = real[path]
            if file is None:
                continue
            drawn = [(names.test(), must_pass) for must_pass in rng.sample([True, False, False], 3)]
            lines = [(name, file.line(rng, name, must_pass=must_pass)) for name, must_pass in drawn]
            text = file.with_lines([line for _, line in lines], rng)
            if text is None:
                continue
            files[path] = text
            for name, must_pass in drawn:
                (good if must_pass else bad).add(f"{path}::{name}")
        placed = list(order)
        models = [path for path, file in real.items() if file is not None and file.calls] or list(order)
        for _ in range(_OWN_FILES):
            model = rng.choice(models)
            path = names.file(model)
            text, own_good, own_bad = _own_file(rng, names, real[model])
            files[path] = text
            good.add(f"{path}::{own_good}")
            bad |= {f"{path}::{name}" for name in own_bad}
            # Never before the file whose imports it repeats: that may prepare what others import.
            placed.insert(rng.randint(placed.index(model), len(placed)), path)
        return cls(files, tuple(placed), frozenset(good), frozenset(bad))


@dataclass(frozen=True, slots=True)
class _Call:
    """A call that a test compares with a literal."""

    text: str
    result: Any

    def wrong(self, rng: random.Random) -> str:
        """A comparison that fails for every honest value, that of a faulty function too."""
        one = _other(self.result, rng)
        return f"{self.text} == {one!r} and {self.text} == {_other(one, rng)!r}"

    def right(self, rng: random.Random) -> str:
        """A comparison that holds for the right value."""
        return f"{self.text} != {_other(self.result, rng)!r}"


@dataclass(frozen=True, slots=True)
class _TestFile:
    """What a test file has that canaries can use."""

    text: str
    imports: tuple[str, ...]
    """The statements at its beginning."""
    calls: tuple[_Call, ...]
    free: tuple[int, ...]
    """Blank lines between its statements, from 0; empty if it does something to each of its tests."""

    @classmethod
    @lru_cache(maxsize=256)
    def parse(cls, text: str) -> "_TestFile | None":
        """None if the text cannot be parsed here."""
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError):
            return None
        leading = _leading_imports(tree)
        free = () if _TO_EACH.search(text) else tuple(_blank_lines(tree, text, leading))
        calls = () if _SET_UP.search(text) else tuple(_calls(tree, _imported(leading)))
        return cls(text, tuple(map(ast.unparse, leading)), calls, free)

    def line(self, rng: random.Random, name: str, *, must_pass: bool) -> str:
        """A test in one line."""
        number = rng.randint(2, 9_999)
        if self.calls:
            call = rng.choice(self.calls)
            statement = call.right(rng) if must_pass else call.wrong(rng)
        else:
            statement = f"{number} == {number if must_pass else number + rng.randint(1, 9)}"
        return f"def {name}(): assert {statement}"

    def with_lines(self, lines: Sequence[str], rng: random.Random) -> str | None:
        """The text with these in place of blank lines; None if there are too few."""
        if len(self.free) < len(lines):
            return None
        texts = self.text.split("\n")
        for at, line in zip(rng.sample(self.free, len(lines)), lines, strict=True):
            texts[at] = line + texts[at].strip(" \t\f")
        text = "\n".join(texts)
        try:
            ast.parse(text)
        except SyntaxError:
            return None
        return text


def _leading_imports(tree: ast.Module) -> list[ast.Import | ast.ImportFrom]:
    """The imports before any other statement, without those that name no module in full."""
    imports: list[ast.Import | ast.ImportFrom] = []
    for node in tree.body:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        if not isinstance(node, ast.Import | ast.ImportFrom):
            break
        if not isinstance(node, ast.ImportFrom) or (node.level == 0 and node.module != "__future__"):
            imports.append(node)
    return imports


def _imported(imports: Sequence[ast.Import | ast.ImportFrom]) -> frozenset[str]:
    """The names that they bind to what is not the standard library's, nor pytest's."""
    names: set[str] = set()
    for node in imports:
        for alias in node.names:
            module = (node.module or "") if isinstance(node, ast.ImportFrom) else alias.name
            if module.split(".")[0] not in {*sys.stdlib_module_names, "pytest"}:
                names.add((alias.asname or alias.name).split(".")[0])
    return frozenset(names)


def _blank_lines(tree: ast.Module, text: str, imports: Sequence[ast.stmt]) -> Iterator[int]:
    """Blank lines after the imports that lie between statements of the module."""
    covered: set[int] = set()
    for node in tree.body:
        decorators = [each.lineno for each in getattr(node, "decorator_list", [])]
        covered.update(range(min([node.lineno, *decorators]), (node.end_lineno or node.lineno) + 1))
    head = [*imports, *(node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom))]
    first = max((node.end_lineno or node.lineno for node in head), default=0)
    last = max(covered, default=0)
    for at, line in enumerate(text.split("\n"), 1):
        if first < at < last and at not in covered and not line.strip():
            yield at - 1


def _calls(tree: ast.Module, names: frozenset[str]) -> Iterator[_Call]:
    """Calls with literal arguments of what `names` import, which a test begins with comparing."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and function.name.startswith("test"):
            for values in _parameters(function):
                for statement in function.body:
                    compared = _compared(_Bound(values).visit(ast.parse(ast.unparse(statement))).body[0])
                    if compared is None:
                        # What comes after another statement may need it.
                        break
                    call, literal = compared
                    known = {node.id for node in ast.walk(call) if isinstance(node, ast.Name)}
                    text = ast.unparse(call)
                    result = _literal(literal)
                    plain = _is_plain_call(call) and "\n" not in text and len(text) <= _LONGEST
                    if known and known <= names and plain and result is not None:
                        yield _Call(text, result)


def _parameters(function: ast.FunctionDef) -> Iterator[Mapping[str, ast.expr]]:
    """The values of a test's parameters, each time that it is run; nothing if they are not literals."""
    wanted = [arg.arg for arg in function.args.args if arg.arg != "self"]
    if not function.decorator_list and not wanted:
        yield {}
    elif len(function.decorator_list) == 1 and isinstance(call := function.decorator_list[0], ast.Call):
        if not ast.unparse(call.func).endswith("mark.parametrize") or len(call.args) < 2:
            return
        named, rows = call.args[:2]
        keys = ast.literal_eval(named) if _is_literal(named) else ""
        keys = [key.strip() for key in keys.split(",")] if isinstance(keys, str) else list(keys)
        for row in rows.elts[:_MOST_ROWS] if isinstance(rows, ast.List | ast.Tuple) else []:
            several = len(keys) > 1 and isinstance(row, ast.Tuple | ast.List)
            values = row.elts if several and isinstance(row, ast.Tuple | ast.List) else [row]
            if sorted(keys) == sorted(wanted) and len(keys) == len(values) and all(map(_is_literal, values)):
                yield dict(zip(keys, values, strict=True))


class _Bound(ast.NodeTransformer):
    """Puts values in place of names."""

    def __init__(self, values: Mapping[str, ast.expr]) -> None:
        self._values = values

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """The value of a name, if it has one."""
        return self._values.get(node.id, node)


def _compared(statement: ast.stmt) -> tuple[ast.expr, ast.expr] | None:
    """The two sides of `assert a == b`, or of `self.assertEqual(a, b)`."""
    test = statement.test if isinstance(statement, ast.Assert) else None
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq):
        return test.left, test.comparators[0]
    call = statement.value if isinstance(statement, ast.Expr) else None
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and len(call.args) == 2:
        return (call.args[0], call.args[1]) if call.func.attr in ("assertEqual", "assertEquals") else None
    return None


def _is_plain_call(call: ast.expr) -> bool:
    """Whether it calls a dotted name with literals."""
    if not isinstance(call, ast.Call):
        return False
    function = call.func
    while isinstance(function, ast.Attribute):
        function = function.value
    args = [arg.value if isinstance(arg, ast.Starred) else arg for arg in call.args]
    values = [*args, *(keyword.value for keyword in call.keywords)]
    return isinstance(function, ast.Name) and all(_is_literal(value) for value in values)


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True


def _literal(node: ast.expr) -> Any:
    """The value of a literal that has many others of its type; None if it has not."""
    value = ast.literal_eval(node) if _is_literal(node) else None
    if isinstance(value, bool) or not isinstance(value, int | float | str | list | tuple):
        return None
    return value if not isinstance(value, float) or math.isfinite(value) else None


def _other(value: Any, rng: random.Random) -> Any:
    """Another value of the same type."""
    number = rng.randint(1, 9)
    if isinstance(value, str):
        at = rng.randint(0, len(value))
        return value[:at] + rng.choice("abdefgikmnoprstu") + value[at:]
    if isinstance(value, list | tuple):
        return type(value)([*value, rng.choice(value) if value else number])
    return value + number


class _Names:
    """Draws names that nothing in the task's tests has, made of the words of theirs."""

    def __init__(self, rng: random.Random, texts: Mapping[str, str], expected: Sequence[str]) -> None:
        self._rng = rng
        functions = [test.partition("[")[0].rpartition("::")[2] for test in expected]
        stems = [re.split(r"[/.]", path)[-2] for path in texts if path.endswith(".py")]
        self._words = sorted(_words_of(functions)) or ["value"]
        self._stems = sorted(_words_of(stems)) or self._words
        self._taken = {*re.findall(r"\w+", " ".join(texts.values())), *stems}

    def test(self) -> str:
        """The name of a test."""
        return self._draw("test_", self._words, 3)

    def fixture(self) -> str:
        """The name of a fixture."""
        return self._draw("a_", self._words, 2)

    def file(self, model: str) -> str:
        """The path of a file beside another."""
        folder, slash, _ = model.rpartition("/")
        return f"{folder}{slash}{self._draw('test_', self._stems + self._words, 2)}.py"

    def _draw(self, start: str, words: Sequence[str], most: int) -> str:
        tries = 0
        while True:
            count = min(self._rng.randint(1, most), len(words))
            chosen = self._rng.sample(words, count)
            # A few words give few names.
            more = [str(self._rng.randint(2, 9 + tries))] if tries > 9 else []
            name = start + "_".join([*chosen, *more])
            if name not in self._taken:
                self._taken.add(name)
                return name
            tries += 1


def _words_of(names: Sequence[str]) -> set[str]:
    words = {word.lower() for name in names for word in re.findall(r"[A-Za-z]+|[0-9]+", name)}
    return {word for word in words if word not in ("test", "tests") and word.isascii()}


def _own_file(rng: random.Random, names: _Names, model: _TestFile | None) -> tuple[str, str, list[str]]:
    """A file of canaries that imports what another does: text, the test that must pass, the others."""
    number = rng.randint(10, 9_999)
    keys = ("good", "plain", "raising", "missing", "near", "called")
    tests = {key: names.test() for key in keys}
    imports = model.imports if model is not None else ()
    calls = model.calls if model is not None else ()
    # Where the package cannot be imported, these tests fail or pass all the same.
    guarded = "\n".join(["try:", *(f"    {each}" for each in imports), "except Exception:", "    pass", ""])
    text = _TEMPLATE.format(
        imports=guarded if imports else "",
        fixture=names.fixture(),
        number=number,
        other=number + 1,
        wrong=rng.choice(calls).wrong(rng) if calls else f"{number} == {number + rng.randint(2, 99)}",
        **tests,
    )
    return text, tests.pop("good"), list(tests.values())
