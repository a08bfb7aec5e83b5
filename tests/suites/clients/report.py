"""Plays every client and framework, and writes what it found: their section of docs/harnesses.md, and the
figures behind it as JSON.

    python -m tests.suites.clients.report

Installs what is missing. Fails, and leaves the page alone, if any conversation is not what it must be.
"""

import asyncio
import itertools
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harnessgym.harnesses.installation import install
from tests.suites.clients.cases import CLIENTS
from tests.suites.clients.conversations import complaints, play
from tests.suites.clients.frameworks import FRAMEWORKS
from tests.suites.harnesses.run import AGENTS, TOKENIZER_STEPS

_DOCS = Path(__file__).parents[3] / "docs"
PAGE = _DOCS / "harnesses.md"
FIGURES = _DOCS / "results" / "clients.json"
_TITLE = "## SDKs, frameworks and other programs"
_SECTION = """\
{title}

Each of these holds conversations of its own: the policy thinks, says a few words and calls a tool, the client runs it, the
policy answers. They run unmodified, without a sandbox, with the variables that `harnessgym wrap` sets, in a program of a few
lines where they are libraries ([programs](../tests/suites/clients/programs)). In every conversation the client reads the right
answer, each call is delivered or acknowledged, `trained + excluded == sampled`, and `traces verify` finds nothing. *In CI* are
those that every run of the tests plays (`tests/suites/clients`); the others are played by
`python -m tests.suites.clients.report`, which writes this section.

{table}

- **Vercel's AI SDK** reads no address of Google from the environment, and **LlamaIndex** and **CrewAI** are told OpenAI's as a
  setting here, so their programs pass what `wrap` sets.
- **smolagents**, **AutoGen** and **CrewAI** rewrite their history: smolagents sends calls back as plain text, AutoGen reflects
  without its tools, CrewAI drops what is said beside a call. Their next call cannot continue the tokens of the one before, so
  it begins a branch.
- **claude-agent-sdk** asks for a title first: a side call, known by its traffic. **aider** asks for a commit message, which
  `--side-call '{{name = "commit", no_tools = true, system_pattern = "commit message"}}'` makes one.
- **Vercel's AI SDK** and **the OpenAI Agents SDK** run `shell`, `local_shell` and `apply_patch` themselves, and Vercel's `computer`
  too, see [the proxy](proxy.md#protocols). The call of `computer` is answered; the screenshot is refused, because the policy reads
  text.
- **Java's HTTP client** offers HTTP/2 with every request.

"""
Figures = Mapping[str, Any]


def main() -> None:
    """Play, check, write."""
    wrong = []
    found: list[dict[str, Any]] = []
    for client in (*CLIENTS, *FRAMEWORKS):
        install([*TOKENIZER_STEPS, *client.steps()], AGENTS)
        for seen, case in zip(asyncio.run(play(client)), client.cases, strict=True):
            problems = complaints(seen, case)
            wrong += [f"{client.name} {case.name}: {'; '.join(problems)}"] if problems else []
            found.append({**asdict(seen), "in_ci": client in CLIENTS, "side": case.side})
            print(client.name, case.name, problems or "is as it must be", flush=True)
    if wrong:
        sys.exit("\n".join(wrong))
    FIGURES.write_text(json.dumps(found, indent=1) + "\n")
    before, _, rest = PAGE.read_text().partition(_TITLE)
    PAGE.write_text(before + section() + rest[rest.index("## ", 1) :])


def section() -> str:
    """The section of docs/harnesses.md, from the figures of the last report."""
    found = json.loads(FIGURES.read_text())
    groups = itertools.groupby(found, key=lambda each: (each["client"], _topic(each["case"])))
    head = ["client", "version", "conversation", "protocol", "sent", "calls", "agents", "branches", "side calls",
            "breaks", "in CI"]  # fmt: skip
    rows = [head, ["---"] * len(head), *(_row(topic, list(members)) for (_, topic), members in groups)]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return _SECTION.format(title=_TITLE, table=table)


def _topic(case: str) -> str:
    return case.removesuffix(" plain").removesuffix(" streamed")


def _row(topic: str, members: Sequence[Figures]) -> list[str]:
    """One line for a conversation that was held in several ways; they must agree."""
    first = members[0]
    told = ("calls", "agents", "rows", "side", "breaks")
    assert all(each[name] == first[name] for each in members for name in told), (first["client"], topic)
    ways = [each["case"].rpartition(" ")[2] for each in members]
    breaks = ", ".join(f"{name} {count}" for name, count in sorted(first["breaks"].items())) or "none"
    return [
        first["client"],
        first["version"],
        topic,
        ", ".join(first["protocols"]),
        ", ".join(way if way in ("plain", "streamed") else "streamed" for way in ways),
        *(str(first[name]) for name in told[:-1]),
        breaks,
        "yes" if first["in_ci"] else "no",
    ]


if __name__ == "__main__":
    main()
