"""Tasks as folders: a TOML file, the agent's files, the tests, and a solution.

    fix-the-median/
      task.toml         see below
      instruction.md    the instruction, unless task.toml has it
      files/            the files of the workspace
      tests/            the files of the checks; the agent never sees them
      gold/, gold.sh    the solution: files to copy, then a script to run in the workspace

```toml
split = "test"
[limits]
wall_s = 120
[[tests]]
kind = "io"
command = ["python3", "median.py"]
cases = [{ stdin = "3 1 2", stdout = "2" }]
```

A folder of such folders is a task set. A `set.toml` in it may set a name, and defaults for all tasks. Texts
are UTF-8. Executable files stay executable.

A task's repository is a `git fast-import` stream, cut at the base commit: it is imported on this machine, the
future is removed, and the rest is exported as a stream again. So the text that enters the sandbox has nothing
else. Commit ids do not change.
"""

import os
import subprocess
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path, PurePosixPath
from typing import Any, Literal, get_type_hints

from pydantic import Field, create_model, field_validator

from harnessgym.config import Config, validate
from harnessgym.errors import CapabilityError, ConfigError, TaskError
from harnessgym.grading.check import read_checks
from harnessgym.grading.git_history import BRANCH, scrub
from harnessgym.grading.reward_range import reward_range
from harnessgym.sandbox import needs
from harnessgym.task import Limits, Setup, Solution, Split, Task
from harnessgym.tasks.format import LoadedTasks, ReadTasks, without_doubles

STREAM = ".history.stream"
"""Path of the stream in the workspace, until the set-up imports it."""
SETUP = (
    f"git init -q -b {BRANCH} . && git fast-import --quiet <{STREAM} && git reset -q --mixed {BRANCH} && "
    f"rm {STREAM} && git checkout-index -a -q && git config user.name agent && git config user.email "
    "agent@localhost && rm -rf .git/logs"
)
"""The command that imports it. The task's other files stay as they are."""


def past_of(stream: Path, base: str) -> tuple[str, str]:
    """The stream of everything up to `base`, and that commit's id. Raises TaskError if that fails."""
    with tempfile.TemporaryDirectory(prefix="harnessgym-history-") as temporary:
        folder = Path(temporary)
        _git(folder, "init", "-q", "-b", BRANCH, ".")
        _git(folder, "fast-import", "--quiet", stdin=_read(stream))
        commit = scrub(folder, base)
        past = _git(folder, "fast-export", "--reencode=no", "--signed-tags=strip", BRANCH)
    try:
        return past.decode(), commit
    except UnicodeDecodeError as error:
        raise TaskError(
            f"{stream} holds files that are not UTF-8 text up to {base!r}. Make them in `setup.run`."
        ) from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise TaskError(
            f"{path}: repo.history cannot be read: {error.strerror}. Write it with `git fast-export`."
        ) from error


def _git(folder: Path, *words: str, stdin: bytes = b"") -> bytes:
    # Settings of this machine's user could change the exported text, and with it the task's digest.
    env = {
        "PATH": os.environ["PATH"],
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "LC_ALL": "C",
    }
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words], input=stdin, env=env, capture_output=True, check=False
        )
    except FileNotFoundError as error:
        raise TaskError(
            "git is not installed on this machine, and a task has a repository. Install it."
        ) from error
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        # After the error, `fast-import` names a crash report, which is gone with the temporary folder.
        reason = [line for line in lines if line.startswith("fatal:")] or lines
        raise TaskError(
            f"`git {' '.join(words)}` failed for a task's history: {''.join(reason[-1:]) or done.returncode}."
        )
    return done.stdout


GRADER = "harnessgym.grading.checklist:verifier"
_MAX_BYTES = 16 << 20
"""Most bytes of all files in one folder of a task."""
_KNOWN = frozenset(
    {"task.toml", "instruction.md", "files", "tests", "gold", "gold.sh", "repo", "README.md", "baseline.json"}
)

_types = get_type_hints(Limits)
_limits: dict[str, Any] = {
    each.name: (_types[each.name], Field(each.default, gt=0)) for each in fields(Limits)
}
LimitsTable: Any = create_model("LimitsTable", __base__=Config, **_limits)
"""`[limits]`: the fields of `harnessgym.task.Limits`, all positive."""

Words = tuple[tuple[str, ...], ...]


class SetupTable(Config):
    """`[setup]`: see `harnessgym.task.Setup`. A string is a command for the shell."""

    run: Words = ()
    hosts: tuple[str, ...] = ()
    timeout_s: float = Field(300.0, gt=0)

    @field_validator("run", mode="before")
    @classmethod
    def _words(cls, value: Any) -> Any:
        return (
            [["sh", "-c", line] if isinstance(line, str) else line for line in value]
            if isinstance(value, list)
            else value
        )


class RepoTable(Config):
    """`[repo]`: the workspace is a git repository whose history ends at a commit."""

    history: str = "repo/history.stream"
    """File of the task's folder with the output of `git fast-export`."""
    base: str = "main"
    """Commit, branch or tag that the agent starts from. Later commits never enter a sandbox."""


class TaskTable(Config):
    """`task.toml`."""

    id: str = Field("", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$|^$")
    """Id of the task. If empty, the folder's name."""
    instruction: str = ""
    split: Split = "train"
    seed: int = 0
    image: str | None = None
    limits: Any = Field(default_factory=dict)
    """See `harnessgym.task.Limits`."""
    needs: frozenset[str] = frozenset()
    setup: SetupTable = SetupTable()
    artifacts: tuple[str, ...] = Field((".",), min_length=1)
    verifier: Literal["separate", "shared"] = "separate"
    score: Literal["all", "weighted"] = "all"
    """all: 1 if every check passed, else 0. weighted: the weight of the passed checks over that of all."""
    repo: RepoTable | None = None
    tests: tuple[dict[str, Any], ...] = ()
    """Checks: see `harnessgym/grading/checks`."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    """Any other data to keep."""

    @field_validator("artifacts")
    @classmethod
    def _inside(cls, paths: tuple[str, ...]) -> tuple[str, ...]:
        for path in paths:
            if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
                raise ValueError(f"{path!r} must be a relative path inside the workspace")
        return paths


class SetTable(Config):
    """`set.toml`."""

    name: str = ""
    """Name of the set. If empty, the folder's name."""
    defaults: dict[str, Any] = Field(default_factory=dict)
    """Keys of `task.toml` for tasks that do not set them; tables are merged."""


class Native:
    """The format: a folder of task folders, or one task folder."""

    def recognises(self, path: Path) -> bool:
        """Whether a folder has a `task.toml`, or folders with one."""
        return path.is_dir() and ((path / "task.toml").is_file() or any(path.glob("*/task.toml")))

    def read(self, path: Path) -> LoadedTasks:
        """Reads the tasks by id. A folder with a `task.toml` is a set of one."""
        if not path.is_dir():
            raise TaskError(f"There is no task folder {path}.")
        table: SetTable = _table(SetTable, path / "set.toml", {}, needed=False)
        name = table.name or path.resolve().name
        alone = (path / "task.toml").is_file()
        folders = [path] if alone else sorted(task_file.parent for task_file in path.glob("*/task.toml"))
        tasks: list[Task] = []
        problems = []
        for folder in folders:
            try:
                tasks.append(read_task(folder, table.defaults, "" if alone else name))
            except (TaskError, CapabilityError) as error:
                problems.append(str(error))
        kept, doubles = without_doubles(sorted(tasks, key=_id), path)
        return LoadedTasks(name, kept, (*problems, *doubles))


class NativeTasks(ReadTasks):
    """The tasks of a folder."""

    def __init__(self, folder: Path | str) -> None:
        super().__init__(Native(), Path(folder))


def read_task(folder: Path, defaults: Mapping[str, Any] | None = None, prefix: str = "") -> Task:
    """Reads the task of one folder. Raises TaskError with the file, the key, and what to do."""
    where = folder / "task.toml"
    table: TaskTable = _table(TaskTable, where, defaults or {})
    limits = _checked(LimitsTable, table.limits, f"{where}: limits")
    unknown = sorted(
        path.name for path in folder.iterdir() if path.name not in _KNOWN and not path.name.startswith(".")
    )
    if unknown:
        raise TaskError(
            f"{folder} holds {', '.join(unknown)}, which no task has. Known: {', '.join(sorted(_KNOWN))}."
        )
    files, executable = _texts(folder / "files")
    tests, _ = _texts(folder / "tests")
    read_checks(table.tests, tests, str(where))
    reward_range(table.metadata, str(where))
    setup = [*_executable(executable), *table.setup.run]
    metadata: dict[str, Any] = {
        **table.metadata,
        "tests": table.tests,
        "test_files": tests,
        "score": table.score,
    }
    # The repository is imported first: later set-up commands may use git.
    if table.repo is not None:
        files[STREAM], metadata["base"] = past_of(folder / table.repo.history, table.repo.base)
        setup.insert(0, ("sh", "-c", SETUP))
    task = Task(
        id=f"{prefix}/{table.id or folder.resolve().name}".lstrip("/"),
        instruction=_instruction(table, folder),
        split=table.split,
        seed=table.seed,
        files=files,
        image=table.image,
        limits=Limits(**limits.model_dump()),
        needs=table.needs,
        setup=Setup(tuple(setup), table.setup.hosts, table.setup.timeout_s),
        artifacts=table.artifacts,
        grader=GRADER,
        verifier=table.verifier,
        solution=_solution(folder),
        metadata=metadata,
    )
    needs(task)
    return task


def _id(task: Task) -> str:
    return task.id


def _table(model: type[Any], path: Path, defaults: Mapping[str, Any], *, needed: bool = True) -> Any:
    if not needed and not path.exists():
        return model()
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TaskError(f"There is no {path}. A task is a folder with a task.toml.") from None
    except ValueError as error:
        raise TaskError(f"{path} cannot be read: {error}.") from None
    return _checked(model, _joined(defaults, raw), str(path))


def _checked(model: type[Any], raw: Any, where: str) -> Any:
    if not isinstance(raw, dict):
        raise TaskError(f"{where} must be a table, not {raw!r}.")
    try:
        return validate(model, raw, where)
    except ConfigError as error:
        raise TaskError(str(error)) from error


def _joined(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    both = {
        key: _joined(below[key], above[key])
        for key in below.keys() & above.keys()
        if isinstance(below[key], dict) and isinstance(above[key], dict)
    }
    return {**below, **above, **both}


def _instruction(table: TaskTable, folder: Path) -> str:
    path = folder / "instruction.md"
    if bool(table.instruction) == path.is_file():
        how = (
            "twice: in task.toml and in instruction.md. Remove one"
            if table.instruction
            else "nowhere. Write instruction.md"
        )
        raise TaskError(f"{folder}: the instruction is given {how}.")
    text = table.instruction or path.read_text(encoding="utf-8")
    if not text.strip():
        raise TaskError(f"{path} is empty. Write what the agent is to do.")
    return text.strip()


def _solution(folder: Path) -> Solution | None:
    files, executable = _texts(folder / "gold")
    run: list[tuple[str, ...]] = list(_executable(executable))
    script = folder / "gold.sh"
    if script.is_file():
        run.append(("sh", "-e", "-c", script.read_text(encoding="utf-8")))
    return Solution(files, tuple(run)) if files or run else None


def _executable(paths: Sequence[str]) -> Iterator[tuple[str, ...]]:
    if paths:
        yield ("chmod", "+x", "--", *paths)


def _texts(folder: Path) -> tuple[dict[str, str], list[str]]:
    """All files of a folder as relative path to text, and the paths of the executable ones."""
    texts: dict[str, str] = {}
    executable = []
    size = 0
    for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
        name = path.relative_to(folder).as_posix()
        if path.is_symlink() or not (path.is_dir() or path.is_file()):
            raise TaskError(
                f"{path} is a link or a special file. A task holds regular files; make the rest in "
                "`setup.run`."
            )
        if path.is_dir() or "__pycache__" in path.parts:
            continue
        data = path.read_bytes()
        size += len(data)
        if size > _MAX_BYTES:
            raise TaskError(
                f"{folder} holds more than {_MAX_BYTES >> 20} MiB. Make large files in `setup.run`."
            )
        try:
            texts[name] = data.decode()
        except UnicodeDecodeError as error:
            raise TaskError(
                f"{path} is not UTF-8 text (byte {error.start}). Make binary files in `setup.run`."
            ) from error
        if path.stat().st_mode & 0o100:
            executable.append(name)
    return texts, executable
