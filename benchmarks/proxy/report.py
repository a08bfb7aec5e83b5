"""The benchmark's figures as tables, and whether the targets are met."""

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.proxy.neighbours import MOST

OURS, LITELLM, AGENT_LIGHTNING = "HarnessGym", "LiteLLM", "Agent Lightning"


def show(console: Console, out: dict[str, Any]) -> list[str]:
    """Print everything; the targets that are missed."""
    for shape, title in _SHAPES.items():
        console.print(_loads([row for row in out["load"] if row["shape"] == shape], title))
    if isinstance(out.get("large_vocabulary"), str):
        console.print("A tokenizer of 150,000 words:", out["large_vocabulary"])
    elif "large_vocabulary" in out:
        console.print(_loads(out["large_vocabulary"]["load"], "Held, with a tokenizer of 150,000 words"))
    console.print(_alone(out["alone"]))
    console.print(_sdks(out["sdks"]))
    console.print(_share(out["alone"]))
    for name, note in out["targets"].items():
        console.print(f"[bold]{name}[/]: {escape(note)}")
    console.print(
        "Resident memory of ours, MB:", ", ".join(f"{what} {value}" for what, value in out["memory_mb"])
    )
    if "curve" in out:
        console.print(_curve(out["curve"], out["curve_direct"], out["curve_tokens"]))
    for row in out.get("streams", ()):
        console.print(f"[bold]{row['streams']} paced streams, {row['target']}[/]:", {**row, "target": None})
    console.print(_neighbours(out["neighbours"]))
    console.print("Store:", out["store"])
    if "profile" in out:
        console.print("CPU ms a turn by thread:", out["profile"]["cpu_ms_per_turn_by_thread"])
        console.print(_profile(out["profile"]))
    out["checks"] = _checks(out)
    console.print(_check_table(out["checks"]))
    return [check["what"] for check in out["checks"] if not check["met"]]


_SHAPES = {
    "short": "All sessions at once, a line more in every turn",
    "held": "What agents hold: prompts of 19,000 tokens on average, 68,000 at the end",
    "rebuilt": "The same, but the system text tells the time, so no prompt continues another",
}
_TURN_S = 64 / 20
"""Seconds of an answer of 64 tokens at 20 tokens a second."""


def _sdks(rows: list[dict[str, Any]]) -> Table:
    table = Table(
        "client", "target", "p50 ms", "client CPU ms/turn", title="One session of a provider's client"
    )
    for row in rows:
        table.add_row(row["client"], row["target"], str(row["p50_ms"]), str(row["client_cpu_ms_per_turn"]))
    return table


def _share(alone: list[dict[str, Any]]) -> str:
    p50 = {(row["target"], row["stream"]): row["p50_ms"] for row in alone}
    added = p50[OURS, False] - p50["direct", False]
    return (
        f"Of a turn of one session {added:.2f} ms are ours: {added / p50[OURS, False]:.0%} if the engine answers at "
        f"once, {added / (1e3 * _TURN_S):.2%} if it gives 64 tokens at 20 a second."
    )


def _loads(rows: list[dict[str, Any]], title: str) -> Table:
    columns = (
        "target",
        "answers",
        "turns",
        "turns/s",
        "p50 ms",
        "p99 ms",
        "CPU ms/turn",
        "engine CPU",
        "client CPU",
        "RSS MB",
    )
    table = Table(*columns, title=title)
    for row in rows:
        numbers = (row["turns"], row["turns_per_s"], row["p50_ms"], row["p99_ms"], row["cpu_ms_per_turn"])
        others = (row["engine_cpu_ms_per_turn"], row["client_cpu_ms_per_turn"], row["rss_after_mb"])
        table.add_row(row["target"], "streamed" if row["stream"] else "plain", *map(str, (*numbers, *others)))
    return table


def _alone(rows: list[dict[str, Any]]) -> Table:
    table = Table(
        "target", "answers", "p50 ms", "added p50 ms", "p99 ms", "CPU ms/turn", title="One session alone"
    )
    direct = {row["stream"]: row["p50_ms"] for row in rows if row["target"] == "direct"}
    for row in rows:
        added = f"{row['p50_ms'] - direct[row['stream']]:.2f}"
        numbers = (row["p50_ms"], added, row["p99_ms"], row["cpu_ms_per_turn"])
        table.add_row(row["target"], "streamed" if row["stream"] else "plain", *map(str, numbers))
    return table


def _curve(
    rows: list[dict[str, float]], direct: list[dict[str, float]], tokens: list[dict[str, float]]
) -> Table:
    """The last column is what the proxy itself takes: all but what the bytes of both hops cost without it."""
    columns = (
        "from turn",
        "body KB",
        "prompt tokens",
        "ms a turn",
        "direct",
        "engine, as tokens",
        "JSON parse",
        "rest",
    )
    table = Table(*columns, title="One long session")
    for row, other, ids in zip(rows, direct, tokens, strict=True):
        parts = (row["turn_ms"], other["turn_ms"], ids["turn_ms"], row["json_parse_ms"])
        rest = f"{parts[0] - sum(parts[1:]):.2f}"
        table.add_row(*map(str, (row["from_turn"], row["body_kb"], ids["tokens"], *parts, rest)))
    return table


def _neighbours(rows: list[dict[str, Any]]) -> Table:
    table = Table(
        "hostile session", "p50 ms", "beside it", "p99 ms", "beside it", "times", "longest",
        "it was answered",
        title="What eight honest sessions wait, alone and beside a hostile one",
    )  # fmt: skip
    for row in rows:
        answers = ", ".join(f"{count} x {status}" for status, count in row["answers"].items())
        numbers = ("alone_p50_ms", "p50_ms", "alone_p99_ms", "p99_ms", "times", "longest_ms")
        table.add_row(row["kind"], *(str(row[name]) for name in numbers), answers)
    return table


def _growth(rows: list[dict[str, float]], name: str) -> float:
    return rows[-1][name] - rows[0][name]


def _profile(profile: dict[str, Any]) -> Table:
    table = Table(
        "where (a function and all it calls)", "% of samples", title="What the event loop's time is spent on"
    )
    for name, share in list(profile["inclusive_percent"].items())[:40]:
        table.add_row(name, str(share))
    return table


def _checks(out: dict[str, Any]) -> list[dict[str, Any]]:
    """Each target, the figure, and whether it is met."""
    return [*_rates(out), *_waits(out), *_memory(out), *_others(out)]


def _check(what: str, figure: float, wanted: float, *, at_least: bool = False) -> dict[str, Any]:
    met = figure >= wanted if at_least else figure <= wanted
    return {"what": what, "figure": round(figure, 2), "wanted": wanted, "at_least": at_least, "met": met}


def _rates(out: dict[str, Any]) -> list[dict[str, Any]]:
    rate = {(row["target"], row["shape"], row["stream"]): row["turns_per_s"] for row in out["load"]}
    checks = [
        _check("turns/s, plain", rate[OURS, "short", False], 450, at_least=True),
        _check("turns/s, streamed", rate[OURS, "short", True], 300, at_least=True),
        _check("turns/s, rebuilt", rate[OURS, "rebuilt", False], 250, at_least=True),
    ]
    for peer, shape, stream, wanted in (
        (LITELLM, "short", False, 6),
        (LITELLM, "short", True, 10),
        (LITELLM, "held", False, 10),
        (LITELLM, "held", True, 30),
        (AGENT_LIGHTNING, "short", False, 1.75),
        (AGENT_LIGHTNING, "held", False, 3),
    ):
        if (peer, shape, stream) in rate:
            what = f"times {peer}, {shape}, {'streamed' if stream else 'plain'}"
            times = rate[OURS, shape, stream] / rate[peer, shape, stream]
            checks.append(_check(what, times, wanted, at_least=True))
    return checks


def _waits(out: dict[str, Any]) -> list[dict[str, Any]]:
    p50 = {(row["target"], row["stream"]): row["p50_ms"] for row in out["alone"]}
    checks = []
    for stream, name in ((False, "plain"), (True, "streamed")):
        added = p50[OURS, stream] - p50["direct", stream]
        checks.append(_check(f"added p50 ms of one session, {name}", added, 2.0))
        if (AGENT_LIGHTNING, stream) in p50:
            theirs = p50[AGENT_LIGHTNING, stream] - p50["direct", stream]
            checks.append(_check("... times what Agent Lightning adds", added / theirs, 1.0))
        loads = [row for row in out["load"] if (row["target"], row["shape"]) == (OURS, "short")]
        longest = max(row["p99_ms"] for row in loads if row["stream"] == stream)
        checks.append(_check(f"p99 ms under load, {name}", longest, 200))
    return checks


def _memory(out: dict[str, Any]) -> list[dict[str, Any]]:
    shapes = {row["shape"]: row for row in out["shapes"]}
    times = shapes["rebuilt"]["bytes_a_turn"] / shapes["held"]["bytes_a_turn"]
    checks = [_check("bytes of a rebuilt turn, times those of a held one", times, 1.3)]
    resident = {shape: row["memory_mb"] for shape, row in shapes.items()}
    resident["short"] = [value for _, value in out["memory_mb"][1:3]]
    for shape, values in resident.items():
        checks.append(_check(f"MB resident after the {shape} load", values[0], 250))
        if len(values) > 1:
            checks.append(_check(f"MB more after as much again, {shape}", values[1] - values[0], 10))
    return checks


def _others(out: dict[str, Any]) -> list[dict[str, Any]]:
    checks = []
    if "curve" in out:
        bytes_cost = _growth(out["curve_direct"], "turn_ms") + _growth(out["curve_tokens"], "turn_ms")
        grown = _growth(out["curve"], "turn_ms") - bytes_cost - _growth(out["curve"], "json_parse_ms")
        what = "ms a turn that a long session gains, beyond what its bytes cost on both hops"
        checks.append(_check(what, grown, 1.0))
    checks += [_check(f"times p99 beside {row['kind']}", row["times"], MOST) for row in out["neighbours"]]
    for row in out.get("streams", ()):
        lost = row["streams"] * (row["tokens_each"] - 1) - row["tokens_arrived_in_order"]
        checks.append(_check(f"tokens that did not arrive in order, {row['target']}", lost, 0))
    return checks


def _check_table(checks: list[dict[str, Any]]) -> Table:
    table = Table("target", "wanted", "figure", "", title="Targets")
    for check in checks:
        bound = f"{'at least' if check['at_least'] else 'at most'} {check['wanted']}"
        table.add_row(check["what"], bound, str(check["figure"]), "met" if check["met"] else "[red]missed[/]")
    return table
