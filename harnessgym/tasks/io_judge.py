"""The I/O judge: problems with inputs and outputs, in any language that a short file describes.

    sums/
      language.toml      one language, or languages/*.toml, or `languages` in judge.toml for shipped ones
      judge.toml         optional: the set's name and how output is compared
      problems.jsonl     one problem a line; or problems.toml, .yaml, .json; or problems/, with a file or
                         folder for each problem:
      problems/add/      statement.md, cases/1.in, cases/1.out, solutions/lua.lua, and problem.toml

Every problem in every language is a task. The agent writes one source file, which is compiled and run on each
case in a fresh sandbox. The expected output never enters it. Code is judged only by what it reads and prints,
so one verifier works for all languages. This is the idea of Agnostics (Boruch-Gruszecki et al., 2025,
arXiv:2508.04865).
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import AliasChoices, Field

from harnessgym.config import Config, nearest
from harnessgym.errors import TaskError
from harnessgym.grading.check import read_checks
from harnessgym.grading.matching import Match
from harnessgym.sandbox import Capability
from harnessgym.task import Limits, Setup, Solution, Split, Task
from harnessgym.tasks.format import LoadedTasks, without_doubles
from harnessgym.tasks.language import (
    SUFFIXES,
    ProgrammingLanguage,
    checked,
    read_language,
    read_table,
    read_value,
    shipped,
)
from harnessgym.tasks.native import GRADER, LimitsTable

_ROWS = (".jsonl", *SUFFIXES)


class Case(Config):
    """One run of the program."""

    stdin: str = Field("", validation_alias=AliasChoices("stdin", "input"))
    stdout: str = Field(validation_alias=AliasChoices("stdout", "output"))
    args: tuple[str, ...] = ()


class IoProblem(Config):
    """One problem, independent of the language."""

    id: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        validation_alias=AliasChoices("id", "question_id"),
        coerce_numbers_to_str=True,
    )
    statement: str = Field(min_length=1, validation_alias=AliasChoices("statement", "question_content"))
    cases: tuple[Case, ...] = Field(min_length=1, validation_alias=AliasChoices("cases", "test_cases"))
    split: Split = "train"
    solutions: Mapping[str, str] = Field(default_factory=dict)
    """Language to source text."""
    match: Match | None = None
    """Overrides the set's."""
    tolerance: float | None = Field(None, ge=0)
    timeout_s: float | None = Field(None, gt=0, le=3_600)
    """Overrides the language's."""
    metadata: dict[str, Any] = Field(default_factory=dict)


class JudgeTable(Config):
    """`judge.toml`."""

    name: str = ""
    """Name of the set. If empty, the folder's name."""
    languages: tuple[str, ...] = ()
    """Shipped languages, in addition to those that have a file."""
    toolchains: Literal["machine", "image"] = "machine"
    """machine: use this machine's compilers and interpreters, in sandboxes that show its programs; a missing
    language is left out. image: install each language into a container image, as a cached layer."""
    image: str | None = None
    """Image into which languages are installed; None is the sandbox backend's own."""
    match: Match = "stripped"
    tolerance: float = Field(1e-6, ge=0)
    score: Literal["all", "fraction"] = "all"
    """all: 1 if every case passes, else 0. fraction: the fraction of cases that pass."""
    limits: dict[str, Any] = Field(default_factory=dict)
    """See `harnessgym.task.Limits`."""


@dataclass(frozen=True, slots=True)
class _Set:
    """The data that all tasks of a set share."""

    name: str
    judge: JudgeTable
    limits: Limits
    languages: tuple[ProgrammingLanguage, ...]


class IoJudge:
    """The format of folders with a language and problems."""

    def recognises(self, path: Path) -> bool:
        """Whether a folder has problems, a language or a judge.toml, and no task.toml."""
        if not path.is_dir() or (path / "task.toml").exists():
            return False
        described = _first(path, "judge") or _first(path, "language") or any(_files(path / "languages"))
        return bool(described) and bool(_rows_file(path) or (path / "problems").is_dir())

    def read(self, path: Path) -> LoadedTasks:
        """Reads the tasks by id."""
        notes: list[str] = []
        problems: list[str] = []
        common = _common(path, notes, problems)
        tasks: list[Task] = []
        for where, read in _problems(path):
            try:
                problem = _problem(read(), where, notes)
                tasks += [_task(common, problem, language, where) for language in common.languages]
                notes += _unused(problem, common, where)
            except TaskError as error:
                problems.append(str(error))
        kept, doubles = without_doubles(sorted(tasks, key=_id), path)
        return LoadedTasks(common.name, kept, (*problems, *doubles), tuple(notes))


def _common(path: Path, notes: list[str], problems: list[str]) -> _Set:
    judge_file = _first(path, "judge")
    raw = read_table(judge_file) if judge_file is not None else {}
    notes += _strange(raw, JudgeTable, str(judge_file))
    judge: JudgeTable = checked(
        JudgeTable, {key: raw[key] for key in raw.keys() & JudgeTable.model_fields.keys()}, str(judge_file)
    )
    limits = checked(LimitsTable, {"wall_s": 600.0, **judge.limits}, f"{judge_file}: limits")
    languages: dict[str, ProgrammingLanguage] = {}
    for read in _languages(path, judge, notes):
        try:
            language = read()
            if language.language in languages:
                raise TaskError(f"{path}: the language {language.language!r} is described twice. Remove one.")
            if judge.toolchains == "machine" and (missing := language.missing()):
                raise TaskError(
                    f'{path}: {missing}. Its tasks are left out. Or write `toolchains = "image"` in '
                    "judge.toml."
                )
            languages[language.language] = language
        except TaskError as error:
            problems.append(str(error))
    return _Set(
        judge.name or path.resolve().name, judge, Limits(**limits.model_dump()), tuple(languages.values())
    )


def _languages(path: Path, judge: JudgeTable, notes: list[str]) -> Iterator[Any]:
    """Functions that each return one language or raise TaskError."""
    # Functions and not values: the caller catches the error of each, so that one bad file leaves the others.
    own = _first(path, "language")
    for file in ([own] if own is not None else []) + _files(path / "languages"):

        def read(file: Path = file) -> ProgrammingLanguage:
            language, language_notes = read_language(file)
            notes.extend(language_notes)
            return language

        yield read
    for name in judge.languages:
        yield lambda name=name: shipped(name)


def _problems(path: Path) -> Iterator[tuple[str, Any]]:
    """The place of each problem, and a function that reads it or raises TaskError."""
    rows = _rows_file(path)
    if rows is not None:
        yield from _rows(rows)
    folder = path / "problems"
    for entry in sorted(folder.iterdir()) if folder.is_dir() else ():
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            yield str(entry), lambda entry=entry: _of_folder(entry)
        elif entry.suffix in SUFFIXES:
            yield str(entry), lambda entry=entry: {"id": entry.stem, **read_table(entry)}
        elif entry.suffix == ".jsonl":
            yield from _rows(entry)


def _rows(path: Path) -> Iterator[tuple[str, Any]]:
    if path.suffix == ".jsonl":
        try:
            lines = path.read_text(encoding="utf-8").split("\n")
        except (OSError, ValueError) as error:
            why = f"{path} cannot be read: {error}."
            yield str(path), lambda: _refuse(why)
            return
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield f"{path}:{number}", lambda line=line, number=number: _row(line, f"{path}:{number}")
        return
    try:
        value = read_value(path)
    except TaskError as error:
        why = str(error)
        yield str(path), lambda: _refuse(why)
        return
    rows = value.get("problems") if isinstance(value, dict) else value
    if not isinstance(rows, list):
        yield str(path), lambda: _refuse(f"{path} must hold a list `problems`.")
        return
    for number, row in enumerate(rows):
        at = f"{path}: problems[{number}]"
        yield (
            at,
            lambda row=row, at=at: (
                row if isinstance(row, dict) else _refuse(f"{at} must be a table, not {row!r}.")
            ),
        )


def _refuse(why: str) -> Any:
    raise TaskError(why)


def _row(line: str, where: str) -> Any:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TaskError(f"{where} is no JSON: {error}.") from error
    return row if isinstance(row, dict) else _refuse(f"{where} must be an object, not {row!r}.")


def _of_folder(folder: Path) -> dict[str, Any]:
    """The problem in a folder: its files, and its problem.toml."""
    table = _first(folder, "problem")
    problem: dict[str, Any] = {"id": folder.name, **(read_table(table) if table is not None else {})}
    statement = folder / "statement.md"
    if statement.is_file():
        problem.setdefault("statement", _text(statement))
    inputs = sorted((folder / "cases").glob("*.in"), key=_by_number)
    if inputs:
        problem["cases"] = [
            *problem.get("cases", ()),
            *({"stdin": _text(each), "stdout": _text(each.with_suffix(".out"))} for each in inputs),
        ]
    solutions = sorted(path for path in (folder / "solutions").glob("*") if path.is_file())
    if solutions:
        problem["solutions"] = {
            **{path.stem: _text(path) for path in solutions},
            **problem.get("solutions", {}),
        }
    return problem


def _by_number(path: Path) -> tuple[int, str]:
    # By length first, so that 10.in comes after 9.in.
    return (len(path.stem), path.stem)


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except (OSError, ValueError) as error:
        raise TaskError(f"{path} cannot be read: {error}.") from error


def _problem(raw: Mapping[str, Any], where: str, notes: list[str]) -> IoProblem:
    notes += _strange(raw, IoProblem, where)
    known = _accepted(IoProblem)
    own = {key: value for key, value in raw.items() if key in known}
    rest = {key: value for key, value in raw.items() if key not in known}
    problem: IoProblem = checked(IoProblem, own, where)
    return problem.model_copy(update={"metadata": {**rest, **problem.metadata}})


def _strange(raw: Mapping[str, Any], model: type[Config], where: str) -> list[str]:
    known = _accepted(model)
    return [
        f"{where}: the key {key!r} has no effect. {nearest(key, sorted(known))}"
        for key in raw
        if key not in known
    ]


def _accepted(model: type[Config]) -> set[str]:
    """The keys that a model accepts, aliases included."""
    names: set[str] = set()
    for name, field in model.model_fields.items():
        alias = field.validation_alias
        names |= {str(choice) for choice in alias.choices} if isinstance(alias, AliasChoices) else {name}
    return names


def _unused(problem: IoProblem, common: _Set, where: str) -> list[str]:
    known = {language.language for language in common.languages}
    return [
        f"{where}: a solution in {name!r} is not used: no such language."
        for name in sorted(problem.solutions.keys() - known)
    ]


def _task(common: _Set, problem: IoProblem, language: ProgrammingLanguage, where: str) -> Task:
    judge = common.judge
    check = _check(judge, problem, language)
    read_checks([check], (), where)
    in_image = judge.toolchains == "image"
    solution = problem.solutions.get(language.language)
    metadata = {"problem": problem.id, "language": language.language, "tests": (check,), "test_files": {}}
    return Task(
        id=f"{common.name}/{problem.id}.{language.language}",
        instruction=_instruction(problem, language, check),
        split=problem.split,
        image=judge.image if in_image else None,
        limits=common.limits,
        needs=frozenset({str(Capability.IMAGE)} if in_image else ()),
        setup=Setup((_explained(language, in_image=in_image),)),
        artifacts=(language.source,),
        grader=GRADER,
        solution=None if solution is None else Solution({language.source: solution}),
        metadata={
            **problem.metadata,
            **metadata,
            "score": "weighted" if judge.score == "fraction" else "all",
        },
        install=language.install if in_image else (),
    )


def _check(judge: JudgeTable, problem: IoProblem, language: ProgrammingLanguage) -> dict[str, Any]:
    return {
        "kind": "io",
        "probe": language.probing,
        "compile": language.command(language.compile),
        "compile_timeout_s": language.compile_timeout_s,
        "command": language.command(language.run),
        "timeout_s": problem.timeout_s or language.timeout_s,
        "cases": tuple(
            {"stdin": case.stdin, "stdout": case.stdout, "args": case.args} for case in problem.cases
        ),
        "match": problem.match or judge.match,
        "tolerance": judge.tolerance if problem.tolerance is None else problem.tolerance,
        "partial": judge.score == "fraction",
    }


def _explained(language: ProgrammingLanguage, *, in_image: bool) -> tuple[str, ...]:
    """The probe, with a message that says how to install what is missing."""
    script = 'why=$1; shift; "$@" >/dev/null </dev/null || { printf "%s\\n" "$why" >&2; exit 1; }'
    why = f"{language.language} cannot be used in this sandbox. {language.remedy}"
    if not in_image:
        why += '. Or write `toolchains = "image"` in judge.toml, and use docker.'
    return ("sh", "-c", script, "sh", why, *language.probing)


def _instruction(problem: IoProblem, language: ProgrammingLanguage, check: Mapping[str, Any]) -> str:
    commands = [" ".join(words) for words in (check["compile"], check["command"]) if words]
    lines = [
        problem.statement.strip(),
        "",
        f"Write the program in the file {language.source}, in the current folder. {language.prompt}".rstrip(),
        (
            "It reads standard input and prints to standard output. It is judged on inputs that are not "
            "shown, by"
        ),
        "",
        *(f"    {command}" for command in commands),
        "",
        f"with {check['timeout_s']:g} seconds for each input. Nothing but this one file is taken.",
    ]
    return "\n".join(lines)


def _first(folder: Path, stem: str) -> Path | None:
    return next((path for suffix in SUFFIXES if (path := folder / f"{stem}{suffix}").is_file()), None)


def _rows_file(folder: Path) -> Path | None:
    return next((path for suffix in _ROWS if (path := folder / f"problems{suffix}").is_file()), None)


def _files(folder: Path) -> list[Path]:
    """The TOML, YAML and JSON files in a folder, sorted."""
    return sorted(path for path in folder.glob("*") if path.suffix in SUFFIXES and path.is_file())


def _id(task: Task) -> str:
    return task.id
