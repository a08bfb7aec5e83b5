"""The control "by value": judged by value alone, what nothing was done to must differ from the solution.

Fresh inputs that do not show a task's fault would let a forged test report pass. So the initial files are
judged with several seeds, without any other check in front. For a task that does not ask to be judged by
value, this says what a run with `second_opinion = "required"` would find. There its solution must be
rewarded.
"""

from dataclasses import replace

from harnessgym.errors import HarnessGymError
from harnessgym.grading.by_value.judge import KEY, is_judged_by_value
from harnessgym.grading.cheats.scripted_agent import CheatResult, ScriptedAgent
from harnessgym.grading.integrity import integrity_of
from harnessgym.task import Integrity, Task
from harnessgym.validation.baseline import BaselineEntry

_FIRST_SEED = 1_000
"""Tasks of a set may have been chosen by their differences with small seeds."""


async def value_control(agent: ScriptedAgent, task: Task, number: int) -> CheatResult:
    """Judges the initial files by value, with the seed of this number. No verdict if that is not possible."""
    result = await agent.nothing_by_value(task, _FIRST_SEED + number)
    if result.reward is None or is_judged_by_value(task):
        return result
    gold = await agent.gold(task, required=True)
    if gold.lost or gold.unusable:
        return gold
    if gold.holds:
        return replace(result, seconds=result.seconds + gold.seconds)
    how = gold.tampered or gold.error or f"it scores {gold.reward:g}"
    return replace(result, reward=None, error=f"The solution is not rewarded when judged by value: {how}")


def with_seed(known: tuple[int, ...] | str | None, result: CheatResult) -> tuple[int, ...] | str:
    """The differences for each seed, with those of one more; or why the task cannot be judged by value."""
    if result.reward is None:
        return result.error or "There is no judgement."
    judgement = result.evidence[KEY]
    # A run that ends early need not differ in any value.
    differences = 0 if judgement["agrees"] else max(1, judgement["differences"])
    return (*(known if isinstance(known, tuple) else ()), differences)


def value_weakness(entry: BaselineEntry) -> str:
    """Why judging by value does not show a task's fault, as far as it was checked; empty if it does."""
    if isinstance(entry.by_value, str):
        return entry.by_value
    counts = entry.by_value or ()
    silent = sum(not count for count in counts)
    if not silent:
        return ""
    shown = f"(differences by seed: {', '.join(map(str, counts))})"
    return f"{silent} of {len(counts)} seeds of fresh inputs do not show its fault {shown}."


def known_integrity(task: Task) -> Integrity | None:
    """How a task's rewards are decided; None if its checks or its grader cannot be read."""
    try:
        return integrity_of(task)
    except HarnessGymError:
        return None
