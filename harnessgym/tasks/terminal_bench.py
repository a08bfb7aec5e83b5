"""Classic terminal-bench tasks as they are: a folder with a `task.yaml`, or a folder of such folders.

    hello-world/
      task.yaml                 instruction, time limits, the parser for the tests' output
      Dockerfile                or docker-compose.yaml with the one service `client`
      run-tests.sh, tests/      copied into /tests after the agent has ended
      solution.sh               or solution.yaml: commands to type

Tests run in a fresh container with the files that the agent left in its working folder.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, field_validator

from harnessgym.config import validate
from harnessgym.errors import ConfigError, TaskError
from harnessgym.file_bundle import Bundle, bundle, bundled
from harnessgym.grading.verifiers.terminal_bench import KEY, PARSERS
from harnessgym.grading.verifiers.test_script import VerifierScript
from harnessgym.grading.verifiers.tools import install, tools_of
from harnessgym.sandbox import CONTEXT
from harnessgym.task import GradingImage, Limits, Setup, Solution, Task
from harnessgym.tasks.compose import Service, only_service
from harnessgym.tasks.format import LoadedTasks, read_folders
from harnessgym.tasks.harbor_place import WORKDIR, workdir_of
from harnessgym.tasks.harbor_scripts import solved_by
from harnessgym.tasks.harbor_table import Table, unknown
from harnessgym.tasks.notes import Notes

GRADER = "harnessgym.grading.verifiers.terminal_bench:verifier"
_SCRIPT = "run-tests.sh"
_VARIABLES = {
    "T_BENCH_TASK_DOCKER_CLIENT_IMAGE_NAME": "",
    "T_BENCH_TASK_DOCKER_CLIENT_CONTAINER_NAME": "",
    "T_BENCH_TASK_DOCKER_NAME_PREFIX": "",
    "T_BENCH_TASK_LOGS_PATH": "",
    "T_BENCH_CONTAINER_LOGS_PATH": "/logs",
    "T_BENCH_TASK_AGENT_LOGS_PATH": "",
    "T_BENCH_CONTAINER_AGENT_LOGS_PATH": "/agent-logs",
    "T_BENCH_TEST_DIR": "/tests",
}


class TaskYaml(Table):
    """`task.yaml`."""

    instruction: str = Field(min_length=1)
    author_name: str = "unknown"
    author_email: str = "unknown"
    difficulty: Literal["easy", "medium", "hard", "unknown"] = "unknown"
    category: str = "software_engineering"
    tags: tuple[str, ...] = ()
    parser_name: str = "pytest"
    max_agent_timeout_sec: float = Field(360.0, gt=0)
    max_test_timeout_sec: float = Field(60.0, gt=0)
    run_tests_in_same_shell: bool = False
    disable_asciinema: bool = False
    estimated_duration_sec: float | None = None
    expert_time_estimate_min: float | None = None
    junior_time_estimate_min: float | None = None

    @field_validator("parser_name")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in PARSERS:
            raise ValueError(
                f"what {name!r} would read cannot be read here (known: {', '.join(PARSERS)}); the task is "
                "left out"
            )
        return name

    @field_validator("run_tests_in_same_shell")
    @classmethod
    def _apart(cls, same: bool) -> bool:
        if same:
            raise ValueError("tests are never run in the agent's shell; the task is left out")
        return same


class TerminalBench:
    """The format of classic terminal-bench tasks."""

    def recognises(self, path: Path) -> bool:
        """Whether a folder has terminal-bench's layout, or contains such folders."""
        return path.is_dir() and (_is_task(path) or any(_is_task(child) for child in path.iterdir()))

    def read(self, path: Path) -> LoadedTasks:
        """Reads the tasks by id, each from one folder."""
        return read_folders(path, "task.yaml", read_task)


def read_task(folder: Path, prefix: str, notes: Notes) -> Task:
    """Reads the task of one folder. Raises TaskError with the file, the key, and what to do."""
    where = folder / "task.yaml"
    table = _table(where)
    service = _service(folder, notes)
    for key, _ in unknown(table):
        notes.say(f"task.yaml: {key} is not known; it is kept in the metadata and has no effect")
    notes.say(
        "the agent reaches nothing but the model; tests run in a fresh container that holds its working "
        "folder"
    )
    assert service.image is not None
    tests = _tests(folder)
    test = VerifierScript(
        script=_SCRIPT,
        rest=tests.rest,
        executable=tests.executable,
        env={"TEST_DIR": "/tests", **service.env},
        timeout_s=table.max_test_timeout_sec,
    )
    return Task(
        id=f"{prefix}/{folder.resolve().name}".lstrip("/"),
        instruction=table.instruction.strip(),
        image=service.image,
        home="" if service.workdir == "/" else service.workdir or WORKDIR,
        folders=("/agent-logs", "/logs", "/solution", "/tests"),
        env=service.env,
        limits=Limits(wall_s=table.max_agent_timeout_sec),
        setup=Setup(),
        grader=GRADER,
        solution=_solution(folder),
        grading=GradingImage(install=install(tools_of([tests.texts]))),
        metadata={
            KEY: test.model_dump(mode="json"),
            "test_files": dict(tests.texts),
            "parser_name": table.parser_name,
            "yaml": table.model_dump(mode="json", exclude={"instruction"}, exclude_unset=True),
        },
    )


def _is_task(folder: Path) -> bool:
    """Whether a folder is one task. SWE-bench repositories have a `task.yaml` too, but no test script."""
    return (folder / "task.yaml").is_file() and (folder / _SCRIPT).is_file()


def _table(where: Path) -> TaskYaml:
    try:
        raw: Any = yaml.safe_load(where.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise TaskError(f"{where} cannot be read: {str(error)[:300]}.") from error
    if not isinstance(raw, dict):
        raise TaskError(f"{where} must be a mapping with an `instruction`, not {str(raw)[:80]!r}.")
    try:
        return validate(TaskYaml, {str(key): value for key, value in raw.items()}, str(where))
    except ConfigError as error:
        raise TaskError(str(error)) from error


def _service(folder: Path, notes: Notes) -> Service:
    """The container, from the compose file or from the Dockerfile."""
    compose = folder / "docker-compose.yaml"
    if compose.is_file():
        service = only_service(compose, "client", _VARIABLES)
        for what in service.without:
            notes.say(f"{what} has no effect")
    else:
        service = Service(f"{CONTEXT}{folder.resolve()}" if (folder / "Dockerfile").is_file() else None)
    if not service.image:
        raise TaskError(
            f"{folder}: neither docker-compose.yaml nor a Dockerfile says what image the task has. Add one."
        )
    if service.workdir or not service.image.startswith(CONTEXT):
        return service
    return Service(
        service.image,
        workdir_of(Path(service.image.removeprefix(CONTEXT)) / "Dockerfile"),
        service.env,
        service.without,
    )


def _tests(folder: Path) -> Bundle:
    """The test script and the files of `tests/`, in one folder."""
    inside = bundle(folder / "tests")
    script = folder / _SCRIPT
    if not script.is_file():
        raise TaskError(f"{script} is not there. A terminal-bench task is graded by it.")
    text = script.read_text(encoding="utf-8", errors="replace")
    return replace(inside, texts={**inside.texts, _SCRIPT: text}, executable=(*inside.executable, _SCRIPT))


def _solution(folder: Path) -> Solution | None:
    """`solution.sh`, or the lines of `solution.yaml` as one script."""
    if (folder / "solution.sh").is_file():
        script = (folder / "solution.sh").read_bytes()
    elif (folder / "solution.yaml").is_file():
        script = _typed(folder / "solution.yaml").encode()
    else:
        return None
    return solved_by(bundled({"solution.sh": script}), "solution.sh", {})


def _typed(path: Path) -> str:
    """A script of the commands, one a line. Raises TaskError for entries without a command."""
    try:
        commands: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise TaskError(f"{path} is no YAML: {str(error)[:300]}.") from error
    lines = [each.get("command") if isinstance(each, Mapping) else None for each in commands or ()]
    if not lines or not all(isinstance(line, str) for line in lines):
        raise TaskError(f"{path} must be a list of mappings with a `command` each.")
    return "#!/bin/bash\n" + "".join(f"{line}\n" for line in lines)
