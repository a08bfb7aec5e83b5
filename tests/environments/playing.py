"""Task sets that tests play, and short ways to act."""

import json

import gymnasium

from harnessgym.task import Grade, Limits, Setup, Solution, Task

ID = "environments:harnessgym/SWE-v0"
CHECK = {"kind": "io", "command": ["cat", "answer.txt"], "cases": [{"stdout": "42\n"}]}
LIMITS = Limits(wall_s=60.0, memory_mb=512, disk_mb=64)


def task(name, **fields):
    given = {
        "instruction": f"Write 42 into answer.txt ({name}).",
        "files": {"readme.txt": "hello\n"},
        "limits": LIMITS,
        "grader": "harnessgym.grading.checklist:verifier",
        "solution": Solution({"answer.txt": "42\n"}),
        "metadata": {"tests": [CHECK], "test_files": {}, "score": "all"},
    }
    return Task(id=name, **given | fields)


class Few:
    """Three tasks: plain, with a set-up, and with many files."""

    name = "few"

    def tasks(self, split):
        many = {f"src/d{n % 7}/f{n}.py": f"x = {n}\n" for n in range(40)}
        return [
            task("few/plain"),
            task("few/setup", setup=Setup((("sh", "-c", "echo made > made.txt; chmod +x readme.txt"),))),
            task("few/many", files=many),
        ]


class Outside(Few):
    """One more, whose set-up writes beside the workspace."""

    def tasks(self, split):
        return [
            *super().tasks(split),
            task("few/outside", setup=Setup((("sh", "-c", "echo outside > /tmp/made.txt"),))),
        ]


class Broken:
    """Tasks that cannot begin, or cannot be judged."""

    name = "broken"

    def tasks(self, split):
        return [
            task("broken/setup", setup=Setup((("false",),))),
            task("broken/grader", grader="tests.environments.playing:raises"),
            task("broken/nan", grader="tests.environments.playing:nonsense"),
            task("broken/image", image="somewhere/else:1"),
        ]


def raises(task, workspace):
    """A grader with a bug."""
    raise RuntimeError("the grader's own bug")


def nonsense(task, workspace):
    """A grader whose reward is none."""
    return Grade({"reward": float("nan")})


def make(tasks="Few", sandbox="bubblewrap", **options):
    return gymnasium.make(ID, tasks=f"tests.environments.playing:{tasks}", sandbox=sandbox, **options)


def run(command):
    return json.dumps({"run": command})


def write(path, text):
    return json.dumps({"write": path, "text": text})


def edit(path, old, new):
    return json.dumps({"edit": path, "old": old, "new": new})


SUBMIT = json.dumps({"submit": True})
SOLVE = write("answer.txt", "42\n")


class Empty:
    """None."""

    name = "empty"

    def tasks(self, split):
        return []
