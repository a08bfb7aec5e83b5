"""Test logs: parses what a test runner printed into test id to status.

Members live in `logs/`, under the names that datasets use. A parser is a plain function of the text. Logs are
hostile data: no content raises, and lines longer than any test's name are skipped. When an id is reported
twice, the last report wins.
"""

import importlib
import re
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum

from harnessgym.config import nearest
from harnessgym.errors import TaskError

_LONGEST = 8_192
"""Longest line that can report a test, in characters."""
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[@-Z\\-_])")


class LogStatus(StrEnum):
    """How one test ended."""

    PASSED = "PASSED"
    FAILED = "FAILED"
    ERROR = "ERROR"
    SKIPPED = "SKIPPED"
    XFAIL = "XFAIL"
    """Failed, and the test expects that."""


Statuses = dict[str, LogStatus]
"""Test id to status."""
Parser = Callable[[str], Statuses]

_MEMBERS: Mapping[str, str] = {
    "python:plain": "pytest astroid flask marshmallow pvlib pyvista sqlfluff xarray pydantic dvc",
    "python:options": "pytest_options pydicom requests pylint",
    "python:spaced": "pytest_v2 astropy scikit sphinx",
    "python:matplotlib": "matplotlib",
    "python:seaborn": "seaborn",
    "python:summary": "pytest_summary",
    "python:django": "django",
    "python:verbose": "unittest",
    "lines:sympy": "sympy",
    "lines:gotest": "gotest",
    "lines:cargo": "cargo",
    "java:by_build": "maven",
    "java:surefire": "java_mvn",
    "java:classes": "kotlin_junit",
    "java:reactor": "java_mvn_v2",
    "lines:ant": "ant",
    "java:gradle": "gradle_custom",
    "java:junit": "junit sbt",
    "javascript:verbose": "jest",
    "javascript:transformed": "jest_json",
    "javascript:files": "react_pdf",
    "lines:vitest": "vitest",
    "javascript:spec": "js_2 mocha",
    "javascript:marked_failures": "js",
    "javascript:numbered": "marked",
    "javascript:minimal": "eslint",
    "javascript:tree": "karma",
    "javascript:chrome": "chart_js",
    "javascript:browsers": "bpmn_js",
    "tap:testdox": "phpunit",
    "ruby:minitest": "minitest",
    "ruby:minitest_words": "ruby_v1",
    "ruby:cucumber": "cucumber",
    "ruby:test_unit": "ruby_unit",
    "ruby:rspec": "rspec_transformed_json",
    "tap:tap": "tap",
    "tap:nested": "js_3",
    "lines:ctest": "ctest",
    "lines:googletest": "googletest",
    "lines:automake": "jq",
    "lines:micropython": "micropython_test",
    "lines:redis": "redis",
}  # fmt: skip
PARSERS: Mapping[str, str] = {
    f"parse_log_{name}": f"harnessgym.grading.logs.{target}"
    for target, known in _MEMBERS.items()
    for name in known.split()
}
"""A row's parser name to `module:function`."""
_ALSO = {"parse_java_mvn": "parse_log_java_mvn", "parse_java_mvn_v2": "parse_log_java_mvn_v2",
         "parse_logs_kotlin_junit": "parse_log_kotlin_junit"}  # fmt: skip
"""Other spellings that rows use."""


def parser_named(name: str) -> Parser:
    """The parser that a row names. A `module:function` of yours works too.

    Raises TaskError with the known names.
    """
    target = PARSERS.get(_ALSO.get(name, name), name)
    module, colon, function = target.partition(":")
    if not colon:
        known = ", ".join(sorted(PARSERS))
        raise TaskError(f"There is no log parser {name!r}. {nearest(name, sorted(PARSERS))} Known: {known}.")
    try:
        parser: Parser = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise TaskError(f"The log parser {name!r} cannot be loaded: {error}.") from error
    return parser


def is_known(name: str) -> bool:
    """Whether `parser_named` accepts the name. Imports nothing."""
    return name in PARSERS or name in _ALSO or ":" in name


def text_of(log: bytes) -> str:
    """The text of a log. Bytes that are not UTF-8 become a replacement character; CRLF becomes LF."""
    return log.decode(errors="replace").replace("\r\n", "\n")


def without_escapes(text: str) -> str:
    """Removes terminal escape sequences."""
    return _ESCAPES.sub("", text)


def lines_of(log: str) -> Iterator[str]:
    """The lines that can report a test."""
    return (line for line in log.split("\n") if len(line) <= _LONGEST)


def by_line(log: str, pattern: re.Pattern[str], words: Mapping[str, LogStatus]) -> Statuses:
    """Parses one report a line.

    `pattern` matches at the start of the stripped line and has the groups `word` and `name`.
    """
    statuses: Statuses = {}
    for line in lines_of(log):
        match = pattern.match(line.strip())
        if match is not None and match["word"] in words:
            statuses[match["name"]] = words[match["word"]]
    return statuses
