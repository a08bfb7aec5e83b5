"""Tasks, graders and harnesses of a few lines, good and bad, for tests of nodes and runs."""

import time
import zlib

from harnessgym.task import Grade, Limits, Setup, Task

HERE = "tests.harnessgym.rollout.tiny"
_CALL = """
import json, os, socket, subprocess, sys, time

def call(text="What?", model="policy", timeout=None):
    # Without an HTTP library, which would take more processor time than all else that such a program does.
    address, _, path = os.environ["OPENAI_BASE_URL"].removeprefix("http://").partition("/")
    host, _, port = address.rpartition(":")
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": text}]})
    lines = [
        f"POST /{path}/chat/completions HTTP/1.0", f"Host: {address}", "Content-Type: application/json",
        f"Content-Length: {len(body)}", "Authorization: Bearer " + os.environ["OPENAI_API_KEY"], "", body,
    ]
    with socket.create_connection((host, int(port)), timeout=timeout) as connection:
        connection.sendall("\\r\\n".join(lines).encode())
        head, _, answer = connection.makefile("rb").read().partition(b"\\r\\n\\r\\n")
    if head.split()[1:2] != [b"200"]:
        raise OSError(head.decode() or "no answer")
    return json.loads(answer)["choices"][0]["message"]["content"]
"""
HARNESSES = {
    "good": "open('answer.txt', 'w').write(call())",
    "lists": (
        "call(); open('answer.txt', 'w').write(subprocess.run(['ls'], capture_output=True, text=True).stdout)"
    ),
    "crashes_before": "raise RuntimeError('no configuration')",
    "crashes_after": "call(); raise RuntimeError('cannot read the answer')",
    "aborts": "call(); os.abort()",
    "calls_twice": "call(); time.sleep(0.2); call(); open('answer.txt', 'w').write('x')",
    "hangs": (
        "call(); child = subprocess.Popen(['setsid', 'sleep', '600']);"
        "open(os.environ['MARK'], 'a').write(f'{os.getpid()} {child.pid} '); time.sleep(600)"
    ),
    "sleeps": "call(); time.sleep(600)",
    "floods": "call(); sys.stdout.write('x' * 12_000_000); sys.stderr.write('y' * 12_000_000)",
    "never_calls": "print('nothing to do')",
    "is_refused": "\ntry: call([{'type': 'unheard_of'}])\nexcept OSError: print('refused')",
    "lingers": (
        "import random\nfor i in range(random.choice([1, 1, 1, 3])): call(str(i)); "
        "time.sleep(random.choice([0, 0.3]))\n"
        "open('answer.txt', 'w').write('x')"
    ),
    "straggles": (
        "call()\ntry: os.close(os.open(os.environ['MARK'], os.O_CREAT | os.O_EXCL)); time.sleep(90)\n"
        "except FileExistsError: open('answer.txt', 'w').write('x')"
    ),
    "gives_up": (
        "try: call(timeout=2); open('answer.txt', 'w').write('x')\nexcept OSError: print('no answer')"
    ),
    "waits": "call(); time.sleep(0.5); open('answer.txt', 'w').write('x')",
    "converses": "\nfor i in range(5): call(str(i)); time.sleep(0.2)\nopen('answer.txt', 'w').write('x')",
    "gated": (
        "call()\nwhile not os.path.exists(os.environ['MARK']): time.sleep(0.05)\nopen('answer.txt', "
        "'w').write('x')"
    ),
    "pair": "open('answer.txt', 'w').write(call()); call(model='helper')",
    "eats": "call(); bytearray(64 << 30)",
    "is_killed": "call(); os.kill(os.getpid(), 9)",
    "fills": "call(); raise OSError(28, 'No space left on device')",
    "obeys": "call(); exec(open('instruction.txt').read().rpartition('---')[2])",
    "talks": "\nfor i in range(99):\n    try: call(str(i))\n    except OSError: break",
}
"""Name to the program behind `call(text)`, which asks the proxy for a chat completion."""


def write_harnesses(folder, names):
    """Sections of a run's configuration, for programs written to `folder`."""
    sections = []
    for name in names:
        program = folder / f"{name}.py"
        program.write_text(f"{_CALL}\n{HARNESSES[name]}\n")
        settings = {"argv": ["python", str(program)], "env": {"MARK": str(folder / "mark")}}
        sections.append({"name": name, "type": "command", "settings": settings})
    return sections


class Tiny:
    """Five training tasks and three held out; a subclass changes the grader, the image or the limits."""

    name = "tiny"
    grader, image, limits, setup = "grade", None, Limits(wall_s=10.0, turns=4), Setup()

    def tasks(self, split):
        count = {"train": 5, "test": 3}[split]
        return [
            Task(
                f"tiny/{split}/{i}",
                "Answer.",
                split,
                i,
                files={"given.txt": "given"},
                image=self.image,
                limits=self.limits,
                setup=self.setup,
                grader=f"{HERE}:{self.grader}",
            )
            for i in range(count)
        ]


class Impatient(Tiny):
    limits = Limits(wall_s=1.0, turns=4)


class Conversing(Tiny):
    limits = Limits(wall_s=8.0, turns=9)


class Hurried(Tiny):
    limits = Limits(wall_s=6.0, turns=4)


class Patient(Tiny):
    limits = Limits(wall_s=120.0, turns=4)


class Containers(Tiny):
    image = "debian:13"


class Empty(Tiny):
    def tasks(self, split):
        return []


class Slow(Tiny):
    grader = "grade_slowly"


class Picky(Tiny):
    grader = "grade_first"


class Mixed(Tiny):
    grader = "grade_by_chance"


class Hashed(Tiny):
    grader = "grade_by_answer"


class ByChance(Patient):
    grader = "grade_by_chance"


class NearlySolved(Patient):
    grader = "grade_nearly"


class SetUp(Tiny):
    setup = Setup((("sh", "-c", "cat given.txt > made.txt"), ("sh", "-c", "test -s made.txt")))


class BadlySetUp(Tiny):
    setup = Setup((("sh", "-c", "echo no such package >&2; exit 3"),))


class Raising(Tiny):
    grader = "grade_raising"


class Rewardless(Tiny):
    grader = "grade_rewardless"


class NotANumber(Tiny):
    grader = "grade_nan"


class Cheated(Tiny):
    grader = "grade_cheated"


def grade(task, workspace):
    return Grade({"reward": float((workspace / "answer.txt").is_file())})


def grade_slowly(task, workspace):
    time.sleep(0.4)
    return Grade({"reward": 1.0}, evidence={"made": sorted(path.name for path in workspace.iterdir())})


def grade_raising(task, workspace):
    raise KeyError("metadata")


def grade_rewardless(task, workspace):
    return Grade({"style": 1.0})


def grade_nan(task, workspace):
    return Grade({"reward": float("nan")})


def grade_cheated(task, workspace):
    return Grade({"reward": 1.0}, tampered="the answer was there before")


def grade_by_chance(task, workspace):
    return Grade({"reward": float(zlib.crc32(str(workspace).encode()) % 2)})


def grade_by_answer(task, workspace):
    """Another reward for every other answer, so that groups always teach something."""
    return Grade({"reward": zlib.crc32((workspace / "answer.txt").read_bytes()) % 1_000 / 1_000})


def grade_nearly(task, workspace):
    """Successes of two sizes, so that groups that always succeed teach something."""
    return Grade({"reward": 0.9 + 0.1 * (zlib.crc32(str(workspace).encode()) % 2)})


def grade_first(task, workspace):
    return Grade({"reward": float((workspace / "answer.txt").read_text() == "first")})
