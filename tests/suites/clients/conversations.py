"""Plays the cases of a client against a proxy and a scripted policy, and reads what was recorded."""

import asyncio
import json
import os
import re
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from harnessgym.harness import Endpoint
from harnessgym.proxy_client import ControlClient
from harnessgym.run_config.session import SessionOptions
from harnessgym.store import policies, rollouts, runs
from harnessgym.store.policies import PolicyVersion
from harnessgym.store.rollouts import RolloutRow
from harnessgym.store.trace_store import TraceStore
from harnessgym.store.workers import WorkerRow
from harnessgym.task import Task
from harnessgym.traces.verification.verify import verify
from harnessgym.wrapping.wrap import surroundings_of
from proxies.app import Proxy, ProxySettings
from proxies.renderers.template import TemplateRenderer
from proxies.upstreams.scripted import ScriptedUpstream
from tests.suites.clients.cases import EVIDENCE, FOUND, PARTS, Case, Client
from tests.suites.harnesses.actor import Actor
from tests.suites.harnesses.observed import facts_of
from tests.suites.harnesses.run import POLICY, language

_KEY = "control-key"
_WAIT_S = 180.0
_RESULT = re.compile(r"(?:<tool_response>|Observation:)(.*?)(?:</tool_response>|<\|im_end\|>)", re.DOTALL)
"""What a tool gave; smolagents tells it in the user's words."""
_EDIT = "hello.txt\n```\n<<<<<<< SEARCH\n=======\nhello\n>>>>>>> REPLACE\n```\n"
_SETTLED = {"delivered", "acknowledged"}


class Policy(Actor):
    """Plays the parts, and what has no tools: aider's edit and commit message, and smolagents' code.

    It ends a part as planned only if the tool's result reached it.
    """

    def _answer(self, text: str) -> str:
        if "one-line Git commit messages" in text:
            return "<think>\nShort.\n</think>\n\nAdd hello.txt"
        if "*SEARCH/REPLACE block*" in text:
            return f"<think>\nA new file.\n</think>\n\n{_EDIT}"
        if "[[code]]" in text:
            code = f'final_answer("{FOUND}")' if "a is 47" in text else 'print(find("a"))'
            return f"<think>\nCode.\n</think>\n\nThought: I write code.\n<code>\n{code}\n</code>"
        answer = super()._answer(text)
        results = "".join(_RESULT.findall(text))
        if "Nothing to add." in answer and EVIDENCE[FOUND] in results:  # AutoGen reflects without tools
            return answer.replace("Nothing to add.", FOUND)
        lacking = [said for said, word in EVIDENCE.items() if said in answer and word not in results]
        return "The tool did not tell." if lacking else answer


@dataclass(frozen=True)
class Conversation:
    """One case as it was played: what the client said, and what the store says of it."""

    client: str
    version: str
    case: str
    protocols: Sequence[str]
    streamed: int
    answer: str
    calls: int
    statuses: Mapping[str, int]
    agents: int
    kinds: Mapping[str, int]
    breaks: Mapping[str, int]
    rows: int
    """Branches that are trained."""
    sampled: int
    trained: int
    excluded: Mapping[str, int]
    lost: int
    wrong_context: int
    incomplete: str | None


def complaints(seen: Conversation, case: Case) -> list[str]:
    """What is wrong with a conversation; nothing if all is well."""
    streamed = case.streamed if case.streamed is not None else case.calls if case.streams else 0
    side = {"side": case.side} if case.side else {}
    claims = {
        f"the client made {seen.answer!r} of it": seen.answer == case.answer,
        f"calls ended as {dict(seen.statuses)}": set(seen.statuses) <= _SETTLED,
        f"it spoke {list(seen.protocols)}": list(seen.protocols) == [case.protocol],
        # Gemini says in the path whether it streams, which is not recorded.
        f"{seen.streamed} of {seen.calls} calls were streamed": case.protocol == "gemini"
        or seen.streamed == streamed,
        f"calls are of the kinds {dict(seen.kinds)}": dict(seen.kinds)
        == {"policy": case.calls - case.side, **side},
        f"it has {seen.agents} agents": seen.agents == 1,
        f"it has {seen.rows} branches": seen.rows == case.branches,
        f"it breaks off: {dict(seen.breaks)}": dict(seen.breaks)
        == {**case.breaks, **({"sub_agent": case.side} if case.side else {})},
        f"excluded are {dict(seen.excluded)}": set(seen.excluded) == ({"side_call"} if case.side else set()),
        f"{seen.trained} trained + {dict(seen.excluded)} are not {seen.sampled}": seen.trained
        + sum(seen.excluded.values())
        == seen.sampled,
        f"{seen.lost} tokens lost, {seen.wrong_context} under a wrong context": not seen.lost
        and not seen.wrong_context,
        f"the record is incomplete: {seen.incomplete}": seen.incomplete is None,
    }
    return [complaint for complaint, well in claims.items() if not well]


async def play(client: Client) -> list[Conversation]:
    """Play all cases of a client, in their order. Raises `AssertionError` if the program fails, or if
    `traces verify` finds anything.
    """
    with tempfile.TemporaryDirectory(prefix="hg-client-") as name:
        folder = Path(name)
        with TraceStore.create(f"sqlite:///{folder}/traces.db") as store:
            rows = _rollouts(store, len(client.cases))
            async with (
                _proxy(store, rows[0].run_id) as proxy,
                ControlClient(proxy.control_address, _KEY) as control,
            ):
                sessions = [
                    await control.open_session(
                        row.id,
                        sampling={"max_tokens": 1_024},
                        options=SessionOptions(constraints="prompt", side_calls=case.side_calls),
                    )
                    for row, case in zip(rows, client.cases, strict=True)
                ]
                answers = await _run(client, [f"{proxy.url}/s/{each.key}" for each in sessions], folder)
                for session in sessions:
                    await control.seal(session.session_id)
            findings = [f"{each.kind} at {each.where}: {each.message}" for each in verify(store).findings]
            assert not findings, findings
            return [
                _read(store, client, case, row, answers.get(case.name, ""))
                for row, case in zip(rows, client.cases, strict=True)
            ]


def _read(store: TraceStore, client: Client, case: Case, row: RolloutRow, answer: str) -> Conversation:
    facts = store.read(lambda conn: facts_of(conn, row.id, row.group_id))
    forest = facts["divergence"]["forest"]
    same = ("protocols", "streamed", "calls", "statuses", "agents", "kinds", "breaks", "sampled", "trained",
            "excluded", "incomplete")  # fmt: skip
    return Conversation(
        client=client.name,
        version=client.version,
        case=case.name,
        answer=answer.strip(),
        rows=forest["rows"],
        lost=forest["lost"],
        wrong_context=forest["wrong_context"],
        **{name: facts[name] for name in same},
    )


async def _run(client: Client, bases: Sequence[str], folder: Path) -> dict[str, str]:
    """The answers that the program read, by case."""
    home = folder / "home"
    home.mkdir()
    cases = [
        {
            "name": case.name,
            "env": surroundings_of((client.program,), Endpoint(base, base.rpartition("/")[2]), "command").env,
            "protocol": case.protocol,
            "streams": case.streams,
            "prompt": case.prompt,
        }
        for case, base in zip(client.cases, bases, strict=True)
    ]
    (folder / "cases.json").write_text(json.dumps(cases))
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG", "JAVA_HOME")}
    process = await asyncio.create_subprocess_exec(
        *client.command,
        str(client.path),
        str(folder / "cases.json"),
        *client.args,
        cwd=home,
        env={**kept, "HOME": str(home), **client.env},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        stdout, stderr = await asyncio.wait_for(process.communicate(), _WAIT_S)
    finally:
        if process.returncode is None:
            os.killpg(process.pid, 9)
            await process.wait()
    assert process.returncode == 0, f"{client.name}: {stderr.decode()[-4_000:]}"
    answers: dict[str, str] = json.loads(stdout.decode().splitlines()[-1])
    return answers


@asynccontextmanager
async def _proxy(store: TraceStore, run_id: str) -> AsyncIterator[Proxy]:
    spoken = language()
    assert isinstance(spoken.renderer, TemplateRenderer)
    upstream = ScriptedUpstream(Policy(spoken.renderer, PARTS))
    settings = ProxySettings(
        store=store.url,
        run_id=run_id,
        policy=POLICY,
        control_key=_KEY,
        port=0,
        control_port=0,
        max_length=128_000,
        worker_wait_s=5.0,
    )
    proxy = Proxy(settings, store, language=spoken, connect=lambda _: upstream)
    await proxy.start()
    try:
        await proxy.workers.put(WorkerRow("w0", run_id, "scripted", "w0", 0, "ready"))
        yield proxy
    finally:
        await proxy.stop()


def _rollouts(store: TraceStore, count: int) -> list[RolloutRow]:
    run_id = store.write(lambda conn: runs.add(conn, "clients", {}, "0", "training"))
    policy_id = store.write(lambda conn: policies.register(conn, run_id, "policy"))
    first = PolicyVersion(0, None, "full", "v0", 0, "", 0, committed=True, orphaned=False)
    store.write(lambda conn: policies.publish(conn, policy_id, first))
    task_id = store.write(lambda conn: runs.add_task(conn, "clients", Task("talk", "Talk.")))
    for ordinal in range(count):
        spec = rollouts.GroupSpec(
            run_id, task_id, policy_id, "evaluation", ordinal, 0, {}, ("client",), "process", (0,)
        )
        store.write(lambda conn, spec=spec: rollouts.submit(conn, spec))  # type: ignore[misc]
    return list(store.write(lambda conn: rollouts.claim(conn, run_id, "node", 600.0, count)))
