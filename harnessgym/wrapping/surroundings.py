"""What a wrapped command is given: provider variables for every SDK, and the configuration its own harness
needs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harnessgym.harness import Endpoint, Harness, SideCallRule
from harnessgym.registry import load
from harnessgym.task import Task

PROGRAMS = {
    "claude": "claude_code",
    "codex": "codex",
    "gemini": "gemini_cli",
    "mini": "mini_swe_agent",
    "opencode": "opencode",
    "pi": "pi",
    "qwen": "qwen_code",
}
"""Program to the harness that describes it."""
_HOME = ".agent/"


@dataclass(frozen=True, slots=True)
class CommandEnvironment:
    """Environment and files of one command."""

    harness: str
    """Registered name; `command` for a program that nothing is known of."""
    env: Mapping[str, str]
    files: Mapping[str, str]
    """Path in the command's home folder to text. Without any, the user's own home folder stays."""
    side_calls: Sequence[SideCallRule]


def surroundings_of(argv: Sequence[str], endpoint: Endpoint, harness: str | None) -> CommandEnvironment:
    """What a command needs to find the proxy. Raises `ConfigError` for an unknown harness."""
    name = harness or PROGRAMS.get(Path(argv[0]).name, "command")
    generic = _providers(endpoint)
    if name == "command":
        return CommandEnvironment(name, generic, {}, ())
    factory = load("harness", name)
    described: Harness = factory(factory.settings())
    launch = described.launch(Task("wrap", ""), endpoint)
    files = {path.removeprefix(_HOME): text for path, text in launch.files.items() if path.startswith(_HOME)}
    return CommandEnvironment(name, {**generic, **launch.env}, files, described.side_calls)


def _providers(endpoint: Endpoint) -> dict[str, str]:
    return {
        "OPENAI_BASE_URL": endpoint.openai_url,
        "OPENAI_API_BASE": endpoint.openai_url,
        "OPENAI_API_KEY": endpoint.key,
        "OPENAI_MODEL": endpoint.model,
        "ANTHROPIC_BASE_URL": endpoint.anthropic_url,
        "ANTHROPIC_API_KEY": endpoint.key,
        "ANTHROPIC_MODEL": endpoint.model,
        "GOOGLE_GEMINI_BASE_URL": endpoint.gemini_url,
        "GEMINI_API_KEY": endpoint.key,
        "GOOGLE_API_KEY": endpoint.key,
    }
