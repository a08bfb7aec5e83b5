"""Compose files of one service are read; what would need more than one container is refused, by file and
key.
"""

import pytest

from harnessgym.errors import TaskError
from harnessgym.tasks.compose import only_service


@pytest.fixture
def read(tmp_path):
    def go(text, name="main", **known):
        (tmp_path / "docker-compose.yaml").write_text(text)
        return only_service(tmp_path / "docker-compose.yaml", name, known)

    return go


def test_image_folder_and_environment_are_read(read, monkeypatch):
    monkeypatch.setenv("OF_THIS_MACHINE", "here")
    service = read(
        "services:\n  main:\n    image: some/image:1\n    working_dir: /work\n"
        "    environment: {A: 1, B: true, OF_THIS_MACHINE: null, C: '${NOT_SET:-else}$$'}\n"
    )
    assert (service.image, service.workdir, service.without) == ("some/image:1", "/work", ())
    assert service.env == {"A": "1", "B": "true", "OF_THIS_MACHINE": "here", "C": "else$"}


def test_a_build_comes_before_an_image_and_variables_are_filled_in(read, tmp_path):
    (tmp_path / "Dockerfile").write_text("FROM x\n")
    service = read(
        "services:\n  main:\n    build: ${HERE}\n    image: ${NAME}\n    environment: ['A=$B', C=d]\n",
        HERE=".",
        B="b",
    )
    assert service.image == f"context:{tmp_path}"
    assert service.env == {"A": "b", "C": "d"}


def test_what_is_not_followed_is_named(read):
    service = read(
        "services:\n  main:\n    image: x\n    privileged: true\n    volumes: ['${LOGS}:/logs']\n    "
        "command: ./serve -p 80\n"
    )
    assert service.without == (
        "`privileged` of its compose service",
        "the command of its compose service, which is not started",
    )


@pytest.mark.parametrize(
    "command", ["sleep infinity", '["sh", "-c", "sleep infinity"]', "tail -f /dev/null", "bash"]
)
def test_commands_that_only_wait_are_nothing_to_name(read, command):
    assert read(f"services:\n  main:\n    image: x\n    command: {command}\n").without == ()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("services:\n  main: {image: x}\n  db: {image: y}\n", "db"),
        ("services:\n  web: {image: x}\n", "no service 'main'"),
        ("services: [main]\n", "services must be a mapping"),
        ("a: [", "no YAML"),
        ("services:\n  main: {build: {context: ., target: test}}\n", "target"),
        ("services:\n  main: {build: {context: ., dockerfile: other}}\n", "dockerfile: other"),
        ("services:\n  main: {build: ./nowhere}\n", "Dockerfile"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_file(read, text, named):
    with pytest.raises(TaskError, match=r"docker-compose\.yaml") as error:
        read(text)
    assert named in str(error.value)


@pytest.mark.parametrize(
    ("value", "filled"),
    [
        ("$EMPTY", ""),
        ("$SET-x", "1-x"),
        ("${SET}x", "1x"),
        ("${EMPTY:-other}", "other"),
        ("${EMPTY-other}", ""),
        ("${UNSET-other}", "other"),
        ("${UNSET:-other}", "other"),
        ("${SET:-other}", "1"),
        ("${UNSET:-}", ""),
        ("${UNSET:?must be set}", ""),
        ("${SET?must be set}", "1"),
        ("$$SET", "$SET"),
        ("$9", "$9"),
    ],
)
def test_variables_are_filled_in_as_compose_does(read, monkeypatch, value, filled):
    monkeypatch.delenv("UNSET", raising=False)
    text = f"services:\n  main:\n    image: x\n    environment: {{A: '{value}'}}\n"
    assert read(text, SET="1", EMPTY="").env == {"A": filled}


def test_variables_of_a_list_without_a_value_are_this_machines(read, monkeypatch):
    monkeypatch.setenv("OF_THIS_MACHINE", "here")
    monkeypatch.delenv("NOWHERE", raising=False)
    text = "services:\n  main:\n    image: x\n    environment: [OF_THIS_MACHINE, NOWHERE, 'A=b=c', 'D=']\n"
    assert read(text).env == {"OF_THIS_MACHINE": "here", "NOWHERE": "", "A": "b=c", "D": ""}


def test_a_service_may_say_nothing_of_its_image(read):
    service = read("services:\n  main: {tty: true}\n")
    assert (service.image, service.workdir, service.env, service.without) == (None, None, {}, ())


def test_only_volumes_of_logs_are_nothing_to_name(read):
    text = "services:\n  main:\n    image: x\n    volumes: ['./data:/data', '${LOGS}:/logs']\n"
    assert read(text).without == ("`volumes` of its compose service",)


def test_keys_without_a_value_are_nothing_to_name(read):
    assert read("services:\n  main:\n    image: x\n    ports: []\n    privileged: false\n").without == ()
