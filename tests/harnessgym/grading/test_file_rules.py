"""Rules about one path of an exported workspace: what breaks each, and in which words."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harnessgym.grading.checks.files import FileRule
from harnessgym.grading.file_rules import broken


@pytest.fixture
def problem(tmp_path):
    """How a rule about `a` is broken in a workspace where `a` has the given content."""

    def of(data=None, mode=0o644, **rule):
        path = tmp_path / "a"
        if data is not None:
            path.write_bytes(data if isinstance(data, bytes) else data.encode())
            path.chmod(mode)
        return broken(FileRule(path="a", **rule), tmp_path)

    return of


def test_a_file_that_only_has_to_be_there(problem):
    assert problem() == "there is no such file"
    assert problem("anything") == ""


def test_what_must_be_absent(problem):
    assert problem(absent=True) == ""
    assert problem("x", absent=True) == "it is there"


def test_a_dangling_link_is_not_absent(problem, tmp_path):
    (tmp_path / "a").symlink_to("nowhere")
    assert problem(absent=True) == "it is there"


def test_a_folder_and_a_file_are_not_the_same(problem, tmp_path):
    assert problem(folder=True) == "there is no such folder"
    (tmp_path / "a").mkdir()
    assert problem(folder=True) == ""
    assert problem() == "there is no such file"


def test_a_link_out_of_the_workspace_is_no_file(tmp_path):
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (tmp_path / "secret").write_text("42")
    (workspace / "a").symlink_to("../secret")
    assert broken(FileRule(path="a", content="42"), workspace) == "there is no such file"


def test_a_folder_that_leads_out_of_the_workspace_hides_its_files(tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/a").write_text("42")
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace/out").symlink_to("../outside")
    assert broken(FileRule(path="out/a"), tmp_path / "workspace") == "there is no such file"


def test_a_link_inside_the_workspace_is_followed(problem, tmp_path):
    (tmp_path / "b").write_text("42")
    (tmp_path / "a").symlink_to("b")
    assert problem(content="42") == ""


@pytest.mark.parametrize(
    ("mode", "wanted", "expected"),
    [
        (0o755, True, ""),
        (0o644, False, ""),
        (0o644, True, "it must be executable"),
        (0o744, False, "it must not be executable"),
        (0o655, True, "it must be executable"),
    ],
)
def test_the_owner_may_or_may_not_execute(problem, mode, wanted, expected):
    assert problem("x", mode, executable=wanted) == expected


def test_a_file_of_a_mebibyte_is_read_and_a_larger_one_is_not(problem):
    assert problem("x" * (1 << 20), pattern="x") == ""
    assert problem("x" * (1 << 20) + "x", pattern="x") == "it is larger than 1048576 bytes"


def test_other_content_is_shown(problem):
    assert problem("41\n", content="42") == "it holds something else: '41\\n'"


def test_at_most_200_bytes_are_shown(problem):
    assert problem("x" * 500, content="42") == f"it holds something else: {'x' * 200!r}"


def test_bytes_that_are_no_text_are_shown_with_replacements(problem):
    assert problem(b"\xff", content="42") == "it holds something else: '\ufffd'"


@pytest.mark.parametrize("rule", [{"pattern": "x"}, {"forbidden": "x"}, {"parsed": "json"}])
def test_conditions_on_text_need_text(problem, rule):
    assert problem(b"\xffx", **rule) == "it is not UTF-8 text"


def test_bytes_need_not_be_text_where_no_condition_reads_them(problem):
    assert problem(b"\xff") == ""


def test_patterns_are_searched_in_every_line(problem):
    assert problem("a\nb", pattern="^b$") == ""
    assert problem("a\nbc", pattern="^b$") == "'^b$' is not found in it"
    assert problem("a\nb", forbidden="^a$") == "'^a$' is found in it"
    assert problem("ab", forbidden="^a$") == ""


def test_every_condition_that_is_set_must_hold(problem):
    assert problem("a\nb", pattern="a", forbidden="b") == "'b' is found in it"
    assert problem("a\nb", pattern="c", forbidden="b") == "'c' is not found in it"


def test_a_file_that_does_not_parse(problem):
    assert problem("{", parsed="json") == "it is no JSON"
    assert problem("= 1", parsed="toml") == "it is no TOML"


def test_the_value_null_is_json(problem):
    assert problem("null", parsed="json") == ""


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"a.0": 1, "b.c": "x"}, ""),
        ({"a.2": 1}, "a.2 is missing"),
        ({"a.-1": 1}, "a.-1 is missing"),
        ({"a.x": 1}, "a.x is missing"),
        ({"b.d": 1}, "b.d is missing"),
        ({"b.c.d": 1}, "b.c.d is missing"),
        ({"b.c": "y"}, "b.c is 'x'"),
        ({"n": 0}, "n is None"),
        ({"n": None}, ""),
    ],
)
def test_values_are_named_by_dotted_paths(problem, values, expected):
    text = json.dumps({"a": [1, 2], "b": {"c": "x"}, "n": None})
    assert problem(text, parsed="json", values=values) == expected


def test_values_have_a_tolerance(problem):
    assert problem('{"x": 1.0000001}', parsed="json", values={"x": 1}) == ""
    assert problem('{"x": 1.0000001}', parsed="json", values={"x": 1}, tolerance=0) == "x is 1.0000001"


def test_a_long_value_is_cut(problem):
    expected = "x is '" + "y" * 199
    assert problem(json.dumps({"x": "y" * 500}), parsed="json", values={"x": 1}) == expected


KEYS = st.text("abc012", min_size=1, max_size=3)
TREES = st.recursive(
    st.integers() | st.text(max_size=4) | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


def leaves(value, path=()):
    """Every dotted path of a value, and what is there."""
    if path:
        yield ".".join(path), value
    pairs = enumerate(value) if isinstance(value, list) else value.items() if isinstance(value, dict) else ()
    for key, inner in pairs:
        yield from leaves(inner, (*path, str(key)))


@settings(max_examples=40)
@given(st.dictionaries(KEYS, TREES, max_size=3))
def test_every_path_of_a_value_leads_to_what_is_there(tmp_path_factory, value):
    workspace = tmp_path_factory.getbasetemp()
    (workspace / "values.json").write_text(json.dumps(value))
    rule = FileRule(path="values.json", parsed="json", values=dict(leaves(value)), tolerance=0)
    assert broken(rule, workspace) == ""
