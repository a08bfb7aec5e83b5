"""`harnessgym wrap`: real commands through a real proxy, with a served tiny policy behind it."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select, update

from harnessgym.errors import ConfigError
from harnessgym.harness import Endpoint
from harnessgym.store import TraceStore, runs
from harnessgym.store.tables import calls, rollouts
from harnessgym.traces.verification.verify import verify
from harnessgym.wrapping.own_proxy import find_upstream
from harnessgym.wrapping.wrap import PROGRAMS, surroundings_of

POLICY = Path(__file__).parents[2] / "environments/lookup/policy"
ENV = os.environ | {"OMP_NUM_THREADS": "1", "NO_COLOR": "1", "COLUMNS": "120"}
AGENT = """
import sys
import anthropic, openai
asked = [{"role": "user", "content": "hello"}]
print(openai.OpenAI().chat.completions.create(model="policy", messages=asked, max_tokens=8).choices[0].finish_reason)
print(anthropic.Anthropic().messages.create(model="policy", messages=asked, max_tokens=8).stop_reason)
sys.exit(7)
"""


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    argv = [sys.executable, "-m", "harnessgym", "engine", str(POLICY), "--port", str(port)]
    with subprocess.Popen(argv, env=ENV) as process:
        url = f"http://127.0.0.1:{port}"
        for _ in range(300):
            try:
                httpx.get(f"{url}/health", trust_env=False)
                break
            except httpx.TransportError:
                time.sleep(0.1)
        yield url
        process.terminate()


def wrap(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "harnessgym", "wrap", "--folder", str(folder), *words]
    return subprocess.run(argv, env=ENV, capture_output=True, text=True, timeout=120, check=False)


def test_any_command_is_recorded_and_keeps_its_exit_status(engine: str, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    done = wrap(tmp_path / "traces", "--upstream", engine, "--", sys.executable, str(tmp_path / "agent.py"))
    assert done.returncode == 7, done.stderr
    assert len(done.stdout.split()) == 2
    assert "1 chat, 1 messages" in done.stderr
    with TraceStore.open(f"sqlite:///{tmp_path}/traces/traces.db") as store:
        assert verify(store).ok
        run = store.read(runs.only)
        assert run is not None
        assert run.status == "done"
        (row,) = store.read(lambda conn: conn.execute(select(rollouts)).mappings().all())
        assert (row["status"], row["stop_reason"], row["harness"]) == ("finished", "harness_error", "command")
        assert len(store.read(lambda conn: conn.execute(select(calls.c.id)).all())) == 2
    again = wrap(
        tmp_path / "traces",
        "--upstream",
        engine,
        "--turns",
        "1",
        "--",
        sys.executable,
        str(tmp_path / "agent.py"),
    )
    assert again.returncode != 0
    assert "1 limit" in again.stderr


def test_a_command_is_replayed_from_its_record(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(
        AGENT.replace("finish_reason", "message.content").replace("stop_reason", "content[0].text")
    )
    words = ["--", sys.executable, str(tmp_path / "agent.py")]
    done = wrap(tmp_path / "traces", "--upstream", "scripted", *words)
    assert "Hello! I am" in done.stdout, done.stderr
    with TraceStore.open(f"sqlite:///{tmp_path}/traces/traces.db") as store:
        (recorded,) = store.read(lambda conn: conn.execute(select(rollouts.c.id)).scalars().all())
        again = wrap(tmp_path / "traces", "--upstream", f"replay:{recorded}", *words)
        assert (again.returncode, again.stdout) == (7, done.stdout), again.stderr
        hashes = store.read(
            lambda conn: conn.execute(select(calls.c.completion_hash, calls.c.upstream)).all()
        )
        assert len({row.completion_hash for row in hashes}) == 1
        assert [row.upstream for row in hashes].count("replay") == 2
        assert verify(store).ok
    (tmp_path / "agent.py").write_text(AGENT.replace("hello", "good bye"))
    other = wrap(tmp_path / "traces", "--upstream", f"replay:{recorded}", *words)
    assert other.returncode == 1
    assert "message 0 (user)" in other.stderr


def test_what_answers_must_be_named(tmp_path: Path) -> None:
    done = wrap(tmp_path, "--", "true")
    assert done.returncode == 2
    for known in ("http://HOST:PORT", "litellm:", "scripted"):
        assert known in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--upstream", "vllm"], "names nothing that answers"),
        (["--upstream", "http://127.0.0.1:1"], "Is it up?"),
        (["--upstream", "scripted:/nowhere.toml"], "no script"),
        (["--join", "/nowhere"], "no run has its proxy there"),
        (["--upstream", "scripted", "--harness", "codx"], "no harness named"),
    ],
)
def test_what_cannot_be_wrapped_says_why(tmp_path: Path, words: list[str], told: str) -> None:
    done = wrap(tmp_path, *words, "--", "true")
    assert done.returncode == 2
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_a_command_that_is_not_there(engine: str, tmp_path: Path) -> None:
    done = wrap(tmp_path, "--upstream", engine, "--", "/no/such/program")
    assert done.returncode == 2
    assert "cannot be started" in done.stderr


@pytest.mark.parametrize("program", sorted(PROGRAMS))
def test_a_known_harness_gets_its_settings_and_no_argument_has_the_key(program: str) -> None:
    given = surroundings_of([f"/usr/bin/{program}"], Endpoint("http://127.0.0.1:9/x", "secret-key"), None)
    assert given.harness == PROGRAMS[program]
    said = [*given.env.values(), *given.files.values()]
    assert any("http://127.0.0.1:9/x" in text for text in said)
    assert any("secret-key" in text for text in said)


def test_an_engine_whose_folder_is_elsewhere_needs_one(engine: str) -> None:
    found = find_upstream(engine, None, None)
    assert found.policy.resolve() == POLICY.resolve()
    assert found.max_length > 0
    with pytest.raises(ConfigError, match="Give --policy"):
        find_upstream(engine, Path("/nowhere"), None)


def only_rollout(folder: Path) -> Any:
    with TraceStore.open(f"sqlite:///{folder}/traces.db") as store:
        return store.read(lambda conn: conn.execute(select(rollouts).order_by(rollouts.c.started_at)).first())


def test_a_command_that_cannot_be_started_leaves_no_rollout_running(engine: str, tmp_path: Path) -> None:
    wrap(tmp_path, "--upstream", engine, "--", "/no/such/agent")
    row = only_rollout(tmp_path)
    assert (row.status, row.cause) == ("failed", "harness_unusable")


def test_a_killed_wrap_is_ended_by_the_next_one(engine: str, tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "harnessgym", "wrap", "--folder", str(tmp_path), "--upstream", engine]
    sleeper = [sys.executable, "-c", f"open({str(tmp_path / 'begun')!r}, 'w'); import time; time.sleep(60)"]
    with subprocess.Popen([*argv, "--", *sleeper], env=ENV, start_new_session=True) as process:
        while not (tmp_path / "begun").exists():
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGKILL)
    assert only_rollout(tmp_path).status == "running"
    assert only_rollout(tmp_path).lease_expires < time.time() + 600
    with TraceStore.open(f"sqlite:///{tmp_path}/traces.db") as store:  # as if two minutes had passed
        store.write(lambda conn: conn.execute(update(rollouts).values(lease_expires=0.0)))
    assert wrap(tmp_path, "--upstream", engine, "--", sys.executable, "-c", "pass").returncode == 0
    row = only_rollout(tmp_path)
    assert (row.status, row.cause) == ("failed", "node_lost")


def test_a_script_that_cannot_be_played_says_so_at_once(tmp_path: Path) -> None:
    script = tmp_path / "script.toml"
    script.write_text('answers = [{ text = "There.", reasoning = "The shipped policy does not reason." }]')
    begun = time.monotonic()
    done = wrap(tmp_path / "traces", "--upstream", f"scripted:{script}", "--", "true")
    assert done.returncode == 2
    assert "answer 1 cannot be played" in " ".join(done.stderr.split())
    assert time.monotonic() - begun < 25  # instead of the 30 s for which a proxy is asked again
