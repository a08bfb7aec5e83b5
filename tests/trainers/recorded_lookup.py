"""The shipped lookup task, played by a policy in this process and recorded as the proxy would: training
without a live run.

What is played is what `examples/lookup_openai.py` and `examples/lookup_pair.py` do.
"""

import threading
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from environments.lookup import LookupTasks
from environments.lookup.protocol import CATALOG_FILE, MAX_TURNS, SYSTEM_PROMPT, TOOLS, Catalog
from harnessgym.config import validate
from harnessgym.message import Message, ToolSpec
from harnessgym.outcome.failure import StopReason
from harnessgym.run_config.run import RunConfig
from harnessgym.run_folder import RunFolder, write_json
from harnessgym.store import TraceStore, agents, calls, policies, rollouts, runs, sessions
from harnessgym.store.agents import AgentRow
from harnessgym.store.rollouts import GroupSpec, RolloutOutcome
from harnessgym.store.tables import new_id
from harnessgym.tokens import VersionSpan, hash_ids
from harnessgym.traces.forest import Forest
from proxies.language import PolicyLanguage
from tests.trainers.recorded_run import learner_of
from trainers.engine.engine import build_engine
from trainers.engine.sequence import Sequence, SequenceSampling
from trainers.policies.loading import load_policy

MODEL = Path(__file__).parents[2] / "environments/lookup/policy"
_TOOLS = [
    ToolSpec(**{key: tool["function"][key] for key in ("name", "description", "parameters")})
    for tool in TOOLS
]


@dataclass
class Said:
    """One call of an agent: what was sampled, behind which call, and the tokens that were new in its
    prompt.
    """

    agent: str
    after: "Said | None"
    added: list[int]
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)

    @property
    def prompt(self) -> list[int]:
        before = [] if self.after is None else [*self.after.prompt, *self.after.ids]
        return [*before, *self.added]

    def take(self, chunk) -> None:
        self.ids += chunk.ids
        self.logprobs += chunk.logprobs
        if chunk.finish:
            self.done.set()


Play = Generator[list[Said], None, str]
"""Asks for calls that are sampled side by side, and ends with what the agents answer."""


class Player:
    """Plays groups of tasks with the weights that it is given, many rollouts at a time."""

    def __init__(self) -> None:
        self.language = PolicyLanguage.of_policy(MODEL)
        self.engine = build_engine(load_policy(MODEL), max_batch=64, cached_sequences=1, max_length=512)
        self.engine.start()

    def close(self) -> None:
        self.engine.close()

    def play(
        self, weights, version, plays: list[Play], seeds: np.random.Generator
    ) -> list[tuple[list[Said], str]]:
        """What was said in each, and the answers."""
        self.engine.install(weights, version).result()
        said: list[list[Said]] = [[] for _ in plays]
        answers = [""] * len(plays)
        going = dict(enumerate(plays))
        while going:
            asked = []
            for at, play in list(going.items()):
                try:
                    asked += [(at, call) for call in next(play)]
                except StopIteration as end:
                    answers[at] = end.value
                    del going[at]
            for at, call in asked:
                sampling = SequenceSampling(
                    48,
                    seed=int(seeds.integers(1 << 31)),
                    stop_token_ids=frozenset(self.language.stop_token_ids),
                )
                self.engine.submit(Sequence(call.prompt, sampling, call.take))
                said[at].append(call)
            for _, call in asked:
                assert call.done.wait(60)
        return list(zip(said, answers, strict=True))

    def look_up(self, task, agent="main", tries=1) -> Play:
        """One agent; "?" if `tries` samples of one of its first two turns call for different things."""
        catalog = Catalog.from_json(task.files[CATALOG_FILE])
        messages = [Message("system", SYSTEM_PROMPT), Message("user", task.instruction)]
        last, added = None, self.language.renderer.render(messages, _TOOLS)
        for turn in range(MAX_TURNS):
            calls = [Said(agent, last, added) for _ in range(tries if turn < 2 else 1)]
            yield calls
            found = [self.language.read(call.ids) for call in calls]
            last, message = calls[0], found[0]
            if any(meaning(other) != meaning(message) for other in found):
                return "?"
            if not message.tool_calls:
                break
            results = [
                Message("tool", catalog.call(call.name, call.parsed), tool_call_id=call.id)
                for call in message.tool_calls
            ]
            added = self.language.renderer.extend([*last.prompt, *last.ids], results, _TOOLS)
            if added is None:  # cut off
                break
        return message.content.strip()

    def pair(self, task) -> Play:
        """A scout, and where it is unsure a helper that begins anew."""
        answer = yield from self.look_up(task, "main", tries=2)
        return answer if answer != "?" else (yield from self.look_up(task, "helper"))


def meaning(message):
    return [(call.name, call.canonical) for call in message.tool_calls] or message.content.strip()


class Recorder:
    """A run whose rollouts are played here, group by group, with the newest weights of its learner."""

    def __init__(self, root, player: Player, kind="look_up", **trainer) -> None:
        config = {
            "name": "lookup", "policy": {"path": str(MODEL)}, "tasks": {"set": "lookup"}, "harnesses": [{"name": "h"}],
            "trainer": {"steps": 100, "groups_per_step": 4, "group_size": 8, "max_staleness": 0} | trainer,
        }  # fmt: skip
        self.player, self.kind = player, kind
        self.folder = RunFolder(root)
        write_json(self.folder.config_path, validate(RunConfig, config, "test").model_dump(mode="json"))
        self.store = TraceStore.create(self.folder.store_url())
        self.run_id = self.store.write(lambda conn: runs.add(conn, "t", config, "0", "training"))
        self.learner = learner_of(self.folder, self.store)
        self.options = self.folder.config().trainer
        self.tasks = LookupTasks().tasks("train")
        self.ordinal, self.seeds = 0, np.random.default_rng(0)

    def close(self) -> None:
        self.learner.settle()
        self.store.close()

    def step(self) -> float:
        """Play and record a batch, train on it from the store, and give the mean reward of what was
        sampled.
        """
        drawn = [
            self.tasks[(self.ordinal + at) % len(self.tasks)] for at in range(self.options.groups_per_step)
        ]
        plays = [
            getattr(self.player, self.kind)(task) for task in drawn for _ in range(self.options.group_size)
        ]
        version, weights = self.learner.version, self.learner.trained_policy.policy.published()
        played = iter(
            self.player.play(
                {name: tensor.clone() for name, tensor in weights.items()}, version, plays, self.seeds
            )
        )
        rewards = [
            self._record(task, [next(played) for _ in range(self.options.group_size)], version)
            for task in drawn
        ]
        self.learner.train_step(list(self.learner.arriving()))
        self.learner.settle()
        return float(np.mean(rewards))

    def _record(self, task, played, version) -> float:
        size, rewards = (
            self.options.group_size,
            [float(answer == task.metadata["answer"]) for _, answer in played],
        )

        def write(conn) -> None:
            task_id = runs.add_task(conn, "lookup", task)
            policy_id = policies.register(conn, self.run_id, "policy")
            spec = GroupSpec(
                self.run_id,
                task_id,
                policy_id,
                "train",
                self.ordinal,
                version,
                {},
                ("h",) * size,
                "process",
                tuple(range(size)),
            )
            rollouts.submit(conn, spec)
            for row in rollouts.claim(conn, self.run_id, "node", 60.0, size):
                said, _ = played[row.slot]
                record(conn, row.id, said, version)
                rollouts.finish(
                    conn, RolloutOutcome(row.id, StopReason.FINISHED, "valid", {"reward": rewards[row.slot]})
                )

        self.store.write(write)
        self.ordinal += 1
        return float(np.mean(rewards))


def record(conn, rollout_id, said: list[Said], version) -> None:
    """A session with these calls. The first agent is the main one and started the others."""
    session = sessions.add(conn, rollout_id, new_id(), sampling={"temperature": 1.0})
    forest, ends, names = Forest(session.id), {}, dict[str, str]()
    for ordinal, call in enumerate(said):
        if call.agent not in names:
            parent = next(iter(names.values()), None)
            names[call.agent] = new_id()
            row = AgentRow(
                names[call.agent], rollout_id, session.id, call.agent, call.agent, parent, "content"
            )
            agents.add(conn, row)
        call_id, prompt = new_id(), call.prompt
        segment, fresh = forest.add_prompt(call.added, None if call.after is None else ends[id(call.after)])
        intent = calls.CallIntent(
            call_id, session.id, rollout_id, ordinal, "chat", "policy", "keep", new_id(), new_id(), len(prompt),
            hash_ids(prompt), segment.id, "engine", agent_id=names[call.agent],
            sampling_applied={"temperature": 1.0, "top_p": 1.0, "top_k": 0},
        )  # fmt: skip
        calls.intend(conn, intent, segment if fresh else None)
        completion = forest.add_completion(call_id, segment.id, call.ids, call.logprobs, new_id())
        ends[id(call)] = completion.id
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(call.ids)}
        spans = (VersionSpan(0, len(call.ids), version),)
        outcome = calls.CallOutcome(
            call_id, completion, spans, new_id(), "stop", None, "engine", usage, {}, "delivered"
        )
        calls.finish(conn, outcome)
    sessions.seal(conn, session.id)
