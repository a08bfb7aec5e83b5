"""Paths that patches touch, against what git itself says."""

import subprocess

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harnessgym.errors import TaskError
from harnessgym.grading.patches import new_files, patch_bytes, patched_paths

PATCH = """\
diff --git a/old name.py b/new.py
similarity index 90%
rename from old name.py
rename to new.py
--- a/old name.py
+++ b/new.py
@@ -1,3 +1,3 @@
 a
--- a/not/a/path
+++ b/nor/this
 c
diff --git a/bin/x.png b/bin/x.png
new file mode 100644
index 0000000..1111111
GIT binary patch
literal 3
Kc$`

diff --git a/run.sh b/run.sh
old mode 100644
new mode 100755
diff --git "a/s\\303\\244ge.py" "b/s\\303\\244ge.py"
deleted file mode 100644
--- "a/s\\303\\244ge.py"
+++ /dev/null
@@ -1 +0,0 @@
-x
\\ No newline at end of file
diff --git a/crlf.txt b/crlf.txt\r
--- a/crlf.txt\r
+++ b/crlf.txt\r
@@ -1 +1 @@\r
-x\r
+y\r
"""


def test_every_kind_of_change_names_its_paths():
    assert patched_paths(PATCH) == ("old name.py", "new.py", "bin/x.png", "run.sh", "säge.py", "crlf.txt")


def test_what_is_no_patch_touches_nothing():
    assert patched_paths("") == ()
    assert patched_paths("--- a/x\n") == ("x",)
    assert patched_paths("@@ -1,99999999999 +1 @@\n+++ b/x\n") == ("x",)


def test_a_patch_ends_with_a_line_end():
    assert patch_bytes("+x") == patch_bytes("+x\n") == b"+x\n"


NAMES = st.from_regex(r"[a-zäß][a-z \"\\._-]{0,6}[a-zé]", fullmatch=True)
LINES = st.lists(
    st.sampled_from(["a", "--- a/x", "+++ b/y", "-- b", "@@ -1 +1 @@", "diff --git a/q b/q", ""]), max_size=5
)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(NAMES, st.tuples(LINES, LINES), min_size=1, max_size=3))
def test_what_git_writes_is_read(tmp_path_factory, changes):
    folder = tmp_path_factory.mktemp("repository")

    def git(*words):
        command = ["git", "-C", str(folder), "-c", "user.name=x", "-c", "user.email=x@localhost", *words]
        return subprocess.run(command, capture_output=True, check=True).stdout.decode()

    git("init", "-q", "--template=")
    for name, (before, _) in changes.items():
        (folder / name).write_text("\n".join(before))
    git("add", "-A", "--force")
    git("commit", "-q", "-m", "x", "--allow-empty")
    for name, (_, after) in changes.items():
        (folder / name).write_text("\n".join(after))
    expected = [
        path
        for path in git("-c", "core.quotePath=false", "diff", "-z", "--name-only", "--no-renames").split("\0")
        if path
    ]
    assert sorted(patched_paths(git("diff", "--no-renames"))) == sorted(expected)


TEXTS = st.text(st.sampled_from("a \t\r\n\x0c\x85\u2028é+-@"), max_size=12)
NEW = st.dictionaries(
    st.from_regex(r"[a-c é]{0,2}[a-z]/[a-zé -]{0,3}[.]py", fullmatch=True), TEXTS, min_size=1, max_size=4
)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(NEW)
def test_git_makes_the_files_of_a_patch_byte_for_byte(tmp_path_factory, files):
    folder = tmp_path_factory.mktemp("new")
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    done = subprocess.run(
        ["git", "apply", "-"], input=new_files(files).encode(), cwd=folder, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert {path: (folder / path).read_bytes().decode() for path in files} == files
    assert set(patched_paths(new_files(files))) == set(files)


@pytest.mark.parametrize("path", ["", "/a", "../a", "a/../b", "a\nb", 'a"b', "a\\b"])
def test_paths_that_no_patch_can_make_are_refused(path):
    with pytest.raises(TaskError, match="no path"):
        new_files({path: ""})
