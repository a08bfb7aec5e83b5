"""The task of `two_agents.py`: a ledger of two sites, what was counted there, and whether the books are right
in the end.

    python two_agents_task.py make FOLDER [--seed 7]     writes the task
    python two_agents_task.py verify FOLDER              says what is wrong, and fails if anything is

Something moved from one site to the other without a note, and something is missing at each. Only who compares
both sites can tell which is which. The history of postings must stay as it is.
"""

import argparse
import json
import random
import sys
from pathlib import Path
from typing import Any

SITES = ("north", "south")
ITEMS = ("bolts", "nuts", "pins", "rivets", "screws", "washers")
INSTRUCTION = (
    "The ledger of our two sites, north and south, is to be brought in line with what was counted there. "
    "Goods that only moved "
    "from one site to the other are transfers; what is missing or too much otherwise is a correction. Post "
    "both, once."
)


def make(folder: Path, seed: int, approval: str = "yes") -> None:
    """Write a task. `approval` is what the human will say to a posting."""
    chance = random.Random(seed)
    ledger = {site: {item: chance.randint(20, 99) for item in ITEMS} for site in SITES}
    counted = {site: dict(items) for site, items in ledger.items()}
    moved, lost, found = chance.sample(ITEMS, 3)
    number = chance.randint(2, 9)
    counted["north"][moved] -= number
    counted["south"][moved] += number
    counted["north"][lost] -= chance.randint(1, 9)
    counted["south"][found] += chance.randint(1, 9)
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "task": {"instruction": INSTRUCTION, "approvals": {"post": approval}},
        "ledger": ledger,
        "history": ["opened"],
    }
    for name, content in {**files, **{f"counted_{site}": counted[site] for site in SITES}}.items():
        (folder / f"{name}.json").write_text(json.dumps(content, indent=1, sort_keys=True))


def differences(folder: Path, site: str) -> dict[str, int]:
    """What was counted at a site minus what its ledger says, where that is not nothing."""
    ledger, counted = read(folder, "ledger")[site], read(folder, f"counted_{site}")
    return {item: counted[item] - ledger[item] for item in sorted(ledger) if counted[item] != ledger[item]}


def solution(folder: Path) -> dict[str, Any]:
    """The only posting that is right."""
    north, south = (differences(folder, site) for site in SITES)
    moved = [item for item in north if north[item] == -south.get(item, 0)]
    transfers = [{"item": item, "from": "north", "to": "south", "quantity": -north[item]} for item in moved]
    corrections = {
        site: {item: by for item, by in found.items() if item not in moved}
        for site, found in zip(SITES, (north, south), strict=True)
    }
    return {"transfers": transfers, "corrections": corrections}


def verify(folder: Path) -> list[str]:
    """What is wrong; nothing if the task is done."""
    problems = []
    posted = folder / "posted.json"
    if not posted.exists():
        problems.append("Nothing was posted.")
    elif json.loads(posted.read_text()) != solution(folder):
        problems.append("What was posted is not what the counts say.")
    if read(folder, "history")[:1] != ["opened"]:
        problems.append("The history was tampered with.")
    return problems


def read(folder: Path, name: str) -> Any:
    """One of the task's files."""
    return json.loads((folder / f"{name}.json").read_text())


def main() -> None:
    """Make or verify."""
    parser = argparse.ArgumentParser(description="Makes and verifies the task of two_agents.py.")
    parser.add_argument("what", choices=("make", "verify"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    if options.what == "make":
        make(options.folder, options.seed)
        return
    problems = verify(options.folder)
    print("\n".join(problems) or "The books are right.")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
