"""Tasks of several steps for the harness that obeys: behind `---`, an instruction is Python, and what it
says is done.
"""

import json

from harnessgym.task import Grade, Limits, Setup, Solution, Task, TaskStep

HERE = "tests.harnessgym.rollout.stepped"


def rewarded(name, **rewards):
    """Python that leaves rewards for the step of that name."""
    return f"open('{name}.json', 'w').write('''{json.dumps(rewards)}''')"


def step(name, code="", **fields):
    """A step whose solution is worth 1."""
    solution = Solution({f"{name}.json": '{"reward": 1.0}'})
    return TaskStep(
        name, f"Do {name}.\n---\n{code}", **{"solution": solution, "metadata": {"name": name}, **fields}
    )


def grade(task, workspace):
    """What was left for the step; 0 if nothing was."""
    left = workspace / f"{task.metadata['name']}.json"
    said = json.loads(left.read_text()) if left.is_file() else {"reward": 0.0}
    asked = workspace / "instruction.txt"
    evidence = {
        "asked": asked.read_text().partition("\n---")[0] if asked.is_file() else "",
        "common": task.metadata["common"],
    }
    return Grade(
        {key: value for key, value in said.items() if key != "tampered"}, said.get("tampered"), evidence
    )


class Stepped:
    """One task, as often as a run wants it; subclasses say its steps."""

    name = "stepped"
    steps, step_reward, instruction = (), "mean", "All of it."

    def task(self, split="train", number=0):
        return Task(
            f"stepped/{split}/{number}",
            self.instruction,
            split,
            number,
            files={"given.txt": "given"},
            limits=Limits(wall_s=120.0, turns=8),
            grader=f"{HERE}:grade",
            metadata={"common": "kept", "name": "task"},
            steps=self.steps,
            step_reward=self.step_reward,
        )

    def tasks(self, split):
        return [self.task(split, number) for number in range({"train": 5, "test": 3}[split])]


_LAID = "import os; assert open('made.txt').read() == 'given first later'; assert not os.path.exists('gone.txt')\n"


class Two(Stepped):
    """The second builds on the first, and is laid its own files and setup."""

    steps = (
        step("first", f"open('first.txt', 'w').write('first'); {rewarded('first', reward=0.5, style=1.0)}"),
        step(
            "second",
            _LAID + rewarded("second", reward=1.0),
            files={"later.txt": "later"},
            setup=Setup(
                (
                    (
                        "sh",
                        "-c",
                        "echo $(cat given.txt) $(cat first.txt) $(cat later.txt) | tr -d '\\n' > made.txt",
                    ),
                )
            ),
        ),
    )


class LastCounts(Two):
    step_reward = "final"


class TooLittle(Stepped):
    """The first is not enough."""

    steps = (
        step("first", rewarded("first", reward=0.5), min_reward={"reward": 0.6}),
        step("second", rewarded("second", reward=1.0)),
    )


class Enough(Stepped):
    """The first is just enough, and the last needs what it does not have."""

    steps = (
        step("first", rewarded("first", reward=0.6), min_reward={"reward": 0.6}),
        step("second", rewarded("second", reward=1.0), min_reward={"style": -5.0}),
    )


class NoSuchChannel(Stepped):
    steps = (
        step("first", rewarded("first", reward=1.0), min_reward={"style": -5.0}),
        step("second", rewarded("second", reward=1.0)),
    )


class FinalTooLittle(TooLittle):
    step_reward = "final"


class Blocked(Stepped):
    """What the first leaves is in the way of the second."""

    steps = (
        step("first", f"import os; os.mkdir('second.txt'); {rewarded('first', reward=1.0)}"),
        step("second", rewarded("second", reward=1.0), files={"second.txt": "x"}),
        step("third", rewarded("third", reward=1.0)),
    )


class LinkedAway(Stepped):
    steps = (
        step("first", f"import os; os.symlink('/etc', 'data'); {rewarded('first', reward=1.0)}"),
        step("second", rewarded("second", reward=1.0), files={"data/file": "x"}),
    )


class InTheHarnessesWay(Stepped):
    """What the harness itself needs laid cannot be."""

    steps = (
        step(
            "first",
            "import os; os.unlink('instruction.txt'); os.mkdir('instruction.txt'); "
            f"{rewarded('first', reward=1.0)}",
        ),
        step("second", rewarded("second", reward=1.0)),
    )


class TakenAway(Stepped):
    """The second's setup needs what the first took away."""

    steps = (
        step("first", f"import os; os.unlink('given.txt'); {rewarded('first', reward=1.0)}"),
        step("second", rewarded("second", reward=1.0), setup=Setup((("cat", "given.txt"),))),
    )


class BrokenFirst(Stepped):
    """Nobody has been there yet: this is the task's doing."""

    steps = (step("first", setup=Setup((("cat", "nothing.txt"),))), step("second"))


class Tampered(Stepped):
    steps = (
        step("first", rewarded("first", reward=1.0)),
        step("second", rewarded("second", reward=1.0, tampered="it was forged")),
        step("third", rewarded("third", reward=1.0)),
    )


class OutOfTime(Stepped):
    """The first is ended by its own limit, and what lies there counts."""

    steps = (
        step("first", "time.sleep(600)", files={"first.json": '{"reward": 1.0}'}, wall_s=2.0),
        step("second", rewarded("second", reward=1.0)),
    )
