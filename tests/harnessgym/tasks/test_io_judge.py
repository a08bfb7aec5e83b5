"""The I/O judge: what a set may look like, what is said of mistakes, and that every language is judged the
same.
"""

import json
import os
from dataclasses import replace

import pytest

from harnessgym.errors import TaskError
from harnessgym.grading.grade import judge
from harnessgym.provisioning import equipment_of
from harnessgym.sandbox import Capability, needs
from harnessgym.sandboxes.bubblewrap import Bubblewrap, BubblewrapSettings
from harnessgym.sandboxes.docker import Docker, DockerSettings
from harnessgym.task import Limits
from harnessgym.tasks.io_judge import IoJudge
from harnessgym.tasks.language import read_language, shipped, shipped_languages
from harnessgym.tasks.source import recognised, task_set

GOLD = {
    "awk": "{ print $1 + $2 }\n",
    "bash": 'read -r a b\necho "$((a + b))"\n',
    "c": (
        '#include <stdio.h>\nint main(void) { long a, b; scanf("%ld %ld", &a, &b); printf("%ld\\n", a + '
        "b); "
        "}\n"
    ),
    "cpp": (
        "#include <iostream>\nint main() { long a, b; std::cin >> a >> b; std::cout << a + b << "
        "std::endl; }\n"
    ),
    "javascript": (
        "const [a, b] = require('fs').readFileSync(0, 'utf8').split(' ').map(Number);\nconsole.log(a + b);\n"
    ),
    "lua": "local a, b = io.read('n', 'n')\nprint(a + b)\n",
    "perl": 'my ($a, $b) = split " ", <STDIN>;\nprint $a + $b, "\\n";\n',
    "python": "a, b = map(int, input().split())\nprint(a + b)\n",
    "ruby": "puts gets.split.map(&:to_i).sum\n",
    "scheme": "(display (+ (read) (read)))\n(newline)\n",
    "tcl": "lassign [gets stdin] a b\nputs [expr {$a + $b}]\n",
}
ENDLESS = {
    "awk": "BEGIN { while (1) x = 1 }\n",
    "bash": "while :; do :; done\n",
    "c": "int main(void) { volatile int x = 1; while (x) { } }\n",
    "cpp": "int main() { volatile int x = 1; while (x) { } }\n",
    "javascript": "while (true) { }\n",
    "lua": "while true do end\n",
    "perl": "while (1) { }\n",
    "python": "while True: pass\n",
    "ruby": "loop { }\n",
    "scheme": "(let loop () (loop))\n",
    "tcl": "while 1 { }\n",
}
WRONG = {name: text.replace("+", "-").replace(".sum", ".max") for name, text in GOLD.items()}
CASES = [{"stdin": f"{a} {b}\n", "stdout": f"{a + b}\n"} for a, b in ((1, 2), (-5, 3), (40, 2))]
ADD = {"id": "add", "statement": "Print the sum of the two integers of the line.", "cases": CASES}


def required(name):
    """Skips where the language is not there, unless it must be."""
    missing = shipped(name).missing()
    if missing and "languages" not in os.environ.get("HARNESSGYM_REQUIRE", "").split(","):
        pytest.skip(missing)


@pytest.fixture
def folder(tmp_path):
    """Writes a set: relative path to text, or to a value for JSON lines."""

    def write(files, name="set"):
        root = tmp_path / name
        for path, text in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            rows = [text] if isinstance(text, str) else [json.dumps(row) for row in text]
            (root / path).write_text("\n".join(rows))
        return root

    return write


@pytest.fixture
async def graded(tmp_path, anyio_backend):
    """The grade of a source text, in bubblewrap."""
    async with Bubblewrap(BubblewrapSettings(workspace_root=tmp_path / "w")) as backend:
        yield lambda task, text: attempt(backend, task, text)


async def attempt(backend, task, text):
    async with backend.open(task.limits, equipment_of(task)) as sandbox:
        for command in task.setup.run:
            result = await sandbox.exec(command)
            assert result.ok, result.stderr.decode()
        if text is not None:
            await sandbox.write(task.artifacts[0], text.encode())
        return await judge(task, sandbox, lambda: backend.open(task.limits, equipment_of(task, grades=True)))


def all_of(spec):
    loaded = IoJudge().read(spec)
    return {task.id: task for task in loaded.tasks}, loaded


@pytest.mark.bubblewrap
@pytest.mark.anyio
@pytest.mark.parametrize("name", sorted(GOLD))
async def test_every_language_is_judged_the_same(folder, graded, name):
    required(name)
    root = folder(
        {"judge.toml": f'languages = ["{name}"]', "problems.jsonl": [ADD | {"solutions": {name: GOLD[name]}}]}
    )
    (task,) = task_set(str(root)).tasks("train")
    (check,) = task.metadata["tests"]
    quick = replace(task, metadata=task.metadata | {"tests": (check | {"timeout_s": 1.0},)})
    attempts = [
        (task, task.solution.files[task.artifacts[0]], 1.0),
        (task, None, 0.0),
        (task, "", 0.0),
        (task, WRONG[name], 0.0),
        (task, GOLD[name] + "}}}} (((( ' \" end end\n", 0.0),
        (quick, ENDLESS[name], 0.0),
    ]
    for judged, text, reward in attempts:
        grade = await graded(judged, text)
        assert (grade.rewards, grade.tampered) == ({"reward": reward}, None), (text, grade)


def test_those_that_are_tested_here_are_among_those_shipped():
    assert set(GOLD) <= set(shipped_languages())
    for name in shipped_languages():
        language = shipped(name)
        assert language.language == name
        assert language.install
        assert language.programs


def test_a_set_with_everything(folder):
    files = {
        "judge.toml": 'name = "mine"\nmatch = "tokens"\nscore = "fraction"\n[limits]\nwall_s = 90\n',
        "languages/python.toml": "timeout_s = 3\n",
        "languages/shout.yaml": (
            "extension: .txt\nfile: words.txt\nrun: cat {file}\ncompile: cp {file} {program}\ntimeout: 7"
        ),
        "problems/add/statement.md": "Add.\n",
        "problems/add/problem.toml": 'split = "test"\nauthor = "me"\n',
        "problems/add/cases/2.in": "2 2\n",
        "problems/add/cases/2.out": "4\n",
        "problems/add/cases/10.in": "9 1\n",
        "problems/add/cases/10.out": "10\n",
        "problems/add/solutions/python.py": "print(sum(map(int, input().split())))\n",
        "problems/hello.yaml": "statement: Say hello.\ncases: [{stdin: '', stdout: hello}]\nmatch: exact\n",
    }
    tasks, loaded = all_of(folder(files))
    assert list(tasks) == ["mine/add.python", "mine/add.shout", "mine/hello.python", "mine/hello.shout"]
    assert loaded.problems == ()
    (note,) = loaded.notes
    assert "problems/add: the key 'author' has no effect" in note
    task = tasks["mine/add.python"]
    (check,) = task.metadata["tests"]
    assert (task.split, task.limits.wall_s, task.metadata["score"], task.metadata["author"]) == (
        "test",
        90.0,
        "weighted",
        "me",
    )
    assert (check["timeout_s"], check["command"], check["match"], check["partial"]) == (
        3,
        ("python3", "solution.py"),
        "tokens",
        True,
    )
    assert [case["stdin"] for case in check["cases"]] == ["2 2\n", "9 1\n"]
    assert task.solution.files == {"solution.py": "print(sum(map(int, input().split())))\n"}
    other = tasks["mine/hello.shout"]
    (check,) = other.metadata["tests"]
    assert (check["compile"], check["command"], check["timeout_s"]) == (
        ("cp", "words.txt", "./program"),
        ("cat", "words.txt"),
        7,
    )
    assert (check["match"], other.artifacts, other.solution) == ("exact", ("words.txt",), None)
    for word in ("Say hello.", "words.txt", "cp words.txt ./program", "cat words.txt", "7 seconds"):
        assert word in other.instruction


def test_the_papers_names_are_taken(folder):
    row = {
        "question_id": 7,
        "question_content": "Echo.",
        "test_cases": [{"input": "a", "output": "a"}],
        "difficulty": "easy",
    }
    tasks, loaded = all_of(folder({"language.yaml": "language: python\n", "problems.jsonl": [row]}))
    (task,) = tasks.values()
    assert (task.id, task.metadata["difficulty"]) == ("set/7.python", "easy")
    assert task.metadata["tests"][0]["cases"] == ({"stdin": "a", "stdout": "a", "args": ()},)
    assert loaded.problems == ()


def test_what_is_expected_is_not_shown(folder):
    row = ADD | {"cases": [{"stdin": "xyzzy", "stdout": "plugh"}], "solutions": {"python": "print('plugh')"}}
    tasks, _ = all_of(folder({"language.toml": 'language = "python"', "problems.jsonl": [row]}))
    (task,) = tasks.values()
    assert "plugh" not in task.instruction + str(task.files) + str(task.setup)
    assert "xyzzy" not in task.instruction + str(task.files) + str(task.setup)


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ({"problems.jsonl": '{"id": "a"}'}, ["problems.jsonl:1", "statement", "required"]),
        ({"problems.jsonl": "\n{"}, ["problems.jsonl:2", "no JSON"]),
        ({"problems.jsonl": "[1]"}, ["problems.jsonl:1", "must be an object"]),
        ({"problems.jsonl": [ADD | {"cases": []}]}, ["problems.jsonl:1", "cases"]),
        ({"problems.jsonl": [ADD | {"cases": [{"stdin": "1"}]}]}, ["cases.0.stdout", "required"]),
        (
            {"problems.jsonl": [ADD | {"cases": [{"stdin": 1, "stdout": "1"}]}]},
            ["cases.0.stdin", "valid string"],
        ),
        (
            {"problems.jsonl": [ADD | {"cases": [{"stdout": "1", "sdtin": "1"}]}]},
            ["sdtin", "no such setting"],
        ),
        ({"problems.jsonl": [ADD | {"id": "../a"}]}, ["problems.jsonl:1", "id"]),
        ({"problems.jsonl": [ADD | {"split": "dev"}]}, ["split", "'train' or 'test'"]),
        (
            {"problems.jsonl": [ADD | {"match": "json"} | {"cases": [{"stdout": "{"}]}]},
            ["problems.jsonl:1", "no JSON"],
        ),
        ({"problems.toml": "x = ["}, ["problems.toml", "cannot be read"]),
        ({"problems.yaml": "a: b"}, ["problems.yaml", "a list `problems`"]),
        ({"problems.yaml": "- 3"}, ["problems.yaml: problems[0]", "must be a table"]),
        (
            {"problems/x/problem.toml": "", "problems/x/cases/1.in": ""},
            ["problems/x/cases/1.out", "cannot be read"],
        ),
        ({"problems/x/problem.toml": ""}, ["problems/x", "statement"]),
        ({"problems/x.toml": "statement = 3"}, ["problems/x.toml", "statement"]),
        ({"languages/a.toml": "extension = 'a'"}, ["languages/a.toml", "run", "required"]),
        ({"languages/a.toml": "extension = 'a/b'\nrun = 'x'"}, ["languages/a.toml", "extension"]),
        (
            {"languages/a.toml": "extension = 'a'\nrun = 'no-such-program {file}'\ninstall = 'get it'"},
            ["no-such-program", "get it"],
        ),
        ({"languages/a.yaml": "a: ["}, ["languages/a.yaml", "cannot be read"]),
        (
            {"languages/a.toml": "extension = 'a'\nrun = 'sh'\ntimeout_s = -1"},
            ["languages/a.toml", "timeout_s", "greater than 0"],
        ),
        ({"languages/python.toml": ""}, ["python", "described twice"]),
    ],
)
def test_a_mistake_is_named_and_the_rest_is_read(folder, files, named):
    good = {
        "language.toml": 'language = "python"',
        "problems/good.toml": "statement = 'x'\ncases = [{ stdout = 'x' }]\n",
    }
    tasks, loaded = all_of(folder(good | files))
    assert list(tasks) == ["set/good.python"]
    (problem,) = loaded.problems
    for word in named:
        assert word in problem


def test_what_has_no_effect_is_noted(folder):
    files = {
        "judge.toml": "mtach = 'exact'\n",
        "language.toml": "language = 'python'\ntime_out = 3\n",
        "problems.jsonl": [ADD | {"solutions": {"cobol": "x"}}],
    }
    _, loaded = all_of(folder(files))
    text = "\n".join(loaded.notes)
    assert "judge.toml: the key 'mtach' has no effect. Did you mean 'match'?" in text
    assert (
        "language.toml: a language has no key 'time_out', so it has no effect. Did you mean 'timeout" in text
    )
    assert "a solution in 'cobol' is not used" in text


def test_a_set_that_is_wrong_as_a_whole(folder):
    with pytest.raises(TaskError, match=r"judge\.toml.*\n.*match"):
        IoJudge().read(folder({"judge.toml": "match = 'fuzzy'", "problems.jsonl": [ADD]}))
    unknown = task_set(str(folder({"judge.toml": "languages = ['pyton']", "problems.jsonl": [ADD]}, "other")))
    with pytest.raises(TaskError, match=r"No language 'pyton' is shipped\. Did you mean 'python'"):
        unknown.tasks("train")
    with pytest.raises(TaskError, match="which language is it"):
        read_language(folder({"language.toml": "run = 'x'"}, "third") / "language.toml")


def test_what_is_of_another_format_is_not_recognised(folder):
    assert isinstance(recognised(folder({"language.toml": "", "problems.jsonl": ""})), IoJudge)
    assert isinstance(recognised(folder({"languages/x.yml": "", "problems/a.toml": ""}, "b")), IoJudge)
    for number, files in enumerate(
        (
            {"task.toml": "", "language.toml": "", "problems.jsonl": ""},
            {"one/task.toml": ""},
            {"problems.jsonl": ""},
            {"language.toml": ""},
            {"languages/readme.md": "", "problems.jsonl": ""},
            {"tasks/a/task.yaml": ""},
        )
    ):
        assert not IoJudge().recognises(folder(files, f"no{number}"))
    assert not IoJudge().recognises(folder({"problems.jsonl": ""}, "row") / "problems.jsonl")


@pytest.mark.bubblewrap
@pytest.mark.anyio
async def test_a_fraction_counts_the_cases_that_pass(folder, graded):
    files = {"judge.toml": 'score = "fraction"\nlanguages = ["python"]', "problems.jsonl": [ADD]}
    (task,) = task_set(str(folder(files))).tasks("train")
    grade = await graded(task, "a, b = map(int, input().split())\nprint(3 if a == 1 else 0)\n")
    assert grade.rewards["reward"] == pytest.approx(1 / 3)
    assert (await graded(task, "import time\ninput()\ntime.sleep(0)\nraise SystemExit(3)\n")).rewards == {
        "reward": 0.0
    }


@pytest.mark.bubblewrap
@pytest.mark.anyio
async def test_only_the_source_file_is_taken_and_it_must_be_one(folder, tmp_path, graded):
    (task,) = task_set(str(folder({"judge.toml": "languages = ['bash']", "problems.jsonl": [ADD]}))).tasks(
        "train"
    )
    async with (
        Bubblewrap(BubblewrapSettings(workspace_root=tmp_path / "v")) as backend,
        backend.open(task.limits) as sandbox,
    ):
        await sandbox.write("answers.sh", GOLD["bash"].encode())
        await sandbox.write("solution.sh", b". ./answers.sh\n")
        grade = await judge(task, sandbox, lambda: backend.open(task.limits, equipment_of(task, grades=True)))
        assert grade.rewards == {"reward": 0.0}
        await sandbox.exec(["ln", "-sf", "/etc/passwd", "solution.sh"])
        grade = await judge(task, sandbox, lambda: backend.open(task.limits, equipment_of(task, grades=True)))
        assert grade.rewards == {"reward": 0.0}
        assert grade.tampered is not None


@pytest.mark.bubblewrap
@pytest.mark.anyio
async def test_a_sandbox_without_the_language_is_an_error_with_a_remedy_and_no_reward(folder, graded):
    language = "language = 'shout'\nextension = 'txt'\nrun = 'cat {file}'\nprobe = 'no-such-compiler -v'\ninstall = 'get shout'\n"
    (task,) = task_set(str(folder({"language.toml": language, "problems.jsonl": [ADD]}))).tasks("train")
    with pytest.raises(
        AssertionError,
        match=r"shout cannot be used in this sandbox\. As root: get shout\. Or write `toolchains = \"image\"`",
    ):
        await graded(task, "x")
    unprepared = replace(task, setup=replace(task.setup, run=()))
    with pytest.raises(TaskError, match="the sandbox lacks what the program needs"):
        await graded(unprepared, "x")


@pytest.mark.docker
@pytest.mark.anyio
async def test_in_containers_a_language_is_a_layer_of_the_image(folder, tmp_path, anyio_backend):
    language = (
        "language = 'shout'\nextension = 'txt'\nrun = 'shout {file}'\n"
        'install = \'printf "#!/bin/sh\\ntr a-z A-Z <\\"\\$1\\"\\n" >/usr/local/bin/shout && chmod 755 '
        "/usr/local/bin/shout'\n"
    )
    case = {"id": "hello", "statement": "Say hello.", "cases": [{"stdout": "HELLO"}]}
    files = {"judge.toml": 'toolchains = "image"', "language.toml": language, "problems.jsonl": [case]}
    (task,) = task_set(str(folder(files))).tasks("train")
    assert needs(task) == {Capability.IMAGE}
    task = replace(task, limits=Limits(wall_s=60.0, memory_mb=256, processes=64, disk_mb=64))
    async with Docker(DockerSettings(workspace_root=tmp_path / "w")) as backend:
        assert (await attempt(backend, task, "hello")).rewards == {"reward": 1.0}
        assert (await attempt(backend, task, "hi")).rewards == {"reward": 0.0}
