"""Each kind of check on real sandboxes: what passes, what fails, and whose fault a strange result is."""

import json

import pytest

from harnessgym.errors import TaskError
from harnessgym.grading.check import read_checks
from harnessgym.sandbox import Capability
from harnessgym.task import Limits

pytestmark = pytest.mark.anyio

FLOOD = "import os\nfor fd in range(3, 40):\n    try: os.write(fd, {})\n    except OSError: pass\n"


def io(command, *cases, **more):
    return {"kind": "io", "command": command, "cases": cases, **more}


def call(*cases, **more):
    return {"kind": "call", "module": "work", "function": "f", "cases": cases, **more}


async def reward_of(grade, backend, task, files=None):
    found = await grade(backend, task, files)
    assert found.tampered is None
    return found.rewards["reward"]


async def test_io_compares_output_and_exit_code_here(backend, grade, make_task):
    doubling = "import sys\nn = int(sys.stdin.read())\nprint(2 * n)\nsys.exit(n % 2)\n"
    cases = (
        {"stdin": "4", "stdout": "8"},
        {"stdin": "3", "stdout": "6", "exit_code": 1},
        {"stdin": "5", "exit_code": None, "stdout": "10"},
    )
    task = make_task(io(["python3", "work.py"], *cases))
    assert await reward_of(grade, backend, task, {"work.py": doubling}) == 1.0
    assert await reward_of(grade, backend, task, {"work.py": doubling.replace("n % 2", "0")}) == 0.0
    assert await reward_of(grade, backend, task, {"work.py": doubling.replace("2 * n", "8")}) == 0.0
    assert await reward_of(grade, backend, task, {}) == 0.0


async def test_io_of_a_program_that_hangs_floods_or_dies(bubblewrap, grade, make_task):
    task = make_task(
        io(["sh", "work.sh"], {"stdout": "y", "exit_code": None}, timeout_s=1),
        limits=Limits(output_bytes=1 << 16),
    )
    for text in ("echo y; sleep 30", "yes", "echo y; kill -9 $$", "(sleep 30 & ) ; echo no"):
        assert await reward_of(grade, bubblewrap, task, {"work.sh": text}) == 0.0


async def test_what_io_expects_is_nowhere_in_the_sandbox(backend, grade, make_task):
    spy = "cat /proc/*/environ /proc/*/cmdline $(find . /tmp /run /home -type f 2>/dev/null) 2>/dev/null </dev/null; env"
    task = make_task(io(["sh", "spy.sh"], {"stdout": "x7h-hidden-word"}, {"stdout": ""}, match="stripped"))
    found = await grade(backend, task, {"spy.sh": spy})
    assert found.rewards == {"reward": 0.0}
    program = "import subprocess, sys\nout = subprocess.run(['sh', 'spy.sh'], capture_output=True).stdout\n"
    counting = program + "print(out.count(b'x7h-' + b'hidden'))\n"
    task = make_task(
        io(["python3", "work.py"], {"stdout": "0"}),
        io(["true"], {"stdout": "x7h-hidden-word", "exit_code": None}),
    )
    found = await grade(backend, task, {"spy.sh": spy, "work.py": counting})
    assert [check["passed"] for check in found.evidence["checks"]] == [True, False]


async def test_call_compares_results_here(backend, grade, make_task):
    cases = (
        {"args": [1, 2], "result": [1, 2]},
        {"args": [3], "kwargs": {"b": 4}, "result": [3, 4]},
        {"args": [1, 1], "raises": "ArithmeticError"},
        {"args": [None, 0], "result": None},
    )
    right = "def f(a, b):\n    if a is None: return None\n    if a == b: raise ZeroDivisionError\n    return (a, b)\n"
    task = make_task(call(*cases))
    assert await reward_of(grade, backend, task, {"work.py": right}) == 1.0
    for wrong in (
        right.replace("ZeroDivisionError", "KeyError"),
        right.replace("return None", "return False"),
        right.replace("(a, b)\n", "[b, a]\n"),
        "def g(): pass\n",
        "import nothing_of_the_kind\n",
        "",
    ):
        assert await reward_of(grade, backend, task, {"work.py": wrong}) == 0.0, wrong


@pytest.mark.parametrize(
    "text",
    [
        "class Equal:\n    def __eq__(self, other): return True\ndef f(n): return Equal()\n",
        "class Equal(int):\n    def __eq__(self, other): return True\ndef f(n): return Equal(0)\n",
        "import os; os._exit(0)\n",
        "import os\ndef f(n): os._exit(0)\n",
        "import sys\ndef f(n): sys.exit(0)\n",
        "def f(n): return float('nan')\n",
        "def f(n): return f\n",
        "import json\njson.dumps = lambda *a, **k: '{}'\ndef f(n): return n\n",
        "def f(n):\n    x = []\n    for _ in range(100_000): x = [x]\n    return x\n",
        FLOOD.format("b'[' * 200_000 + b'\\n' + b'7' * 9000 + b'\\n{\"case\": []}\\n{\"case\": 0}\\n'")
        + "def f(n): return n\n",
        "while True:\n    " + FLOOD.format("b'x' * 65536").replace("\n", "\n    ") + "\n",
        "while True: pass\n",
    ],
)
async def test_call_has_nothing_to_forge(bubblewrap, grade, make_task, text):
    task = make_task(
        call({"args": [21], "result": 42}, {"args": [4], "result": 8}, timeout_s=3),
        limits=Limits(output_bytes=1 << 20),
    )
    assert await reward_of(grade, bubblewrap, task, {"work.py": text}) == 0.0


async def test_each_answer_of_call_counts_for_its_own_case(bubblewrap, grade, make_task):
    """Answers in another order, or the first one twice, match nothing."""
    text = (
        "import os\n"
        "for fd in range(3, 40):\n"
        '    try: os.write(fd, b\'{"case": 1, "result": 1}\\n{"case": 0, "result": 2}\\n\')\n'
        "    except OSError: pass\n"
        "def f(n): return n\n"
    )
    task = make_task(call({"args": [1], "result": 1}, {"args": [2], "result": 2}))
    assert await reward_of(grade, bubblewrap, task, {"work.py": text}) == 0.0
    assert await reward_of(grade, bubblewrap, task, {"work.py": "def f(n): return n\n"}) == 1.0


@pytest.mark.parametrize(
    ("rule", "text", "holds"),
    [
        ({"content": "a\nb"}, "a  \nb\n\n", True),
        ({"content": "a\nb", "match": "exact"}, "a\nb\n", False),
        ({"pattern": "^b$"}, "a\nb\nc", True),
        ({"forbidden": "^b$"}, "a\nb\nc", False),
        ({"parsed": "json", "values": {"a.1.b": 2.0}}, '{"a": [0, {"b": 2}]}', True),
        ({"parsed": "json", "values": {"a": 1}}, '{"a": true}', False),
        ({"parsed": "json", "values": {"a.7": 1}}, '{"a": [1]}', False),
        ({"parsed": "json"}, "[" * 100_000, False),
        ({"parsed": "json"}, "NaN", False),
        ({"parsed": "toml", "values": {"a.b": "c"}}, "[a]\nb = 'c'", True),
        ({"parsed": "toml"}, "a = ", False),
        ({"content": "1 2.0000001", "match": "float"}, " 1.0\n2", True),
        ({"content": "1 2", "match": "float"}, "1 nan", False),
        ({"pattern": "x"}, "x" * (2 << 20), False),
        ({"folder": True}, "a file", False),
        ({"executable": True}, "no", False),
        ({"absent": True}, "there", False),
    ],
)
async def test_files_rules(bubblewrap, grade, make_task, rule, text, holds):
    task = make_task({"kind": "files", "rules": [{"path": "a/b", **rule}]})
    assert await reward_of(grade, bubblewrap, task, {"a/b": text}) == float(holds)


async def test_a_file_rule_follows_links_only_inside(bubblewrap, grade, make_task):
    task = make_task({"kind": "files", "rules": [{"path": "link", "content": "42"}]})
    found = await grade(bubblewrap, task, {"real": "42"}, run=["ln -s real link"])
    assert found.rewards == {"reward": 1.0}
    assert (await grade(bubblewrap, task, run=["ln -s /etc/hostname link"])).rewards == {"reward": 0.0}


def command(script, **more):
    return {"kind": "command", **more}, {"run.sh": script, "words.txt": "hidden"}


@pytest.mark.parametrize(
    ("script", "reward"),
    [
        ("exit 0", 1.0),
        ("exit 1", 0.0),
        ("cat answer.txt | grep -q 42", 1.0),
        ('grep -q hidden "$TESTS/words.txt"', 1.0),
        ("no-such-program", 0.0),
        ("kill -9 $$", 0.0),
        ("sleep 60", 0.0),
        ("read -r line && exit 0; exit 3", 0.0),
    ],
)
async def test_command_judges_by_exit_code(backend, grade, make_task, script, reward):
    check, files = command(script, timeout_s=2)
    assert await reward_of(grade, backend, make_task(check, test_files=files), {"answer.txt": "42"}) == reward


@pytest.mark.parametrize(
    ("line", "valid"),
    [
        ('{"reward": 1}', True),
        ('{"reward": 0.25}', True),
        ('{"reward": 0}', True),
        ("", False),
        ("{}", False),
        ('{"reward": NaN}', False),
        ('{"reward": 1e309}', False),
        ('{"reward": true}', False),
        ('{"reward": [1]}', False),
        ('{"reward": 2}', False),
        ('{"reward": "1"}', False),
        ('{"reward": 1}\n{"reward": 1}', False),
        ('{"reward": 1, "more": 1}', False),
        ("1", False),
    ],
)
async def test_command_judges_by_one_json_line(bubblewrap, grade, make_task, line, valid):
    check, files = command(f"cat <<'END'\n{line}\nEND", result="json")
    task = make_task(check, test_files=files, score="weighted")
    found = await grade(bubblewrap, task)
    if valid:
        assert (found.rewards["reward"], found.tampered) == (json.loads(line)["reward"], None)
    else:
        assert (found.rewards["reward"], bool(found.tampered)) == (0.0, True)


async def test_a_reward_and_a_failing_exit_code_contradict_each_other(bubblewrap, grade, make_task):
    check, files = command("echo '{\"reward\": 1}'; exit 1", result="json")
    found = await grade(bubblewrap, make_task(check, test_files=files))
    assert "exit code 1" in found.tampered


@pytest.mark.docker
async def test_as_root_the_agents_code_reaches_neither_tests_nor_result(docker, grade, make_task):
    assert Capability.ROOT in docker.capabilities
    attack = (
        "cat /tmp/*/* $TESTS/*; for f in /proc/[0-9]*/fd/1; do echo '{\"reward\": 1}' >$f; done; kill -9 -1\n"
    )
    script = (
        'test "$(id -u)" = 0 || exit 9\n'
        "setpriv --reuid=1000 --regid=1000 --clear-groups --no-new-privs sh attack.sh >/tmp/said "
        "2>/dev/null\n"
        "grep -q hidden /tmp/said && exit 8\n"
        "echo '{\"reward\": 0.5}'"
    )
    check, files = command(script, result="json")
    found = await grade(docker, make_task(check, test_files=files, score="weighted"), {"attack.sh": attack})
    assert (found.rewards, found.tampered) == ({"reward": 0.5}, None), found
    assert found.evidence["checks"][0]["root"] is True


@pytest.mark.docker
async def test_as_root_a_malformed_result_is_the_tasks_fault(docker, grade, make_task):
    check, files = command("echo '{\"reward\": NaN}'", result="json")
    with pytest.raises(TaskError, match=r"run.sh printed .*NaN"):
        await grade(docker, make_task(check, test_files=files))


async def test_weights_make_a_part_of_the_reward(bubblewrap, grade, make_task):
    rules = [
        {"kind": "files", "weight": w, "rules": [{"path": name, "content": "x"}]}
        for w, name in ((3, "a"), (1, "b"))
    ]
    assert await reward_of(grade, bubblewrap, make_task(*rules, score="weighted"), {"a": "x"}) == 0.75
    assert await reward_of(grade, bubblewrap, make_task(*rules), {"a": "x"}) == 0.0
    assert await reward_of(grade, bubblewrap, make_task(*rules), {"a": "x", "b": "x"}) == 1.0


@pytest.mark.parametrize(
    ("entry", "named"),
    [
        ({}, "has no kind"),
        ({"kind": "pytets"}, "Did you mean 'pytest'"),
        ({"kind": "io", "command": [], "cases": [{}]}, "command"),
        ({"kind": "io", "command": ["x"], "cases": []}, "cases"),
        ({"kind": "io", "command": ["x"], "cases": [{"exit_code": None}][:0]}, "cases"),
        ({"kind": "io", "command": ["x"], "cases": [{"stdot": "1"}]}, "Did you mean 'stdout'"),
        ({"kind": "io", "command": ["x"], "match": "json", "cases": [{"stdout": "{"}]}, "no JSON"),
        ({"kind": "io", "command": ["x"], "cases": [{"exit_code": None}]}, "expects nothing"),
        ({"kind": "call", "module": "a b", "cases": [{"function": "f"}]}, "module"),
        ({"kind": "call", "module": "a", "cases": [{}]}, "names no function"),
        (
            {"kind": "call", "module": "a", "function": "f", "cases": [{"result": 1, "raises": "E"}]},
            "choose one",
        ),
        ({"kind": "files", "rules": [{"path": "/etc/passwd"}]}, "relative path"),
        ({"kind": "files", "rules": [{"path": "a", "pattern": "("}]}, "no regular expression"),
        ({"kind": "files", "rules": [{"path": "a", "absent": True, "content": "x"}]}, "no other condition"),
        ({"kind": "files", "rules": [{"path": "a", "values": {"b": 1}}]}, "parsed"),
        ({"kind": "pytest", "files": ["test_a.py"], "expect": ["test_a.py::test_b"]}, "not in tests/"),
        ({"kind": "pytest", "files": ["t.py"], "expect": ["t.py::a", "t.py::a"]}, "twice"),
        ({"kind": "pytest", "files": ["t.py"], "expect": ["other.py::a"]}, "not in a file of"),
        ({"kind": "pytest", "files": ["t.py"], "expect": []}, "expect"),
        ({"kind": "command", "script": "judge.sh"}, "not in tests/"),
        ({"kind": "command", "script": "t.py", "weight": 0}, "weight"),
        ({"kind": "command", "script": "t.py", "weight": float("inf")}, "weight"),
    ],
)
def test_a_mistake_in_a_check_is_named(entry, named):
    with pytest.raises(TaskError) as error:
        read_checks([entry], {"t.py"}, "x/task.toml")
    assert "x/task.toml: tests[0]" in str(error.value)
    assert named in str(error.value)


def test_duplicate_ids_and_conftest_are_refused():
    entry = {"kind": "pytest", "files": ["t.py"], "expect": ["t.py::a"]}
    with pytest.raises(TaskError, match=r"conftest\.py is never read"):
        read_checks([entry], {"t.py", "conftest.py"}, "x")
    with pytest.raises(TaskError, match="there are none"):
        read_checks([], (), "x")
