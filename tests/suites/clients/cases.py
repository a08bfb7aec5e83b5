"""The clients of the suite, at pinned versions, each with the conversations that it has.

Each client is one program of `programs/`, which plays all its cases in one process, with the variables that
`harnessgym wrap` sets. A client that would change the versions of our own environment has one of its own in
the user's cache, beside the agents'.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harnessgym.cli.side_calls import rules_of
from harnessgym.harness import SideCallRule
from harnessgym.harnesses.agent_file import OpenAIAgents, OpenAIAgentsConfig
from harnessgym.harnesses.program import NODE, ProgramConfig, PythonProgram
from harnessgym.sandbox import InstallStep
from tests.suites.harnesses.actor import Move, Part, Use

PROGRAMS = Path(__file__).parent / "programs"
_CONFIG = ProgramConfig()
FOUND = "It is 47."
DONE = "It is done."
WRITTEN = "It is written."
NO_IMAGES = "This model does not support image input: it reads text only."
_LOOK = Move("I look it up.", (Use(("find",), {"key": "a"}),), thought="A tool knows that.")


@dataclass(frozen=True, slots=True)
class Case:
    """One conversation: a call of a tool, then words."""

    name: str
    protocol: str
    streams: bool = False
    part: str = "find"
    """What the policy plays; see `PARTS`."""
    answer: str = FOUND
    """What the client must make of it."""
    calls: int = 2
    side: int = 0
    """Side calls among them."""
    streamed: int | None = None
    """Calls that are streamed, if not all or none are."""
    branches: int = 1
    """More where the client itself rewrites the history."""
    breaks: Mapping[str, int] = field(default_factory=dict)
    """Why calls of the policy begin a branch, beside those of side calls."""
    side_calls: tuple[SideCallRule, ...] = ()

    @property
    def prompt(self) -> str:
        """What the client asks."""
        return f"[[{self.part}]] Do what is to be done."


@dataclass(frozen=True, slots=True)
class Client:
    """One program."""

    name: str
    version: str
    program: str
    steps: Callable[[], Sequence[InstallStep]]
    """What installs it."""
    command: tuple[str, ...]
    """What runs the program; the cases' file follows the program's own."""
    cases: tuple[Case, ...]
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    needs: str = "agents"
    """What must be on the machine: a marker of the tests."""

    @property
    def path(self) -> Path:
        """The program's file."""
        return PROGRAMS / self.program


def python_program(name: str, version: str, *requirements: str) -> PythonProgram:
    """A client from PyPI, in an environment of its own."""
    return PythonProgram(_CONFIG, name, version, requirements)


def both(protocols: Sequence[str], **same: object) -> tuple[Case, ...]:
    """A case of each protocol, plain and streamed."""
    return tuple(
        Case(f"{protocol} {'streamed' if streams else 'plain'}", protocol, streams, **same)  # type: ignore[arg-type]
        for protocol in protocols
        for streams in (False, True)
    )


_VERCEL = f"{_CONFIG.folder}/vercel_ai_sdk-7.0.173"
_NODE = f"{_CONFIG.folder}/node-{NODE}"
_VERCEL_PACKAGES = ("ai@7.0.173", "@ai-sdk/openai@4.0.118", "@ai-sdk/anthropic@4.0.105", "@ai-sdk/google@4.0.121",
                    "zod@4.6.7")  # fmt: skip


def _npm(folder: str, *packages: str) -> InstallStep:
    return InstallStep(
        ("npm", "install", "--prefix", folder, "--no-audit", "--no-fund", "--loglevel=error", *packages)
    )


_PYDANTIC = python_program("pydantic_ai", "2.68.0", "pydantic-ai-slim[openai,anthropic,google]==2.68.0")
_CLAUDE = python_program("claude_agent_sdk", "0.2.189", "claude-agent-sdk==0.2.189")
_AIDER = python_program("aider", "0.86.2", "aider-chat==0.86.2")
_AGENTS = OpenAIAgents(OpenAIAgentsConfig())
_COMMIT = rules_of(['{name = "commit", no_tools = true, system_pattern = "commit message"}'])
_TOOL_CASES = tuple(
    Case(f"{tool} {'streamed' if streams else 'plain'}", "responses", streams, tool, answer)
    for tool, answer in (("shell", FOUND), ("local_shell", FOUND), ("apply_patch", WRITTEN))
    for streams in (False, True)
)
_SCREENS = tuple(
    Case(f"computer {way}", "responses", way == "streamed", "computer", NO_IMAGES, calls=1)
    for way in ("plain", "streamed")
)

CLIENTS = (
    Client(
        "vercel_ai_sdk",
        "ai 7.0.173, openai 4.0.118, anthropic 4.0.105, google 4.0.121",
        "vercel_ai_sdk.mjs",
        lambda: [_npm(_NODE, f"node@{NODE}"), _npm(_VERCEL, *_VERCEL_PACKAGES)],
        (f"{_NODE}/node_modules/node/bin/node",),
        (*both(("chat", "responses", "messages", "gemini")), *_TOOL_CASES, *_SCREENS),
        args=(_VERCEL,),
    ),
    Client(
        "pydantic_ai",
        "2.68.0",
        "pydantic_ai_agents.py",
        _PYDANTIC.install,
        (_PYDANTIC.python,),
        both(("chat", "responses", "messages", "gemini")),
    ),
    Client(
        "claude_agent_sdk",
        "0.2.189",
        "claude_agent.py",
        _CLAUDE.install,
        (_CLAUDE.python,),
        (Case("query", "messages", True, "bash", DONE, calls=3, side=1),),
        env={"IS_SANDBOX": "1"},
    ),
    Client(
        "aider",
        "0.86.2",
        "aider_commits.py",
        _AIDER.install,
        (_AIDER.python,),
        tuple(
            Case(
                f"edit {way}",
                "chat",
                way == "streamed",
                "edit",
                "hello: Add hello.txt",
                side=1,
                streamed=streamed,
                side_calls=_COMMIT,
            )
            for way, streamed in (("plain", 0), ("streamed", 1))
        ),
    ),
    Client(
        "openai_agents_tools",
        OpenAIAgentsConfig().version,
        "openai_agents_tools.py",
        _AGENTS.install,
        (f"{_CONFIG.folder}/openai_agents-{OpenAIAgentsConfig().version}/bin/python",),
        _TOOL_CASES,
    ),
    Client(
        "java_http_client",
        "the machine's JDK",
        "JavaConversation.java",
        list,
        ("java", "-XX:TieredStopAtLevel=1"),
        (Case("chat plain", "chat"), Case("chat streamed", "chat", True, streamed=1)),
        needs="java",
    ),
)

PARTS: Mapping[str, Part] = {
    "answer_by_tool": (_LOOK, Move("I know.", (Use(("final_answer",), {"answer": FOUND}),))),
    "find": (_LOOK, Move(FOUND)),
    "bash": (Move("I look around.", (Use(("Bash",), {"command": "echo 47"}),)), Move(DONE)),
    "shell": (Move("", (Use(("shell",), {"commands": ["echo 47", "exit 3"]}),)), Move(FOUND)),
    "local_shell": (
        Move("", (Use(("local_shell",), {"command": ["echo", "47"], "timeout_ms": None}),)),
        Move(FOUND),
    ),
    "computer": (Move("", (Use(("computer",), {"actions": [{"type": "screenshot"}]}),)),),
    "apply_patch": (
        Move("", (Use(("apply_patch",), {"type": "create_file", "path": "a.txt", "diff": "+hello\n"}),)),
        Move(WRITTEN),
    ),
}
"""What the policy does, by the part's name."""
EVIDENCE = {FOUND: "47", DONE: "47", WRITTEN: "Created a.txt"}
"""What a tool's result must have said before the policy says so."""


def main() -> None:
    """Install every client."""
    from harnessgym.harnesses.installation import install

    for client in CLIENTS:
        install(client.steps(), Path(_CONFIG.folder))


if __name__ == "__main__":
    main()
