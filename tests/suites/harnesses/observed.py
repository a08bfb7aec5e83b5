"""What a run left in the store, and whether it is what it must be."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from sqlalchemy import Connection, select

from harnessgym.cli.traces.agent_tree import drawn
from harnessgym.store import bodies, events
from harnessgym.store.tables import agents, calls
from harnessgym.traces import divergence
from harnessgym.traces.graph import graph
from harnessgym.traces.trajectories import rows_of
from harnessgym.traces.verification.verify import verify
from tests.suites.harnesses.actor import Actor
from tests.suites.harnesses.scenarios import Scenario
from tests.suites.harnesses.stage import Played, Stage
from tests.suites.harnesses.tree import tree_complaints

_SETTLED = {"delivered", "acknowledged"}
_PAPER = 140
"""Columns that a drawing may have."""


@dataclass(frozen=True)
class Observed:
    """One run: what happened outside, and what the store says of it."""

    scenario: str
    exit_code: int | None
    wall_s: float
    wrote: bool
    """Whether the file is there and right."""
    calls: int
    statuses: Mapping[str, int]
    protocols: Sequence[str]
    streamed: int
    """Calls whose request asked for a stream."""
    agents: int
    kinds: Mapping[str, int]
    breaks: Mapping[str, int]
    overflows: int
    """Requests refused because they did not fit."""
    summaries: int
    deaths: int
    """Answers that went on at another worker."""
    retries: int
    """Answers that were lost or torn on the line."""
    joined: int
    """Requests that were answered with a call of an earlier request."""
    repeated: int
    """Calls with the prompt of an earlier call."""
    sampled: int
    trained: int
    excluded: Mapping[str, int]
    divergence: Mapping[str, Mapping[str, int]]
    """By builder: rows, tokens trained under a wrong context, tokens lost."""
    findings: Sequence[str]
    """What `traces verify` has to say."""
    incomplete: str | None
    tree: Sequence[str]
    """What is wrong with the agents, and what they did to each other, as they were derived."""
    drawing: str
    """What `harnessgym traces tree --events` prints of it."""
    problems: Sequence[str]
    """What the policy could not do."""
    output: str
    """The end of what the harness printed."""


def observe(stage: Stage, scenario: Scenario, played: Played, actor: Actor) -> Observed:
    """Read a run from the store."""
    facts = stage.store.read(lambda conn: facts_of(conn, stage.row.id, stage.row.group_id))
    refused = facts.pop("refused")
    asked = sum(len(upstream.asked) for upstream in stage.upstreams.values())
    result = played.result
    return Observed(
        scenario=scenario.name,
        exit_code=result.exit_code,
        wall_s=round(result.wall_s, 2),
        wrote=played.files.get("hello.txt", "").strip() == "hello",
        summaries=actor.summaries,
        deaths=asked - facts["calls"],
        retries=stage.line.cuts,
        joined=stage.line.asked - facts["calls"] - refused,
        findings=[f"{item.kind} at {item.where}: {item.message}" for item in verify(stage.store).findings],
        tree=stage.store.read(lambda conn: tree_complaints(conn, stage.row.id, scenario)),
        drawing=stage.store.read(lambda conn: _drawing(conn, stage.row.id)),
        problems=actor.problems,
        output=(result.stdout[-600:] + b"\n" + result.stderr[-600:]).decode(errors="replace"),
        **facts,
    )


def complaints(seen: Observed, scenario: Scenario) -> list[str]:
    """What is wrong with a run; nothing if all is well."""
    ours = seen.divergence["forest"]
    joins = {"words": {0, 1}, "call": {0}}.get(scenario.tear or "", {seen.retries})
    claims = {
        f"it ended with exit status {seen.exit_code}": seen.exit_code == 0,
        "hello.txt is not there": seen.wrote,
        f"calls ended as {dict(seen.statuses)}": set(seen.statuses)
        <= (_SETTLED | {"undelivered"} if scenario.plan == "torn" else _SETTLED),
        f"it spoke {list(seen.protocols)}": list(seen.protocols) == [scenario.protocol],
        f"{seen.streamed} of {seen.calls} calls streamed": seen.streamed
        == (seen.calls if scenario.streams else 0)
        or scenario.plan == "long",
        f"it has {seen.agents} agents": seen.agents >= scenario.agents or scenario.plan == "torn",
        f"calls are of the kinds {dict(seen.kinds)}": set(seen.kinds) >= scenario.side | {"policy"},
        f"the record is incomplete: {seen.incomplete}": seen.incomplete is None,
        f"{seen.trained} trained + {dict(seen.excluded)} are not {seen.sampled}": seen.trained
        + sum(seen.excluded.values())
        == seen.sampled,
        f"the rows are unfaithful: {ours}": scenario.history != "keep"
        or (ours["wrong_context"], ours["lost"], ours["repeated"]) == (0, 0, 0),
        f"the tree of agents is wrong: {list(seen.tree)}": not seen.tree,
        f"verify finds {list(seen.findings)}": not seen.findings,
        f"the policy could not act: {list(seen.problems)}": not seen.problems,
        f"engines were asked {seen.deaths} times more than there are calls": (seen.deaths > 0)
        == scenario.faulty,
        f"the line cut {seen.retries} answers": seen.retries == bool(scenario.line),
        f"{seen.joined} requests got an earlier call": seen.joined in joins,
        f"{seen.repeated} calls repeat a prompt": seen.repeated <= (scenario.tear == "call"),
        "nothing was compacted": scenario.plan != "long" or seen.summaries > 0,
    }
    return [complaint for complaint, well in claims.items() if not well]


def _drawing(conn: Connection, rollout_id: str) -> str:
    paper = Console(width=_PAPER, highlight=False, color_system=None)
    with paper.capture() as printed:
        paper.print(drawn(graph(conn, rollout_id), events=True))
    return "\n".join(line.rstrip() for line in printed.get().splitlines())


def facts_of(conn: Connection, rollout_id: str, group_id: str) -> dict[str, Any]:
    names = ("id", "protocol", "kind", "status", "agent_id", "break_class", "prompt_hash")
    rows = conn.execute(
        select(*(calls.c[name] for name in names)).where(calls.c.rollout_id == rollout_id)
    ).all()
    trajectory = rows_of(conn, rollout_id, group_id=group_id)
    sampled = divergence.sampled_calls(conn, rollout_id, trajectory)
    built = {
        "forest": divergence.forest(trajectory),
        "per_request": divergence.per_request(sampled),
        "prefix_merging": divergence.prefix_merging(sampled),
    }
    measured = {name: divergence.measure(rows, sampled) for name, rows in built.items()}
    excluded: Counter[str] = Counter()
    for item in trajectory.exclusions:
        excluded[item.reason] += item.end - item.start
    refused = events.of_rollout(conn, rollout_id, "refused_request")
    return {
        "calls": len(rows),
        "statuses": dict(Counter(row.status for row in rows)),
        "protocols": sorted({row.protocol for row in rows}),
        "streamed": sum(_streams(conn, row.id) for row in rows),
        "agents": len(conn.execute(select(agents.c.id).where(agents.c.rollout_id == rollout_id)).all()),
        "kinds": dict(Counter(row.kind for row in rows)),
        "breaks": dict(Counter(row.break_class for row in rows if row.break_class)),
        "repeated": len(rows) - len({row.prompt_hash for row in rows}),
        "refused": len(refused),
        "overflows": sum(event.attributes.get("problem") == "overflow" for event in refused),
        "sampled": trajectory.sampled,
        "trained": trajectory.trained,
        "excluded": dict(excluded),
        "divergence": {name: {**asdict(each), "lost": each.lost} for name, each in measured.items()},
        "incomplete": trajectory.incomplete,
    }


def _streams(conn: Connection, call_id: str) -> bool:
    """Whether a call's request asked for a stream. Gemini says so in the path, which is no part of the
    body.
    """
    body = bodies.of_call(conn, call_id)
    assert body is not None
    return bool(json.loads(body).get("stream", "contents" in json.loads(body)))
