"""Runs the grader's own pytest runner and says more: of every failed test, what was called, what came, and
what was wanted.

Runs in a sandbox as `python3 -c <this text> <text of the runner>`, with the runner's job on stdin. Each
failure is one more line of the runner's: `fact`, the test's id, and JSON: `error` (type's name), `message`,
`statement` (of the test, the one that failed), `code` (its function's body up to there, if that is short),
`wanted` (the exception that the statement should raise), `locals`, `names` (locals to the representation of
plain values), and for a comparison `op`, `left` and `right`.
"""

from __future__ import annotations

import ast
import json
import sys
import textwrap
import types
from typing import Any

_PLAIN = (str, bytes, int, float, bool, type(None), tuple, list, dict, set, frozenset)
_LONGEST = 400
_MOST_LINES = 14


def _repr(value: Any) -> str | None:
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - whatever a faulty package does when shown
        return None
    return text if len(text) <= _LONGEST and " at 0x" not in text else None


def _statement(function: ast.AST, line: int) -> ast.stmt | None:
    """The innermost statement on a line; one with a body only if the line is of its head."""
    statement = None
    for node in ast.walk(function):
        if (
            isinstance(node, ast.stmt)
            and node is not function
            and node.lineno <= line <= (node.end_lineno or 0)
        ):
            body = getattr(node, "body", None)
            if statement is None or node.lineno >= statement.lineno:
                statement = (
                    node if body is None or line < body[0].lineno or isinstance(node, ast.With) else statement
                )
    return statement


def _function(path: str, line: int) -> tuple[list[str], ast.FunctionDef | ast.AsyncFunctionDef | None]:
    with open(path, encoding="utf-8") as file:
        text = file.read()
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    around = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, kinds) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    return text.splitlines(), min(around, key=lambda node: (node.end_lineno or 0) - node.lineno, default=None)


def _wanted(function: ast.AST, line: int) -> str:
    """The exception that a `with ...raises(...)` around a line waits for."""
    for node in ast.walk(function):
        if isinstance(node, ast.With) and node.lineno <= line <= (node.end_lineno or 0):
            call = node.items[0].context_expr
            if (
                isinstance(call, ast.Call)
                and call.args
                and ast.unparse(call.func).lower().split(".")[-1].endswith("raises")
            ):
                return ast.unparse(call.args[0])
    return ""


def _code(path: str, line: int) -> dict[str, str]:
    """The statement on a line, and the function's body up to it."""
    lines, function = _function(path, line)
    statement = None if function is None else _statement(function, line)
    if statement is None or function is None:
        return {"statement": "", "code": "", "wanted": ""}
    body = [
        node
        for node in function.body
        if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
    ]
    first = body[0].lineno if body else statement.lineno
    until = statement.end_lineno or statement.lineno
    before = lines[first - 1 : until]
    code = textwrap.dedent("\n".join(before)) if len(before) <= _MOST_LINES else ""
    shown = textwrap.dedent("\n".join(lines[statement.lineno - 1 : until]))
    return {"statement": shown, "code": code, "wanted": _wanted(function, line)}


class PytestObserver:
    """The pytest plugin."""

    def __init__(self, reporter: Any, folder: str) -> None:
        self._reporter = reporter
        self._folder = folder
        self._compared: tuple[str, Any, Any] | None = None

    def pytest_runtest_setup(self) -> None:
        """Forgets the last test."""
        self._compared = None

    def pytest_assertrepr_compare(self, op: str, left: Any, right: Any) -> None:
        """Keeps the two sides of what did not hold."""
        self._compared = op, left, right

    def pytest_runtest_makereport(self, item: Any, call: Any) -> None:
        """Says the fact."""
        if call.excinfo is None or call.excinfo.typename == "Skipped":
            return
        self._reporter.say("fact", item.nodeid, json.dumps(self._fact(call.excinfo), sort_keys=True))

    def _fact(self, info: Any) -> dict[str, Any]:
        mine = [entry for entry in info.traceback if str(entry.path).startswith(self._folder)]
        fact: dict[str, Any] = {"error": info.typename, "message": str(info.value)[:_LONGEST]}
        compared = self._compared if info.typename == "AssertionError" else None
        if mine:
            entry = mine[-1]
            fact |= _code(str(entry.path), entry.lineno + 1)
            local = {name: value for name, value in entry.frame.f_locals.items() if name[0] != "@"}
            plain = {name: _repr(value) for name, value in local.items() if type(value) in _PLAIN}
            fact["locals"], fact["names"] = (
                sorted(local),
                {name: value_text for name, value_text in plain.items() if value_text is not None},
            )
        if compared is None and info.typename == "AssertionError":
            compared = self._unittest(info)
        if compared is not None:
            fact["op"], fact["left"], fact["right"] = compared[0], _repr(compared[1]), _repr(compared[2])
        return fact

    def _unittest(self, info: Any) -> tuple[str, Any, Any] | None:
        """The two sides of an `assertEqual`."""
        for entry in info.traceback:
            local = entry.frame.f_locals
            if entry.name == "assertEqual" and {"first", "second"} <= set(local):
                return "==", local["first"], local["second"]
        return None


def main() -> None:
    """Runs the runner with both plugins."""
    runner = types.ModuleType("runner")
    # The runner is HarnessGym's own text.
    exec(compile(sys.argv[1], "runner", "exec"), runner.__dict__)  # noqa: S102
    import pytest

    kept: dict[str, Any] = {}
    plain = pytest.main
    lay = runner.__dict__["_lay"]

    class Reporter(runner.Reporter):  # type: ignore[name-defined, misc]
        """Remembers itself."""

        def __init__(self, *words: Any) -> None:
            super().__init__(*words)
            kept["reporter"] = self

    def laid(files: dict[str, str]) -> str:
        kept["folder"] = str(lay(files))
        return str(kept["folder"])

    def run(options: list[str], plugins: list[Any]) -> Any:
        return plain(options, plugins=[*plugins, PytestObserver(kept["reporter"], str(kept["folder"]))])

    runner.__dict__.update(Reporter=Reporter, _lay=laid)
    pytest.main = run  # type: ignore[assignment]
    runner.__dict__["main"]()


if __name__ == "__main__":
    main()
