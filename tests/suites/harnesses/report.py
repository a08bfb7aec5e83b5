"""Runs every scenario and writes what it found: docs/harnesses.md, docs/fidelity.md, and the figures behind
both as JSON.

    python -m tests.suites.harnesses.report

Installs agents that are missing. Fails, and leaves the pages alone, if any run is not what it must be.
"""

import asyncio
import json
import platform
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from tests.suites.clients.report import section
from tests.suites.harnesses.observed import Observed, complaints
from tests.suites.harnesses.run import prepare, run
from tests.suites.harnesses.scenarios import ABLATION, SCENARIOS, Scenario
from tests.suites.harnesses.tree import TREES

_DOCS = Path(__file__).parents[3] / "docs"
_MADE = "<!-- Written by `python -m tests.suites.harnesses.report`. -->\n"
_BUILDERS = ("forest", "per_request", "prefix_merging")
Run = tuple[Scenario, Observed]

_HARNESSES = """\
# Harnesses

Real agents, unmodified, each in a bubblewrap sandbox without a network, as an unprivileged user, against the proxy. The
policy is scripted: it writes tokens of the Qwen3 tokenizer, with reasoning, and calls the tools that it finds in its
prompt. Everything below is read from the trace store after the run. In every run the file that the task asks for was
written, each call was committed, and delivered unless a table says otherwise; `trained + excluded == sampled`, and
`traces verify` found nothing.
Installing: `harnessgym.harnesses.installation.install(harness.install(), folder)`.

## One task, with a sub-agent or a handoff where the agent has one

{task}

*Branches* are rows for the trainer: one per agent, as long as nobody rewrites the history. Tokens are those the policy
sampled. *Breaks* are calls that could not continue the tokens of an earlier one, by the stored class.

{clients}## Trees of agents

What `harnessgym traces tree ROLLOUT --events` prints of such a run. It is derived from the requests and answers that
passed the proxy, and from nothing else. Where a harness names its agents in headers, that is the evidence; elsewhere it is
the tool call whose arguments the new agent begins with. Each run is checked against what the agent really did:
who started whom by which tool, what came back to whom, what was decided, and that every tool call has its one result.

{trees}

## Faults

The policy writes a tool call that does not parse, leaves out an argument, and calls a tool that there is not (but for
the OpenAI Agents SDK, which ends there). Engines die in their second request, after seven tokens. The line
between sandbox and proxy loses the second answer before its first byte, and the agent asks again. Calls are what the
policy was asked, each once.

{faults}

OpenCode replaces the call of an unknown tool in the history, and mini-swe-agent leaves out an answer that it cannot
read: each such edit is a branch, so that every token keeps the context it was sampled in.

## An answer that breaks off

The line closes within the first answer to the task: within its thought, within its words, or behind its tool call, when
the proxy has given the whole answer but nothing behind the call arrives. Where it closes is told by what the answer says,
so it is the same in every run.

{torn}

*Joined* requests got the call that was lost: an agent that could not act on an answer, and asks again with the same
request, gets the same call. One that had a tool call asks for a call of its own on the same prompt, which *repeated*
counts, or keeps what arrived and goes on from there, in a branch where it edits what was said: Qwen Code and Codex do so
with words, Qwen Code and Claude Code with a call. Codex acts on the call at once. In no run is a token lost or trained
twice; what was never delivered is excluded, with that reason. OpenCode may leave an empty turn behind, which is a branch
too, or keep the torn call beside its repetition, so that the script, which counts turns, ends before
the sub-agent. Gemini CLI ends at a stream that breaks off, so it has no row here.

## Out of room

{long}

An overflow is the provider's own refusal of a prompt that does not fit; Claude Code and Qwen Code compact when they get
one. Codex, Gemini CLI, OpenCode and Pi count for themselves. The other three do not compact so early.

Gemini CLI cuts its history only in front of a user's message that carries no tool result, and never in front of the first
one. Within one prompt there is no other, unless the agent is told to go on after words alone: so here its workspace sets
`model.skipNextSpeakerCheck` to false, and the policy pauses half-way. A classifier (a side call) says that it is still the
agent's turn. Each summary takes two calls: it is written, then checked.

## What each agent is like

- **HOME** is `.agent` in the workspace; the session's key is in the environment or in a file, never in the arguments.
- **Memory**: Node and Bun reserve more address space than they use. Give their tasks `memory_mb` of a million or more;
  it bounds address space, not use.
- **Claude Code** names sub-agents in a header; its billing header is left out of the prompt. It is closed source,
  installed from npm.
- **Codex** speaks responses only, tells its threads apart in headers, and offers its sub-agent tools in a namespace.
- **OpenCode** asks for a title first, under a model name of its own: a side call.
- **Qwen Code** starts sub-agents in the background, and may end a run with a call that extracts memories: a side call.
- **Gemini CLI** must be asked for a model it knows, else it asks a classifier first. It does not ask again when a stream
  breaks off: the run ends with exit status 1.
- **Pi** estimates tokens by characters, so its window must be set with room to spare.
- **Node agents** need `npm` to be installed, and bring their own Node.
"""
_FIDELITY = """\
# Fidelity

How training rows compare with what was sampled, recomputed from the store: each call's prompt is rebuilt segment by
segment and compared with the hash of what the upstream client put on the wire, then each row is compared with the calls
it trains. A token is *under a wrong context* if the tokens before it in its row are not the prompt it was sampled
behind. It is *lost* if no row trains it. Side calls are excluded throughout. Runs are those of
[harnesses.md](harnesses.md).

## As recorded

History is kept (`history = "keep"`): what was sampled is continued token by token.

{keep}

## Three ways to make rows of the same calls

`per_request` makes a row per call. `prefix_merging` joins a call to the newest one whose *prompt* begins its own. Both
are the published builders of Polar (arXiv 2605.24220), written again from their description in
`harnessgym/traces/divergence.py`. The forest joins two calls only if prompt *and completion* of the first begin the
prompt of the second.

The tokens these builders are made for come from an engine that renders every prompt anew. So the runs were repeated
with `history = "template"`, where the chat template may strip reasoning, and clients' rewriting of the history reaches
the engine.

{ablation}

*Row tokens* is what a trainer computes on. Where agents send reasoning back unchanged, all three agree on what is
learnt, and the forest and `prefix_merging` need the fewest tokens. Where reasoning is dropped or an answer is edited,
`prefix_merging` trains tokens behind a history that the policy never saw; the forest starts a branch there, and its
rows cost what `per_request` costs at most. With the history kept, most of these branches never come about.
`prefix_merging` loses what comes after two calls with equal prompts; a retry that is answered with its first call makes
no such pair.
"""


def main() -> None:
    """Run, check, write."""
    kept, rendered = [asyncio.run(_all(scenarios)) for scenarios in (SCENARIOS, ABLATION)]
    wrong = {
        scenario.name: found for scenario, seen in (*kept, *rendered) if (found := complaints(seen, scenario))
    }
    if wrong:
        sys.exit("\n".join(f"{name}: {'; '.join(found)}" for name, found in wrong.items()))
    figures = {"machine": platform.platform(), "runs": [asdict(seen) for _, seen in (*kept, *rendered)]}
    (_DOCS / "results" / "harnesses.json").write_text(json.dumps(figures, indent=1) + "\n")
    plans = {
        name: _table(_COLUMNS[name], [item for item in kept if item[0].plan == name])
        for name in ("task", "faults", "torn", "long")
    }
    (_DOCS / "harnesses.md").write_text(
        _MADE + _HARNESSES.format(**plans, trees=_trees(kept), clients=section())
    )
    keep, ablation = _table(_COLUMNS["keep"], kept), _compare(kept, rendered)
    (_DOCS / "fidelity.md").write_text(_MADE + _FIDELITY.format(keep=keep, ablation=ablation))


def _trees(runs: Sequence[Run]) -> str:
    """One drawing of each harness that has a tree of its own."""
    shown = {
        scenario.harness: seen
        for scenario, seen in runs
        if scenario.plan == "task" and scenario.harness in TREES
    }
    return "\n\n".join(
        f"### {name}\n\n```\n{shown[name].drawing}\n```"
        for name in TREES
        if TREES[name].spawn and name in shown
    )


async def _all(scenarios: Sequence[Scenario]) -> list[Run]:
    out = []
    for scenario in scenarios:
        prepare(scenario)
        out.append((scenario, await run(scenario)))
        print(scenario.name, complaints(out[-1][1], scenario) or "is as it must be", flush=True)
    return out


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {number}" for name, number in sorted(counts.items())) or "none"


def _version(run: Run) -> str:
    harness = run[0].make()
    return str(harness.settings().version)  # type: ignore[attr-defined]


def _of(name: str, key: str) -> Callable[[Run], str]:
    return lambda run: f"{run[1].divergence[name][key]:,}"


_NAME = ("harness", lambda run: run[0].harness)
_PROTOCOL = ("protocol", lambda run: run[0].protocol)
_CALLS = ("calls", lambda run: str(run[1].calls))
_ROWS = ("branches", _of("forest", "rows"))
_BREAKS = ("breaks", lambda run: _counts(dict(run[1].breaks)))
Column = tuple[str, Callable[[Run], str]]
_COLUMNS: dict[str, list[Column]] = {
    "task": [
        _NAME,
        ("version", _version),
        _PROTOCOL,
        ("streamed", lambda run: "yes" if run[0].streams else "no"),
        _CALLS,
        ("agents", lambda run: str(run[1].agents)),
        _ROWS,
        ("side calls", lambda run: str(run[1].kinds.get("side", 0))),
        ("trained", lambda run: f"{run[1].trained:,}"),
        ("excluded", lambda run: _counts(dict(run[1].excluded))),
        _BREAKS,
        ("seconds", lambda run: f"{run[1].wall_s:.1f}"),
    ],
    "faults": [
        _NAME,
        _PROTOCOL,
        _CALLS,
        ("engine deaths", lambda run: str(run[1].deaths)),
        ("asked again", lambda run: str(run[1].retries)),
        _ROWS,
        ("trained", lambda run: f"{run[1].trained:,}"),
        _BREAKS,
    ],
    "torn": [
        _NAME,
        _PROTOCOL,
        _CALLS,
        ("arrives last", lambda run: str(run[0].tear)),
        ("joined", lambda run: str(run[1].joined)),
        ("repeated", lambda run: str(run[1].repeated)),
        ("undelivered", lambda run: str(run[1].statuses.get("undelivered", 0))),
        _ROWS,
        ("trained", lambda run: f"{run[1].trained:,}"),
        ("excluded", lambda run: _counts(dict(run[1].excluded))),
        _BREAKS,
    ],
    "long": [
        _NAME,
        _PROTOCOL,
        _CALLS,
        ("overflows", lambda run: str(run[1].overflows)),
        ("summaries", lambda run: str(run[1].kinds.get("compaction", 0))),
        _ROWS,
        ("trained", lambda run: f"{run[1].trained:,}"),
        _BREAKS,
    ],
    "keep": [
        ("run", lambda run: run[0].name),
        _CALLS,
        ("rows", _of("forest", "rows")),
        ("rows if one per call", _of("per_request", "rows")),
        ("trained", _of("forest", "trained")),
        ("under a wrong context", _of("forest", "wrong_context")),
        ("lost", _of("forest", "lost")),
    ],
}


def _table(columns: Sequence[Column], runs: Iterable[Run]) -> str:
    return _markdown([name for name, _ in columns], [[cell(run) for _, cell in columns] for run in runs])


def _compare(kept: Sequence[Run], rendered: Sequence[Run]) -> str:
    """Builders side by side, all runs of a plan added up, then every run that tells them apart."""
    head = ["runs", "history", "builder", "rows", "row tokens", "sampled", "under a wrong context", "lost"]
    lines = []
    for history, runs in (("keep", kept), ("template", rendered)):
        for plan in ("task", "faults", "torn", "long"):
            if chosen := [run for run in runs if run[0].plan == plan]:
                lines += _builders(f"{plan} (all)", history, chosen)
    for scenario, seen in (*kept, *rendered):
        if seen.divergence["prefix_merging"]["wrong_context"] or seen.divergence["prefix_merging"]["lost"]:
            lines += _builders(scenario.title, scenario.history, [(scenario, seen)])
    return _markdown(head, lines)


def _builders(name: str, history: str, runs: Sequence[Run]) -> list[list[str]]:
    keys = ("rows", "row_tokens", "sampled", "wrong_context", "lost")
    out = []
    for builder in _BUILDERS:
        total: Counter[str] = Counter()
        for _, seen in runs:
            total.update({key: seen.divergence[builder][key] for key in keys})
        out.append([name, history, builder, *(f"{total[key]:,}" for key in keys)])
    return out


def _markdown(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


if __name__ == "__main__":
    main()
