"""The containers of a Harbor task: image, working folder and environment, for the agent and for its tests."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harnessgym.errors import TaskError
from harnessgym.tasks.harbor_place import (
    WORKDIR,
    HarborContainer,
    grading_place,
    place_of,
    refuse,
    workdir_of,
)
from harnessgym.tasks.harbor_table import Environment, VerifierTable
from harnessgym.tasks.notes import Notes

WHERE = Path("task.toml")
AGENTS = HarborContainer("agents/image", "/app", {"A": "1", "B": "2"})


@pytest.fixture
def write(tmp_path):
    """Writes files below a task's folder, and returns the folder."""

    def laid(**files):
        for name, text in files.items():
            path = tmp_path / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return laid


def placed(folder, **table):
    notes = Notes()
    return place_of(Environment(**table), folder, WHERE, notes), notes.said


PARTS = st.lists(st.from_regex(r"[a-z][a-z0-9_]{0,5}", fullmatch=True), min_size=1, max_size=3).map("/".join)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.booleans(), PARTS), min_size=1, max_size=4))
def test_the_working_folder_follows_every_workdir_as_a_shell_follows_cd(tmp_path_factory, steps):
    dockerfile = tmp_path_factory.getbasetemp() / "Dockerfile-of-steps"
    words = [f"/{path}" if absolute else path for absolute, path in steps]
    dockerfile.write_text("FROM x\n" + "".join(f"WORKDIR {word}\n" for word in words))
    first = next((number for number, word in enumerate(words) if word.startswith("/")), None)
    expected = None
    for word in words[first:] if first is not None else ():
        expected = word if word.startswith("/") else f"{expected}/{word}"
    assert workdir_of(dockerfile) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("FROM x\nWORKDIR /a\n# WORKDIR /b\n", "/a"),
        ("FROM x\nWORKDIR \\\n  /a\n", "/a"),
        ("FROM x\nWORKDIR /a\nWORKDIR ${B}\nWORKDIR c\n", None),
        ("FROM x\nWORKDIR ${B}\nWORKDIR /c\n", "/c"),
        ("FROM x\nWORKDIR a\nWORKDIR /b\n", "/b"),
        ('FROM x\nWORKDIR "/with space"\n', "/with space"),
        ("", None),
    ],
)
def test_forms_of_workdir(tmp_path, text, expected):
    (tmp_path / "Dockerfile").write_text(text)
    assert workdir_of(tmp_path / "Dockerfile") == expected


@pytest.mark.parametrize(
    ("table", "what"),
    [
        ({"os": "windows"}, "environment.os: it is for Windows; sandboxes are Linux"),
        ({"gpus": 2}, "environment.gpus: it wants 2; sandboxes have none"),
        ({"tpu": {"type": "v5"}}, "environment.tpu: sandboxes have none"),
    ],
)
def test_what_no_sandbox_has_is_refused(tmp_path, table, what):
    with pytest.raises(TaskError) as error:
        refuse(Environment(**table), tmp_path, WHERE)
    assert str(error.value) == f"{WHERE}: {what}. The task is left out."


def test_no_gpus_are_no_reason_to_refuse(tmp_path):
    refuse(Environment(gpus=0, os="linux"), tmp_path, WHERE)


def test_tests_for_both_systems_are_tests_for_linux(write):
    refuse(Environment(), write(**{"tests__test.sh": "", "tests__test.bat": ""}), WHERE)


def test_a_folder_with_a_dockerfile_is_built(write):
    folder = write(Dockerfile="FROM x\nWORKDIR /srv\n")
    place, notes = placed(folder, env={"KEY": "value"})
    assert place == HarborContainer(f"context:{folder}", "/srv", {"KEY": "value"})
    assert notes == []


def test_a_named_image_comes_before_the_dockerfile(write):
    place, _ = placed(write(Dockerfile="FROM x\nWORKDIR /srv\n"), docker_image="ready:1")
    assert (place.image, place.home) == ("ready:1", WORKDIR)


def test_the_root_of_an_image_is_no_workspace(write):
    place, _ = placed(write(Dockerfile="FROM x\n"), workdir="/")
    assert place.home == ""


def test_the_tables_working_folder_comes_before_the_dockerfiles(write):
    place, _ = placed(write(Dockerfile="FROM x\nWORKDIR /srv\n"), workdir="/other")
    assert place.home == "/other"


def test_without_an_image_the_task_is_refused(tmp_path):
    with pytest.raises(TaskError) as error:
        placed(tmp_path)
    assert f"there is neither {tmp_path / 'Dockerfile'} nor environment.docker_image" in str(error.value)


def test_variables_of_the_environment_are_this_machines(write, monkeypatch):
    monkeypatch.setenv("HARNESSGYM_TEST_TOKEN", "secret")
    place, _ = placed(
        write(Dockerfile="FROM x\n"), env={"TOKEN": "${HARNESSGYM_TEST_TOKEN}", "MODE": "${UNSET_MODE:-fast}"}
    )
    assert place.env == {"TOKEN": "secret", "MODE": "fast"}


def test_an_unset_variable_is_named_with_its_key(write):
    with pytest.raises(TaskError, match=r"environment\.env\.TOKEN: the environment variable NOT_SET_HERE"):
        placed(write(Dockerfile="FROM x\n"), env={"TOKEN": "${NOT_SET_HERE}"})


COMPOSE = """services:
  main:
    image: from/compose
    working_dir: /compose
    environment: {A: compose, B: compose}
    privileged: true
"""


def test_a_compose_file_gives_image_folder_and_environment(write):
    place, notes = placed(write(**{"docker-compose.yaml": COMPOSE}), env={"B": "table"})
    assert place == HarborContainer("from/compose", "/compose", {"A": "compose", "B": "table"})
    assert notes == ["`privileged` of its compose service has no effect"]


def test_the_table_comes_before_the_compose_file(write):
    place, _ = placed(write(**{"docker-compose.yaml": COMPOSE}), docker_image="from/table", workdir="/table")
    assert (place.image, place.home) == ("from/table", "/table")


def test_a_compose_file_without_an_image_builds_its_own_folder(write):
    folder = write(
        **{"docker-compose.yaml": "services:\n  main: {tty: true}\n", "Dockerfile": "FROM x\nWORKDIR /b\n"}
    )
    place, _ = placed(folder)
    assert (place.image, place.home) == (f"context:{folder}", "/b")


def test_a_compose_file_may_build_the_context_that_harbor_names(write):
    text = "services:\n  main:\n    build: ${CONTEXT_DIR}\n"
    folder = write(**{"docker-compose.yaml": text, "Dockerfile": "FROM x\n"})
    place, _ = placed(folder)
    assert place.image == f"context:{folder}"


def grading(folder, agents=AGENTS, **table):
    return grading_place(VerifierTable(**table), folder, agents, WHERE, Notes())


def test_tests_run_in_the_agents_image_unless_something_else_is_named(tmp_path):
    assert grading(tmp_path) == HarborContainer("agents/image", "/app", {"A": "1", "B": "2"})


def test_the_verifiers_environment_is_added_to_the_agents(tmp_path):
    place = grading(tmp_path, environment={"env": {"B": "tests", "C": "3"}})
    assert place == HarborContainer("agents/image", "/app", {"A": "1", "B": "tests", "C": "3"})


def test_an_image_for_tests_has_its_own_environment_and_the_agents_home(tmp_path):
    place = grading(tmp_path, environment={"docker_image": "tests/image", "workdir": "/elsewhere"})
    assert place == HarborContainer("tests/image", "/app", {})


def test_a_dockerfile_among_the_tests_has_the_tests(write):
    folder = write(tests__Dockerfile="FROM y\n")
    place = grading(folder)
    assert place == HarborContainer(f"context:{folder / 'tests'}", "/app", {}, has_tests=True)


def test_tests_in_an_image_of_their_own_need_a_known_home(tmp_path):
    with pytest.raises(TaskError, match=r"environment\.workdir: tests run in an image of their own"):
        grading(tmp_path, HarborContainer("a", WORKDIR, {}), environment={"docker_image": "tests/image"})


def test_a_verifier_that_needs_a_gpu_is_refused(tmp_path):
    with pytest.raises(TaskError, match=r"environment\.gpus: it wants 1"):
        grading(tmp_path, environment={"gpus": 1})
