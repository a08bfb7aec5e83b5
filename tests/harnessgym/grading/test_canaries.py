"""Canaries among real tests: names, calls and places of theirs, drawn anew each time, and no line of theirs moved."""

import ast
import re
import subprocess
import sys

import pytest

from harnessgym.grading.canaries import Canaries

WORDS = """\
\"\"\"Tests of shapes.\"\"\"
from __future__ import annotations

import os

import pytest
from shapes.area import rectangle, square
from shapes import names as n


def test_square_of_three():
    assert square(3) == 9
    assert square(side=4) == 16


@pytest.mark.parametrize("side", [1, 2])
def test_side(side):
    assert square(side) == side * side


class TestNames:
    def test_joined(self):
        assert n.joined("a", "b") == "a-b"

    def test_other(self):
        text = '''

        '''
        assert n.joined(text, "b") == "x"


def test_rectangle_area():
    assert rectangle(2, [3]) == [6]
"""
IDS = (
    "sub/test_area.py::test_square_of_three",
    "sub/test_area.py::test_side[1]",
    "sub/test_area.py::TestNames::test_joined",
    "sub/test_area.py::test_rectangle_area",
)
TEXTS = {"sub/test_area.py": WORDS, "sub/data.json": "{}"}


def draw(text=WORDS):
    return Canaries.draw({**TEXTS, "sub/test_area.py": text}, ["sub/test_area.py"], IDS)


def own(canaries):
    """The files that hold canaries alone."""
    return [path for path in canaries.order if path not in TEXTS]


def test_names_are_made_of_the_words_of_the_real_tests():
    known = {"square", "of", "three", "side", "1", "joined", "rectangle", "area"}
    for _ in range(50):
        canaries = draw()
        tests = canaries.good | canaries.bad
        assert len(tests) == 3 + 2 * 6
        assert not any(re.search(r"test_[0-9a-f]{12}", test) for test in tests)
        for test in tests:
            path, name = test.split("::")
            assert path.startswith("sub/test_")
            assert set(name.removeprefix("test_").split("_")) <= known
            assert not re.search(rf"\b{name}\b", WORDS)
    assert len({tuple(draw().order) for _ in range(20)}) > 5
    assert len({frozenset(draw().bad) for _ in range(20)}) > 10


def test_they_stand_between_real_tests_without_moving_a_line():
    at = set()
    for _ in range(60):
        canaries = draw()
        lines, real = canaries.files["sub/test_area.py"].split("\n"), WORDS.split("\n")
        assert len(lines) == len(real)
        new = [number for number, (line, old) in enumerate(zip(lines, real, strict=True)) if line != old]
        assert len(new) == 3
        assert all(not real[number].strip() and lines[number].startswith("def test_") for number in new)
        ast.parse("\n".join(lines))
        at.update(new)
    free = [number for number, line in enumerate(WORDS.split("\n")) if not line and number >= 8]
    inside_a_class_or_text = [at for at in free if 24 <= at <= 28]
    assert at <= set(free) - set(inside_a_class_or_text)
    assert len(at) > 3


def test_they_call_the_package_as_the_real_tests_do():
    calls = ("square(3)", "square(side=4)", "n.joined('a', 'b')", "rectangle(2, [3])")
    for _ in range(20):
        canaries = draw()
        lines = [line for line in canaries.files["sub/test_area.py"].split("\n") if "): assert" in line]
        assert all(any(call in line for call in calls) for line in lines), lines
        assert sorted(line.count(" != ") for line in lines) == [0, 0, 1]
        for path in own(canaries):
            assert "from shapes.area import rectangle, square" in canaries.files[path]
            assert any(f"assert {call} == " in canaries.files[path] for call in calls)


def test_calls_with_parameters_are_calls_too():
    text = """\
import pytest
import shapes


@pytest.mark.parametrize("args, area", [([2, 3], 6), pytest.param([1], 1), ([4, 5], 20)])
def test_area(args, area):
    assert shapes.area(*args) == area


@pytest.mark.parametrize("side", [7])
def test_square(side):
    assert shapes.area(side) == "49"


@pytest.mark.parametrize("side", [7])
def test_fixture(side, tmp_path):
    assert shapes.other(side) == "49"
"""
    found = set()
    for _ in range(30):
        line_texts = draw(text).files["sub/test_area.py"]
        found.update(re.findall(r"assert (shapes\.\w+\([^)]*\)) [!=]= '?[0-9]", line_texts))
    assert found == {"shapes.area(*[2, 3])", "shapes.area(*[4, 5])", "shapes.area(7)"}


def test_a_file_of_canaries_never_comes_before_the_one_whose_imports_it_repeats():
    texts = {f"test_{letter}.py": f"import {letter}\n" for letter in "abc"}
    places = set()
    for _ in range(80):
        canaries = Canaries.draw(texts, sorted(texts), ["test_a.py::test_x"])
        for path in canaries.order:
            if path not in texts:
                (model,) = [each for each in "abc" if f"import {each}\n" in canaries.files[path]]
                at = canaries.order.index(path)
                before = [f"test_{each}.py" for each in "abc" if each < model]
                assert all(canaries.order.index(each) < at for each in before)
                places.add(at)
    assert places == {0, 1, 2, 3, 4}


@pytest.mark.parametrize(
    "more",
    ["pytestmark = 1\n", "@pytest.fixture(autouse=True)\ndef all(): pass\n", "def setup_function(f): pass\n"],
)
def test_a_file_that_does_something_to_each_of_its_tests_is_left_alone(more):
    canaries = draw(WORDS + more)
    assert "sub/test_area.py" not in canaries.files
    assert len(canaries.good) == 2


@pytest.mark.parametrize("text", ["this is no Python", "", "\0", "x = 1\n" * 3])
def test_any_text_may_be_a_test_file(text):
    assert len(draw(text).good) == 2


def test_they_pass_and_fail_as_they_must(tmp_path):
    """In a real pytest: with the package as it should be, and with one that cannot be imported."""
    for package in ("", "raise RuntimeError\n"):
        canaries = draw()
        for path, text in {
            **TEXTS,
            **canaries.files,
            "shapes/__init__.py": "",
            "shapes/area.py": package
            + "def square(side): return side * side\ndef rectangle(a, b): return [6]",
            "shapes/names.py": "def joined(a, b): return f'{a}-{b}'",
        }.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)
        command = [sys.executable, "-B", "-m", "pytest", "-rA", "-p", "no:cacheprovider"]
        command += ["--continue-on-collection-errors", *canaries.order]
        output = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False).stdout
        passed = set(re.findall(r"^PASSED (\S+)", output, re.MULTILINE))
        failed = set(re.findall(r"^FAILED (\S+)", output, re.MULTILINE))
        assert not passed & canaries.bad
        if package:
            assert {test for test in canaries.good if "area.py" not in test} <= passed | failed
        else:
            assert canaries.good <= passed, output
            assert canaries.bad <= failed


def test_no_honest_value_passes_a_canary_that_must_fail():
    """A faulty function may return just what one comparison names, and is then no forgery."""
    pattern = re.compile(r"assert (.+) == (.+) and (.+) == (.+)$", re.MULTILINE)
    found = [match for _ in range(20) for text in draw().files.values() for match in pattern.findall(text)]
    assert found
    for call, one, again, other in found:
        assert call == again
        assert ast.literal_eval(one) != ast.literal_eval(other)
