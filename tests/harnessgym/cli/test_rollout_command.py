"""`harnessgym rollout`: the whole command, with a real proxy, sandboxes and a harness program."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import partial

import httpx
import pytest

from harnessgym.store import TraceStore, rollout_states, runs
from harnessgym.traces.verification.verify import verify
from tests.harnessgym.rollout.tiny import HERE, write_harnesses
from tests.support.command import run_here

ENV = os.environ | {"OMP_NUM_THREADS": "1", "NO_COLOR": "1", "COLUMNS": "120"}


FINISHED = ("--samples", "2", "-n", "4", "--split", "train")


@pytest.fixture(scope="module")
def command_line(tmp_path_factory):
    """`command_line(parent, "good", "--samples", "2")`: the words of a command on the tiny tasks."""
    programs = tmp_path_factory.mktemp("programs")

    def make(parent, harness, *words, tasks="Tiny", folder="run", sandbox="process", upstream="scripted"):
        (section,) = write_harnesses(programs, [harness])
        given = [
            "--tasks",
            f"{HERE}:{tasks}",
            "--sandbox",
            sandbox,
            "--upstream",
            upstream,
            "--folder",
            str(parent / folder),
        ]
        settings = [
            word for key, value in section["settings"].items() for word in ("--set", f"{key}={_toml(value)}")
        ]
        return [sys.executable, "-m", "harnessgym", "rollout", *given, *settings, *words]

    return make


@pytest.fixture
def command(command_line, tmp_path):
    """`command("good", "--samples", "2")`: the words of a command whose folder is in that of the test."""
    return partial(command_line, tmp_path)


def _toml(value):
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {json.dumps(text)}" for key, text in value.items()) + "}"
    return json.dumps(value)


def run(words):
    """The command in this process, which has imported what it needs."""
    return run_here(words[3:], COLUMNS="120")


def in_process(words, timeout=120):
    return subprocess.run(words, env=ENV, capture_output=True, text=True, timeout=timeout, check=False)


def results(folder):
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


def summary(folder):
    return json.loads((folder / "summary.json").read_text())


def statuses(folder):
    with TraceStore.open(f"sqlite:///{folder / 'traces.db'}") as store:
        found = store.read(runs.only)
        assert verify(store).ok
        return found.status, store.read(lambda conn: rollout_states.slots(conn, found.id, "rollout"))


@pytest.fixture(scope="module")
def finished(command_line, tmp_path_factory):
    """A finished campaign, run by a process of its own, and what it printed. Tests change only copies."""
    folder = tmp_path_factory.mktemp("finished")
    done = in_process(command_line(folder, "good", *FINISHED))
    assert done.returncode == 0, done.stderr
    return folder / "run", done.stderr


def test_a_folder_goes_on_with_the_database_of_its_own_campaign_alone(command, finished, tmp_path):
    folder, other = shutil.copytree(finished[0], tmp_path / "run"), tmp_path / "other"
    assert run(command("good", "--limit", "1", folder="other")).returncode == 0
    words = command("good", *FINISHED)
    before, own = results(folder), (folder / "traces.db").read_bytes()
    ids = [json.loads((each / "run.json").read_text())["id"] for each in (folder, other)]
    for replaced in ((other / "traces.db").read_bytes(), None):
        (folder / "traces.db").unlink()
        if replaced is not None:
            (folder / "traces.db").write_bytes(replaced)
        refused = run(words)
        assert refused.returncode == 2
        assert f"is the folder of run {ids[0]}" in refused.stderr
        assert (f"holds run {ids[1]}" in refused.stderr) == (replaced is not None)
        assert results(folder) == before
    (folder / "traces.db").write_bytes(own)
    (folder / "run.json").unlink()  # as an earlier release left it
    assert run(words).returncode == 0
    assert (json.loads((folder / "run.json").read_text())["id"], results(folder)) == (ids[0], before)


def test_every_task_is_run_as_often_as_asked(finished):
    folder, said = finished
    found = results(folder)
    assert [(row["task"], row["slot"]) for row in found] == [
        (f"tiny/train/{i}", slot) for i in range(5) for slot in (0, 1)
    ]
    assert {(row["reward"], row["verdict"], row["cause"], row["stop_reason"]) for row in found} == {
        (1.0, "valid", None, "finished")
    }
    assert all(row["tokens"] > 0 and row["latencies"]["run"] > 0 and row["attempts"] == 1 for row in found)
    told = summary(folder)
    assert (told["rollouts"], told["graded"], told["tasks"]) == (10, 10, 5)
    assert told["pass@1"] == told["pass@2"] == told["reward"] == {"mean": 1.0, "low": 1.0, "high": 1.0}
    status, slots = statuses(folder)
    assert status == "done"
    assert [state.id for state in slots] == [row["rollout"] for row in found]
    assert "10/10 done" in said
    assert list((folder / "workspaces").iterdir()) == []


@pytest.mark.bubblewrap
def test_in_bubblewrap_the_proxy_is_reached_through_its_socket(command, tmp_path):
    done = run(command("good", "--limit", "2", sandbox="bubblewrap"))
    assert done.returncode == 0, done.stderr
    assert [row["reward"] for row in results(tmp_path / "run")] == [1.0, 1.0]


@pytest.mark.docker
def test_in_docker_too(command, tmp_path):
    done = run(command("good", "--limit", "1", "--samples", "2", sandbox="docker"))
    assert done.returncode == 0, done.stderr
    assert [row["reward"] for row in results(tmp_path / "run")] == [1.0, 1.0]


def test_the_same_command_goes_on_in_a_copy_and_another_is_refused(command, finished, tmp_path):
    folder = shutil.copytree(finished[0], tmp_path / "run")
    before = results(folder)
    record = folder / "campaign.json"
    known = json.loads(record.read_text())
    record.write_text(
        json.dumps({name: value for name, value in known.items() if name != "session"})
    )  # as once recorded
    again = run(command("good", *FINISHED, "-n", "3"))
    assert again.returncode == 0, again.stderr
    assert results(folder) == before
    other = run(command("good", *FINISHED, "--limit", "3", "--temperature", "0.5"))
    assert other.returncode == 2
    for words in ("limit was None and is 3", "temperature was 1.0 and is 0.5", "another --folder"):
        assert words in other.stderr
    assert results(folder) == before


def test_interrupted_killed_and_without_its_proxy_it_goes_on_to_one_result_for_every_slot(command, tmp_path):
    """Three processes on one folder: interrupted, killed, and one whose proxy is killed, which ends it."""
    words, folder = command("waits", "--samples", "2", "-n", "2", "--retry", "5"), tmp_path / "run"
    with started(words, folder, 3) as process:
        process.send_signal(signal.SIGINT)
        time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "goes on from here" in said
    assert "Traceback" not in said
    kept = results(folder)
    assert 3 <= len(kept) < 16
    assert list((folder / "workspaces").iterdir()) == []
    assert not (folder / "sockets.json").exists()

    with started(words, folder, len(kept) + 1) as process:
        process.kill()
    killed_at = results(folder)
    assert {row["rollout"] for row in kept} < {row["rollout"] for row in killed_at}
    assert len(killed_at) < 16

    with started(words, folder, len(killed_at) + 1) as process:
        (pid, _) = json.loads((folder / "processes.json").read_text())["proxy"]
        os.kill(pid, signal.SIGKILL)
        _, said = process.communicate(timeout=100)
    assert process.returncode == 0, said
    found = results(folder)
    assert [(row["task"], row["slot"]) for row in found] == [
        (f"tiny/{split}/{i}", slot)
        for split, count in (("train", 5), ("test", 3))
        for i in range(count)
        for slot in range(2)
    ]
    assert {row["rollout"] for row in killed_at} <= {row["rollout"] for row in found}
    assert {(row["verdict"], row["reward"]) for row in found} == {("valid", 1.0)}
    assert summary(folder)["graded"] == 16
    assert list((folder / "workspaces").iterdir()) == []


@contextmanager
def started(words, folder, count):
    """The command in a process of its own, once it has written `count` results."""
    path = folder / "results.jsonl"
    with subprocess.Popen(words, env=ENV, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and process.poll() is None:
            if path.exists() and len(path.read_text().splitlines()) >= count:
                break
            time.sleep(0.05)
        yield process


def test_what_cannot_be_graded_is_told_and_is_no_zero(command, tmp_path):
    done = run(command("never_calls", "--limit", "2", "--retry", "1"))
    assert done.returncode == 1, done.stderr
    for row in results(tmp_path / "run"):
        assert (row["reward"], row["verdict"], row["cause"], row["attempts"]) == (
            None,
            "infrastructure_error",
            "no_calls",
            2,
        )
        assert "never called the proxy" in row["detail"]
    told = summary(tmp_path / "run")
    assert (told["graded"], told["not_graded"], told["reward"]["mean"], told["causes"]) == (
        0,
        2,
        None,
        {"no_calls": 2},
    )
    assert "2 no_calls" in done.stderr


def test_a_timeout_of_ones_own_is_the_agents_failure(command, tmp_path):
    done = run(command("sleeps", "--limit", "1", "--timeout", "3"))
    assert done.returncode == 0, done.stderr
    (row,) = results(tmp_path / "run")
    assert (row["reward"], row["verdict"], row["cause"]) == (0.0, "valid", "harness_timeout")


def test_good_rollouts_are_kept_and_exported(command, tmp_path):
    (tmp_path / "script.toml").write_text('answers = ["first", "second"]')
    out = tmp_path / "good.jsonl"
    words = [
        "--keep-above",
        "0.5",
        "--export",
        "sft",
        str(out),
        "-n",
        "1",
        "--split",
        "train",
    ]
    done = run(command("good", *words, upstream=f"scripted:{tmp_path / 'script.toml'}", tasks="Picky"))
    assert done.returncode == 0, done.stderr
    kept = {row["rollout"] for row in results(tmp_path / "run") if row["reward"] == 1.0}
    assert 0 < len(kept) < 5
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert {line["rollout_id"] for line in lines} == kept
    assert all(line["messages"][-1]["content"] == "first" for line in lines)
    assert f"{5 - len(kept)} were rejected" in done.stdout
    told = summary(tmp_path / "run")
    assert told["pass@1"]["mean"] == pytest.approx(len(kept) / 5)


@contextmanager
def serving(words, folder):
    """The command while it serves: a client of its endpoints, and the process."""
    with subprocess.Popen(words, env=ENV, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while (
            not (folder / "endpoints.json").exists()
            and time.monotonic() < deadline
            and process.poll() is None
        ):
            time.sleep(0.05)
        told = json.loads((folder / "endpoints.json").read_text())
        headers = {"authorization": f"Bearer {told['key']}"}
        with httpx.Client(base_url=told["url"], headers=headers, trust_env=False, timeout=60) as http:
            yield http, process
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)


def test_a_node_without_tasks_of_its_own_is_driven_over_http(command, tmp_path):
    words = command("good", "--serve", "127.0.0.1:0")
    at = words.index("--tasks")
    del words[at : at + 2]
    with serving(words, tmp_path / "run") as (http, process):
        wanted = {"task": {"set": f"{HERE}:Tiny", "id": "tiny/test/1"}, "samples": 2, "harness": "command"}
        made = http.post("/rollouts", json=wanted).json()
        kinds = []
        with http.stream("GET", "/rollouts/events", params={"rollout": made["rollouts"]}) as response:
            kinds = [line for line in response.iter_lines() if line.startswith("event: ")]
        assert kinds.count("event: ended") == 2
        assert [http.get(f"/rollouts/{one}").json()["reward"] for one in made["rollouts"]] == [1.0, 1.0]
    assert process.returncode == 130
    assert not (tmp_path / "run" / "endpoints.json").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--tasks", "nowhere"], "There are no tasks 'nowhere'."),
        (["--split", "training"], "split"),
        (["--split", "test", "--tasks", f"{HERE}:Empty"], "Give other --tasks"),
        (["--sandbox", "dockr"], "no sandbox named 'dockr'"),
        (["--harness", "codx"], "no harness named 'codx'"),
        (["--tasks", f"{HERE}:Containers"], "does not offer image"),
        (["--upstream", "vllm"], "names nothing that answers"),
        (["--keep-above", "1"], "--export FORMAT FILE"),
        (["--set", "argv"], "write KEY=VALUE"),
        (["--set", "agrv=[]"], "there is no such setting"),
        (["--serve", "8200"], "HOST:PORT"),
    ],
)
def test_what_cannot_be_run_says_why_before_anything_runs(command, tmp_path, words, told):
    done = run(command("good", *words))
    assert done.returncode == 2, done.stderr
    assert told in " ".join(done.stderr.replace("│", " ").split())
    assert not (tmp_path / "run" / "results.jsonl").exists() or results(tmp_path / "run") == []


def test_the_folder_of_something_else_is_left_alone(command, tmp_path):
    TraceStore.create(f"sqlite:///{tmp_path}/other/traces.db").close()
    before = sorted((tmp_path / "other").iterdir())
    done = in_process(command("good", folder="other"))
    assert done.returncode == 2
    assert "already has other content" in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted((tmp_path / "other").iterdir()) == before


def test_help_teaches():
    done = run_here(["rollout", "--help"])
    assert done.returncode == 0
    text = " ".join(done.stdout.replace("│", " ").split())
    for words in (
        "harnessgym rollout --tasks shell",
        "--keep-above 1 --export sft",
        "Exit status: 0 done",
        "litellm:",
    ):
        assert words in text
