"""A small repository with an issue, as a row: `rectangle` adds instead of multiplying."""

from harnessgym.tasks.rows import TaskRow
from harnessgym.tasks.swe_bench import swe_bench_task

AREA = "def rectangle(width, height):\n    return width + height\n\n\ndef square(side):\n    return side * side\n"
TESTS = "from shapes.area import square\n\n\ndef test_square():\n    assert square(3) == 9\n"
OTHER = "from shapes.area import square\n\n\ndef test_zero():\n    assert square(0) == 0\n"
FILES = {
    "shapes/__init__.py": "",
    "shapes/area.py": AREA,
    "tests/test_area.py": TESTS,
    "tests/test_other.py": OTHER,
    ".gitignore": "*.log\n__pycache__/\n",
    "logo.txt": "logo\r\n",
}
GOLD = """\
diff --git a/shapes/area.py b/shapes/area.py
--- a/shapes/area.py
+++ b/shapes/area.py
@@ -1,5 +1,5 @@
 def rectangle(width, height):
-    return width + height
+    return width * height
~
~
 def square(side):
""".replace("~", " ")
TEST_PATCH = """\
diff --git a/tests/test_area.py b/tests/test_area.py
--- a/tests/test_area.py
+++ b/tests/test_area.py
@@ -1,5 +1,9 @@
-from shapes.area import square
+from shapes.area import rectangle, square
~
~
 def test_square():
     assert square(3) == 9
+
+
+def test_rectangle():
+    assert rectangle(3, 4) == 12
""".replace("~", " ")
ROW = {
    "instance_id": "acme__shapes-5",
    "repo": "acme/shapes",
    "version": "1.2",
    "problem_statement": "rectangle() adds instead of multiplying",
    "patch": GOLD,
    "test_patch": TEST_PATCH,
    "FAIL_TO_PASS": ["tests/test_area.py::test_rectangle"],
    "PASS_TO_PASS": '["tests/test_area.py::test_square", "tests/test_other.py::test_zero"]',
}
SCRIPT = """\
#!/bin/bash
set -uxo pipefail
export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1
: '>>>>> Start Test Output'
python3 -m pytest -rA -p no:cacheprovider tests
: '>>>>> End Test Output'
"""
FIXED = AREA.replace("width + height", "width * height")


def task_of(**columns):
    """The task of a row with these files and this issue."""
    row = {**ROW, "base_files": FILES, "eval_script": SCRIPT, **columns}
    return swe_bench_task(
        TaskRow("here: row 1", {key: value for key, value in row.items() if value is not None}), "shapes"
    )
