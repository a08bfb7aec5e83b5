"""The runs of the suite: every harness on a task with a sub-agent where it has one, under faults, and out
of room.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from harnessgym.harness import Harness
from harnessgym.registry import load
from tests.suites.harnesses.actor import Part
from tests.suites.harnesses.grammars import GRAMMARS
from tests.suites.harnesses.line import Tear
from tests.suites.harnesses.plans import TOOLS

ROOM = 128_000
_WASM = ("qwen_code", "gemini_cli")
"""Node agents with a parser in WebAssembly. Node optimises it on another thread, and an agent that has ended
waits for that: 4 s of processor time a run, without which they do the same."""
_LIFTOFF_ONLY = {
    "NODE_OPTIONS": "--import data:text/javascript,import%20v8%20from%20'node:v8';"
    "v8.setFlagsFromString('--liftoff-only')"
}


@dataclass(frozen=True, slots=True)
class Scenario:
    """One run."""

    harness: str
    plan: str
    """task: write a file, ask a sub-agent. faults: errors of the policy, of an engine and of the line.
    torn: an answer breaks off on the line. long: out of room."""
    protocol: str
    streams: bool = True
    tear: Tear | None = None
    """Where the answer breaks off."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    """What lies in the workspace before the run."""
    grammar: str = "hermes"
    """In which the policy writes calls."""
    history: str = "keep"
    max_length: int = ROOM
    agents: int = 1
    side: frozenset[str] = frozenset()
    """Kinds of calls that the harness's rules must have tagged."""

    @property
    def title(self) -> str:
        """Harness and plan."""
        return (
            f"{self.harness}: {self.plan}"
            if self.tear is None
            else f"{self.harness}: {self.plan} {self.tear}"
        )

    @property
    def name(self) -> str:
        """What tells it from the others."""
        history = "" if self.history == "keep" else f", {self.history}"
        grammar = "" if self.grammar == "hermes" else f", {self.grammar}"
        return f"{self.title}, {self.protocol}{'' if self.streams else ' unstreamed'}{grammar}{history}"

    @property
    def line(self) -> dict[str, Any]:
        """What befalls the line and the engines: options of `open_stage`."""
        if self.tear is not None:
            return {"tear": self.tear}
        return {"lost": (1,), "deaths": (1,)} if self.faulty else {}

    @property
    def faulty(self) -> bool:
        """Whether engines die and the line is cut."""
        return self.plan == "faults"

    def make(self) -> Harness:
        """The harness with its settings."""
        factory = load("harness", self.harness)
        settings = {"env": _LIFTOFF_ONLY, **self.settings} if self.harness in _WASM else self.settings
        harness: Harness = factory(factory.settings(**settings))
        return harness

    def parts(self) -> Mapping[str, Part]:
        """What the policy does."""
        tools = TOOLS[self.harness]
        if self.tear is not None:
            return tools.torn(self.tear)
        parts: Mapping[str, Part] = getattr(tools, self.plan)()
        return parts


_TASKS = [
    Scenario("qwen_code", "task", "chat", agents=2),
    Scenario("pi", "task", "chat"),
    Scenario("opencode", "task", "chat", agents=2, side=frozenset({"side"})),
    Scenario("mini_swe_agent", "task", "chat", streams=False),
    Scenario("deepagents", "task", "chat", streams=False, agents=2),
    Scenario("claude_code", "task", "messages", agents=2),
    Scenario("codex", "task", "responses", agents=2),
    Scenario("openai_agents", "task", "responses", streams=False, agents=2),
    Scenario("gemini_cli", "task", "gemini", agents=2),
]


_OTHER_PROTOCOLS = [
    Scenario("pi", "task", "messages", settings={"protocol": "messages"}),
    Scenario("pi", "task", "responses", settings={"protocol": "responses"}),
    Scenario("openai_agents", "task", "chat", settings={"api": "chat", "stream": True}, agents=2),
    Scenario("openai_agents", "task", "responses", settings={"stream": True}, agents=2),
    Scenario("deepagents", "task", "responses", streams=False, settings={"api": "responses"}, agents=2),
]
_FAULTS = [replace(each, plan="faults", agents=1) for each in _TASKS]
_PATIENT = ("qwen_code", "pi", "opencode", "claude_code", "codex")
"""Those that are streamed to and ask again when a stream ends early."""
_TEARS: tuple[Tear, ...] = ("thought", "words", "call")
_TORN = [
    replace(each, plan="torn", tear=tear) for each in _TASKS if each.harness in _PATIENT for tear in _TEARS
]
_SMALL = {"context_window": 14_000, "max_tokens": 1_024}
_LONG = [
    Scenario("qwen_code", "long", "chat", max_length=24_000, side=frozenset({"compaction"})),
    Scenario("pi", "long", "chat", settings=_SMALL, max_length=14_000, side=frozenset({"compaction"})),
    Scenario(
        "opencode",
        "long",
        "chat",
        settings={**_SMALL, "context_window": 20_000},
        side=frozenset({"side", "compaction"}),
    ),
    Scenario("claude_code", "long", "messages", max_length=22_000, side=frozenset({"compaction"})),
    Scenario(
        "codex", "long", "responses", settings={"context_window": 18_000}, side=frozenset({"compaction"})
    ),
    Scenario(
        "gemini_cli",
        "long",
        "gemini",
        settings={"context_window": 24_000},
        files={".gemini/settings.json": '{"model": {"skipNextSpeakerCheck": false}}'},
        side=frozenset({"side", "compaction"}),
    ),
]
OTHER_GRAMMARS = [replace(each, grammar=grammar) for each in _TASKS for grammar in GRAMMARS]
"""Every harness with policies that write calls in another grammar than hermes."""
SCENARIOS = [*_TASKS, *_OTHER_PROTOCOLS, *_FAULTS, *_TORN, *_LONG]
ABLATION = [replace(each, history="template") for each in (*_TASKS, *_FAULTS, *_LONG)]
"""The same with every prompt rendered anew by the chat template, as an engine behind a proxy of text does
it."""
