"""Which functions of two workspaces are compared: names, files, packages, and kinds of definitions."""

import pytest

from harnessgym.grading.differential.functions import differing, is_test, python_files


@pytest.fixture
def workspaces(tmp_path):
    """Writes the same files into two workspaces; the second with replacements or, for None, without them."""

    def write(files, **changes):
        for name, texts in (("gold", files), ("candidate", {**files, **changes})):
            (tmp_path / name).mkdir()
            for path, text in texts.items():
                if text is not None:
                    (tmp_path / name / path).parent.mkdir(parents=True, exist_ok=True)
                    (tmp_path / name / path).write_text(text)
        return differing(tmp_path / "gold", tmp_path / "candidate")

    return write


@pytest.fixture
def changed(workspaces):
    """The names of the functions to compare when one module changes."""

    def names(gold, candidate):
        compared = workspaces({"m.py": gold}, **{"m.py": candidate})
        return [function.name for function in compared.functions], dict(compared.left_out)

    return names


def test_equal_workspaces_have_nothing_to_compare(workspaces):
    compared = workspaces({"m.py": "def f(): return 1\n"})
    assert (compared.functions, compared.left_out) == ((), {})


def test_white_space_comments_and_quotes_do_not_count(changed):
    gold = "def f(a):\n    return 'x'\n"
    assert changed(gold, '# new\ndef f( a ):  # old\n\n    return "x"\n') == ([], {})


def test_default_values_count(changed):
    assert changed("def f(a=1): return a\n", "def f(a=2): return a\n") == (["f"], {})


def test_asynchronous_functions_are_compared(changed):
    assert changed("async def f(): return 1\n", "async def f(): return 2\n") == (["f"], {})


def test_the_bases_of_a_class_count_for_its_methods(changed):
    gold = "class A: ...\nclass B(A):\n    def f(self): return 1\n    def g(self): return 2\n"
    assert changed(gold, gold.replace("class B(A)", "class B")) == (["B.f", "B.g"], {})


def test_a_changed_constructor_counts_for_every_public_method(changed):
    gold = "class A:\n    def __init__(self): self.x = 1\n    def f(self): return self.x\n"
    assert changed(gold, gold.replace("= 1", "= 2")) == (["A.f"], {})


def test_a_call_method_is_public(changed):
    gold = "class A:\n    def __call__(self): return 1\n"
    assert changed(gold, gold.replace("1", "2")) == (["A.__call__"], {})


def test_helpers_are_followed_through_several_functions(changed):
    gold = "def f(): return _a()\ndef _a(): return _b()\ndef _b(): return 1\ndef g(): return 2\n"
    assert changed(gold, gold.replace("return 1", "return 3")) == (["f"], {})


def test_functions_that_call_each_other_come_to_an_end(changed):
    gold = "def f(n): return g(n)\ndef g(n): return f(n) + 1\n"
    assert changed(gold, gold.replace("+ 1", "+ 2")) == (["f", "g"], {})


def test_a_constant_that_is_built_in_several_statements_counts(changed):
    gold = "A = [1]\nfor n in range(3):\n    A += [n]\ndef f(): return A\ndef g(): return 1\n"
    assert changed(gold, gold.replace("range(3)", "range(4)"))[0] == ["f"]


def test_a_private_function_that_is_gone_is_no_remark(changed):
    gold = "def f(): return 1\ndef _helper(): return 1\n"
    assert changed(gold, "def f(): return 2\n") == (["f"], {})


def test_a_public_function_that_is_gone_is_a_remark(changed):
    gold = "def f(): return 1\ndef g(): return 1\n"
    assert changed(gold, "def f(): return 1\n") == ([], {"m.g": "the candidate has no function of this name"})


def test_modules_are_named_from_the_folder_above_their_packages(workspaces):
    files = {
        "src/pkg/__init__.py": "",
        "src/pkg/sub/__init__.py": "def f(): return 1\n",
        "src/pkg/sub/m.py": "def f(): return 1\n",
        "scripts/tool.py": "def f(): return 1\n",
    }
    changes = {path: text.replace("1", "2") for path, text in files.items() if text}
    compared = workspaces(files, **changes)
    assert [(function.root, function.place) for function in compared.functions] == [
        ("scripts", "tool.f"),
        ("src", "pkg.sub.f"),
        ("src", "pkg.sub.m.f"),
    ]


def test_the_line_is_that_of_the_first_decorator(workspaces):
    gold = "import functools\n\n\n@functools.cache\n@staticmethod\ndef f(): return 1\n"
    (function,) = workspaces({"m.py": gold}, **{"m.py": gold.replace("1", "2")}).functions
    assert function.line == 4


def test_a_file_larger_than_a_mebibyte_is_not_compared(workspaces):
    large = "def f(): return 1\n" + "#" * (1 << 20)
    compared = workspaces({"m.py": large}, **{"m.py": "def f(): return 2\n"})
    assert compared.functions == ()


def test_a_module_reached_through_a_linked_folder_is_not_the_candidates(tmp_path):
    for name in ("gold/pkg", "elsewhere", "candidate"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "gold/pkg/m.py").write_text("def f(): return 1\n")
    (tmp_path / "elsewhere/m.py").write_text("def f(): return 2\n")
    (tmp_path / "candidate/pkg").symlink_to("../elsewhere")
    compared = differing(tmp_path / "gold", tmp_path / "candidate")
    assert compared.functions == ()
    assert compared.left_out == {"m": "the candidate does not have this file"}


def test_hidden_folders_installed_packages_and_links_hold_no_files_of_the_workspace(tmp_path):
    for path in ("a.py", "b/c.py", ".git/x.py", "site-packages/y.py", "b/__pycache__/z.py", "b/notes.txt"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("")
    (tmp_path / "link.py").symlink_to("a.py")
    assert list(python_files(tmp_path)) == ["a.py", "b/c.py"]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("test/helpers.py", True), ("testing/data.py", True), ("src/test_x.py", True), ("tests.py", False),
        ("src/tested/x.py", False), ("test.py", False), ("x_tests.py", False),
    ],
)  # fmt: skip
def test_tests_are_known_by_file_or_folder(path, expected):
    assert is_test(path) is expected
