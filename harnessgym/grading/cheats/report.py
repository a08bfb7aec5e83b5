"""The report of a run of the suite: holes, a table, and JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from harnessgym.grading.cheats.catalogue import CHEATS
from harnessgym.grading.cheats.scripted_agent import GOLD, NOTHING, CheatResult

if TYPE_CHECKING:
    from rich.table import Table


def holes(results: Sequence[CheatResult]) -> list[str]:
    """One sentence for each result that is wrong."""
    return [f"{result.task}: {_hole(result)}" for result in results if not result.holds]


def as_json(results: Sequence[CheatResult], skipped: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """All results as JSON values. `skipped` lists tasks and what they need."""
    rows = [{**asdict(result), "holds": result.holds, "attack": _attack(result.cheat)} for result in results]
    for row in rows:
        del row["evidence"]
    return {
        "ok": all(result.holds for result in results),
        "holes": holes(results),
        "results": rows,
        "skipped": [{"task": task, "needs": needed} for task, needed in skipped],
    }


def table(results: Sequence[CheatResult]) -> "Table":
    """A table with a row for each cheat and a column for each task.

    A cell has the reward, T for tampering, or - for no verdict, and "loot" if the cheat got something.
    """
    from rich.table import Table

    tasks = list(dict.fromkeys(result.task for result in results))
    by_place = {(result.cheat, result.task): result for result in results}
    out = Table("class", "cheat", *(task.rpartition("/")[2] for task in tasks))
    for cheat in dict.fromkeys(result.cheat for result in results):
        cells = [_cell(by_place.get((cheat, task))) for task in tasks]
        out.add_row(str(_attack(cheat) or ""), cheat, *cells)
    return out


def _attack(cheat: str) -> int | None:
    plain = cheat.partition("@")[0]
    return CHEATS[plain].attack if plain in CHEATS else None


def _cell(result: CheatResult | None) -> str:
    if result is None:
        return ""
    text = "-" if result.reward is None else "T" if result.tampered is not None else f"{result.reward:g}"
    if result.loot:
        text += " loot"
    return text if result.holds else f"[bold red]{text}[/]"


def _hole(result: CheatResult) -> str:
    if result.cheat in (GOLD, NOTHING):
        who = "the gold solution" if result.cheat == GOLD else "doing nothing"
        got = f"scored {result.reward:g}" if result.reward is not None else f"got no verdict: {result.error}"
        what = got if result.tampered is None else f"was called tampered with: {result.tampered}"
        return f"{who} {what}. The task is broken; no cheat was tried."
    parts = [f"scored {result.reward:g}"] if result.reward else []
    parts += [f"got: {result.loot.strip()}"] if result.loot else []
    return f"{result.cheat} {' and '.join(parts)}"
