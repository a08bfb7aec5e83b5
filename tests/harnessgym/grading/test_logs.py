"""Every parser reads back what a runner would have printed, whatever stands between the reports."""

from string import ascii_lowercase

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harnessgym.errors import TaskError
from harnessgym.grading.log import PARSERS, LogStatus, is_known, parser_named, text_of

P, F, E, S, X = LogStatus.PASSED, LogStatus.FAILED, LogStatus.ERROR, LogStatus.SKIPPED, LogStatus.XFAIL
WORDS = st.text(ascii_lowercase, min_size=2, max_size=8)
FUNCTIONS = WORDS.map("test_{}".format)
PATHS = st.builds("tests/{}.py::test_{}".format, WORDS, WORDS)
PARAMETERS = st.one_of(PATHS, st.builds("{}[{}-1]".format, PATHS, WORDS))
CLASSES = st.builds("test_{} (app.{}.Case)".format, WORDS, WORDS)
PLAIN = st.builds("{} does {}".format, WORDS, WORDS)
DOTTED = st.builds("org.{}.{}Test".format, WORDS, WORDS)
GRADLE = st.builds("org.{}Test > {}".format, WORDS, WORDS)
METHODS = st.builds("Test{}#test_{}".format, WORDS, WORDS)
NOISE = [
    "",
    "warning: something is deprecated",
    "    at Object.run (index.js)",
    "100% of everything",
    "Traceback (most recent call last):",
]


def signs(form, **said):
    return lambda test, status: form.format(test=test, word=said[status.name])


def pytest_summary(test, status):
    return f"{status} {test}" + (" - AssertionError: 1 == 2" if status in (F, E) else "")


def pytest_colours(test, status):
    return f"\x1b[31m{status}\x1b[0m {test}" + (" - AssertionError: 1 == 2" if status is F else "")


def unittest_line(test, status):
    said = {P: "ok", F: "FAIL", E: "ERROR", S: "skipped 'not here'", X: "expected failure"}[status]
    return f"{test} ... {said}"


def xml(test, status):
    inside = {P: "", F: "<failure message='x'>trace</failure>", E: "<error/>", S: "<skipped/>"}[status]
    group, name = test.split(" ", 1)
    return f'<testcase name="{name}" time="0.1" classname="{group}">{inside}</testcase>'


def build(test, status):
    return (
        f"+ mvn test -Dtest={test}\n[INFO] Compiling\n[INFO] BUILD {'SUCCESS' if status is P else 'FAILURE'}"
    )


def surefire(test, status):
    counts = {P: (0, 0, 0), F: (1, 0, 0), S: (0, 0, 2)}[status]
    return f"Running {test}\nTests run: 2, Failures: {counts[0]}, Errors: {counts[1]}, Skipped: {counts[2]}, Time elapsed: 1 s"


RENDERED = {
    "parse_log_pytest": (PARAMETERS, (P, F, E, S, X), pytest_summary),
    "parse_log_pytest_options": (PARAMETERS, (P, F, E, S, X), pytest_summary),
    "parse_log_matplotlib": (PARAMETERS, (P, F, E, S, X), pytest_summary),
    "parse_log_pytest_v2": (PARAMETERS, (P, F, S, X), pytest_colours),
    "parse_log_scikit": (PARAMETERS, (P, F, E, S), lambda test, status: f"{test} {status}"),
    "parse_log_seaborn": (PARAMETERS, (P, F), pytest_summary),
    "parse_log_django": (CLASSES, (P, F, E, S), unittest_line),
    "parse_log_unittest": (CLASSES, (P, F, E, S, X), unittest_line),
    "parse_log_sympy": (FUNCTIONS, (P, F, E), signs("{test} {word}", PASSED="ok", FAILED="F", ERROR="E")),
    "parse_log_gotest": (
        METHODS,
        (P, F, S),
        signs("    --- {word}: {test} (0.10s)", PASSED="PASS", FAILED="FAIL", SKIPPED="SKIP"),
    ),
    "parse_log_cargo": (FUNCTIONS, (P, F), signs("test {test} ... {word}", PASSED="ok", FAILED="FAILED")),
    "parse_log_maven": (DOTTED, (P, F), build),
    "parse_log_java_mvn": (DOTTED, (P, F, S), surefire),
    "parse_log_kotlin_junit": (DOTTED, (P, F, S), surefire),
    "parse_log_java_mvn_v2": (
        PLAIN,
        (P, F, S),
        signs("[INFO] {test} ..... {word} [  1.2 s]", PASSED="SUCCESS", FAILED="FAILURE", SKIPPED="SKIPPED"),
    ),
    "parse_log_ant": (DOTTED, (P, F), signs("    [junit] [{word}] {test}", PASSED="PASS", FAILED="ERR")),
    "parse_log_gradle_custom": (GRADLE, (P, F), signs("{test} {word}", PASSED="PASSED", FAILED="FAILED")),
    "parse_log_junit": (PLAIN, (P, F, E, S), xml),
    "parse_log_jest": (
        PLAIN,
        (P, F, S),
        signs("    {word} {test} (12 ms)", PASSED="✓", FAILED="✕", SKIPPED="○"),
    ),
    "parse_log_jest_json": (PLAIN, (P, F), signs("[{word}] {test}", PASSED="PASSED", FAILED="FAILED")),
    "parse_log_react_pdf": (PLAIN, (P, F), signs("{word} {test} (1.2 s)", PASSED="PASS", FAILED="FAIL")),
    "parse_log_vitest": (
        PLAIN,
        (P, F, S),
        signs("  {word} {test} 12ms", PASSED="✓", FAILED="\N{MULTIPLICATION SIGN}", SKIPPED="↓"),
    ),
    "parse_log_mocha": (PLAIN, (P, F, S), signs("  {word} {test}", PASSED="✔", FAILED="1)", SKIPPED="-")),
    "parse_log_js": (PLAIN, (P, F, S), signs("  {word} {test}", PASSED="✔", FAILED="[W] 2)", SKIPPED="-")),
    "parse_log_marked": (PLAIN, (F,), signs("{word} {test}", FAILED="3)")),
    "parse_log_eslint": (PLAIN, (F,), lambda test, status: f"  1) {test}\n    AssertionError: x"),
    "parse_log_chart_js": (PLAIN, (F,), lambda test, status: f"Chrome 120.0 (Linux) {test}FAILED"),
    "parse_log_bpmn_js": (PLAIN, (F,), lambda test, status: f"HeadlessChrome 120.0 (Linux 5.4) {test}FAILED"),
    "parse_log_phpunit": (
        PLAIN,
        (P, F, S),
        signs("Shapes (App\\Shapes)\n {word} {test}", PASSED="✔", FAILED="✘", SKIPPED="↩"),
    ),
    "parse_log_minitest": (
        METHODS,
        (P, F, S),
        signs("{test} = 0.01 s = {word}", PASSED=".", FAILED="F", SKIPPED="S"),
    ),
    "parse_log_ruby_v1": (
        FUNCTIONS,
        (P, F, E, S),
        signs("  {test}   {word} (0.02s)", PASSED="PASS", FAILED="FAIL", ERROR="ERROR", SKIPPED="SKIP"),
    ),
    "parse_log_cucumber": (PLAIN, (P, F), signs("{test} ...{word}", PASSED=".", FAILED="F")),
    "parse_log_ruby_unit": (
        METHODS,
        (P, F, S),
        signs("test: {test}: {word}: (0.01)", PASSED=".", FAILED="F", SKIPPED="O"),
    ),
    "parse_log_rspec_transformed_json": (
        PLAIN,
        (P, F),
        signs("{test} - {word}", PASSED="passed", FAILED="failed"),
    ),
    "parse_log_tap": (PLAIN, (P, F), signs("{word} 3 {test}", PASSED="ok", FAILED="not ok")),
    "parse_log_js_3": (PLAIN, (P, F), signs("{word} 3 - {test} # time=1ms", PASSED="ok", FAILED="not ok")),
    "parse_log_ctest": (
        PLAIN,
        (P, F, E, S),
        signs(
            "1/9 Test  #1: {test} .....   {word}    0.01 sec",
            PASSED="Passed",
            FAILED="***Failed",
            ERROR="***Exception",
            SKIPPED="***Skipped",
        ),
    ),
    "parse_log_googletest": (
        DOTTED,
        (P, F),
        signs("[{word} ] {test} (3 ms)", PASSED="       OK", FAILED="  FAILED"),
    ),
    "parse_log_jq": (PLAIN, (P, F), signs("{word}: {test}", PASSED="PASS", FAILED="FAIL")),
    "parse_log_micropython_test": (
        FUNCTIONS,
        (P, F, S),
        signs("{word}  {test}", PASSED="pass", FAILED="FAIL", SKIPPED="skip"),
    ),
    "parse_log_redis": (
        PLAIN,
        (P, F, S),
        signs("[{word}]: {test}", PASSED="ok", FAILED="err", SKIPPED="skip"),
    ),
}
PREFIXES = {"parse_log_phpunit": "Shapes > "}


@pytest.mark.parametrize("name", sorted(RENDERED))
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_what_is_rendered_is_read_back_whatever_stands_between(name, data):
    tests, possible, render = RENDERED[name]
    expected = data.draw(st.dictionaries(tests, st.sampled_from(possible), min_size=1, max_size=6))
    noise = st.lists(st.sampled_from(NOISE), max_size=2)
    lines = [line for test, status in expected.items() for line in (*data.draw(noise), render(test, status))]
    prefix = PREFIXES.get(name, "")
    assert parser_named(name)("\n".join([*lines, *data.draw(noise)]) + "\n") == {
        prefix + test: status for test, status in expected.items()
    }


TARGETS = {target: name for name, target in PARSERS.items()}


@settings(max_examples=50, deadline=None)
@given(log=st.text(max_size=300))
def test_no_log_makes_a_parser_raise(log):
    for name in sorted(TARGETS.values()):
        assert all(isinstance(status, LogStatus) for status in parser_named(name)(log).values()), name


@pytest.mark.parametrize("name", sorted(TARGETS.values()))
def test_long_lines_take_no_time(name):
    """A line is cut off before any pattern can look at it again and again."""
    for line in (
        "a. " * 200_000,
        "a = " * 200_000,
        "--- PASS: " + "(" * 500_000,
        "<testcase " * 50_000,
        "✔ " + "(1 " * 200_000,
    ):
        parser_named(name)(line)
        parser_named(name)("\n".join([line[:8_000]] * 20))


def test_every_name_is_a_parser():
    assert all(callable(parser_named(name)) and is_known(name) for name in PARSERS)
    assert parser_named("parse_java_mvn") is parser_named("parse_log_java_mvn")
    assert parser_named("harnessgym.grading.logs.lines:cargo") is parser_named("parse_log_cargo")


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(
        TaskError, match=r"no log parser 'parse_log_pytst'.*parse_log_pytest.*Known: parse_log_ant"
    ):
        parser_named("parse_log_pytst")
    with pytest.raises(TaskError, match="cannot be loaded"):
        parser_named("nowhere:parse")
    assert not is_known("parse_log_pytst")


def test_ids_keep_their_options_but_not_the_paths_in_them():
    log = "PASSED t.py::a[/tmp/x/data.csv]\nPASSED t.py::b[//host/x]\nPASSED t.py::c[/a/*]\n"
    assert list(parser_named("parse_log_requests")(log)) == [
        "t.py::a[/data.csv]",
        "t.py::b[//host/x]",
        "t.py::c[/a/*]",
    ]
    assert parser_named("parse_log_matplotlib")("PASSED t.py::a[MouseButton.LEFT]") == {"t.py::a[1]": P}


def test_counts_of_skipped_tests_are_no_tests():
    log = "SKIPPED [3] t.py:9: why\nPASSED [100%]\nSKIPPED t.py::a\n"
    for name in (
        "parse_log_pytest",
        "parse_log_pytest_options",
        "parse_log_pytest_v2",
        "parse_log_matplotlib",
    ):
        assert parser_named(name)(log) == {"[100%]": P, "t.py::a": S}


def test_later_versions_of_pytest_print_ids_with_spaces():
    assert parser_named("parse_log_astropy")("FAILED t.py::a[x y] - assert 1\nt.py::b[x y] PASSED\n") == {
        "t.py::a[x y]": F,
        "t.py::b[x y]": P,
    }


def test_what_django_tests_print_may_come_before_ok():
    log = "test_a (m.C) ... Testing against Django installed in 'x'\nSystem check (0 silenced).\nok\nFAIL: test_b (m.C)\n"
    assert parser_named("parse_log_django")(log) == {"test_a (m.C)": P, "test_b": F}


def test_sympy_names_failures_twice():
    log = "test_a ok\ntest_b F\n_____ sympy/core/test_x.py:test_b _____\n"
    assert parser_named("parse_log_sympy")(log) == {
        "test_a": P,
        "test_b": F,
        "sympy/core/test_x.py:test_b": F,
    }


def test_a_build_before_the_first_test_is_none():
    log = "[INFO] BUILD SUCCESS\n+ mvn -Dtest=A\n[INFO] BUILD FAILURE\n+ mvn -Dtest=B\n[INFO] BUILD SUCCESS\n"
    assert parser_named("parse_log_maven")(log) == {"A": F, "B": P}
    assert parser_named("parse_log_maven")("[INFO] BUILD SUCCESS\n+ mvn -Dtest=A\n") == {"A": P}


def test_gradle_tears_names_from_statuses():
    assert parser_named("parse_log_gradle_custom")(
        "org.ATest > b\nwarning: x\nPASSED\n> Task :test FAILED\n"
    ) == {"org.ATest > b": P}


def test_karma_joins_groups():
    log = "Starting browser Chrome\n  Shapes\n    area\n      ✔ is right\n      ✖ is fast\nSUMMARY:\n ✔ 2 tests\n"
    found = parser_named("parse_log_karma")(log)
    assert found["Shapes > area > is right"] is P
    assert found["Shapes > area > is fast"] is F
    assert "2 tests" not in found


def test_details_of_failures_do_not_pass_a_test():
    assert parser_named("parse_log_mocha")("  1) a\n  ✔ a\n  ✔ b (53ms)\n") == {"a": F, "b": P}
    assert parser_named("parse_log_js_3")("not ok 1 - a {\n  ok 1 - b # skip why\n}\nok 2 - c\n") == {
        "a": F,
        "a :: b": S,
        "c": P,
    }


def test_redis_tells_where_a_test_failed():
    assert parser_named("parse_log_redis")("[err]: a b in tests/unit/x.tcl\n[ok]: c (12 ms)\n") == {
        "a b": F,
        "c": P,
    }


def test_the_short_summary_alone_counts_where_a_data_set_says_so():
    log = "PASSED r/t.py::forged\n== short test summary info ==\nPASSED r/t.py::T::a\nFAILED r/t.py::b - x\n"
    assert parser_named("parse_log_pytest_summary")(log) == {"T.a": P, "b": F}


def test_bytes_of_a_log_become_text():
    assert text_of(b"PASSED a\r\n\xff\r\n") == "PASSED a\n�\n"
