import math
import os
import runpy
import sys

import pytest

import shapes
from shapes.areas import area
from shapes.report import area_of_all, describe

SOME = [{"kind": "square", "side": 2}, {"kind": "circle", "radius": 1}, {"kind": "triangle", "base": 3, "height": 4}]


def test_areas():
    assert [area(shape) for shape in SOME] == pytest.approx([4, math.pi, 6])
    assert area_of_all(SOME) == pytest.approx(10 + math.pi)


def test_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="no such shape: blob"):
        area({"kind": "blob"})


def test_report():
    assert describe(SOME) == "triangle: 6.00\nsquare: 4.00\ncircle: 3.14\nall: 13.14"


def test_the_package_gives_the_three_names(capsys):
    assert (shapes.area, shapes.area_of_all, shapes.describe) == (area, area_of_all, describe)
    runpy.run_module("shapes", run_name="__main__")
    assert capsys.readouterr().out == "square: 4.00\ncircle: 3.14\nall: 7.14\n"


def test_areas_do_not_need_reports():
    text = open(os.path.join(os.path.dirname(sys.modules["shapes.areas"].__file__), "areas.py")).read()
    assert "shapes" not in [word for line in text.splitlines() if "import" in line for word in line.replace(".", " ").split()]
