"""Adds the recorded flakes to the table of docs/reliability.md, and empties the record.

python -m tests.suites.flakes
python -m tests.suites.flakes RECORD    a record of another machine: its .pytest_cache/v/harnessgym/flakes
"""

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.support.flakes import RECORD, Flake, FlakeRecord

_ROOT = Path(__file__).parents[2]
_BEGIN = "<!-- Written by `python -m tests.suites.flakes`. -->\n"
_END = "<!-- End of the flakes. -->"
_FAILURE = 120
"""Characters of an error that the table shows."""
_RUNS = re.compile(r"Whole runs of the suite: (\d+)\.")
_ROW = re.compile(r"^\| `(.+?)` \| (\d+) \| (\S+), `(.+?)` \| (.*) \|$", re.MULTILINE)


def main(arguments: Sequence[str] | None = None) -> None:
    """Update the page."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.suites.flakes", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("record", type=Path, nargs="?", default=_ROOT / ".pytest_cache/v" / RECORD)
    parser.add_argument("--page", type=Path, default=_ROOT / "docs/reliability.md")
    options = parser.parse_args(arguments)
    if not options.record.exists():
        sys.exit(f"There is no record at {options.record}: run `make test` first.")
    record = FlakeRecord.from_dict(json.loads(options.record.read_text()))
    options.page.write_text(updated(options.page.read_text(), record))
    options.record.write_text("{}")
    sys.stdout.write(f"{options.page}: {len(record.flakes)} flakes of {record.runs} whole runs added.\n")


def updated(page: str, record: FlakeRecord) -> str:
    """The page with the record's runs and flakes added. Raises `ValueError` if the page has no place for
    them.
    """
    before, begin, rest = page.partition(_BEGIN)
    table, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError(
            f"The page has no lines {_BEGIN.strip()} and {_END}, between which flakes are counted."
        )
    return before + begin + _counted(table, record) + end + after


def _counted(table: str, record: FlakeRecord) -> str:
    earlier = _RUNS.search(table)
    runs = record.runs + (int(earlier[1]) if earlier else 0)
    counts = Counter[str]()
    latest = dict[str, Flake]()
    for row, count, date, commit, failure in _ROW.findall(table):
        test = row.replace(r"\|", "|")
        counts[test] = int(count)
        latest[test] = Flake(test, failure.replace(r"\|", "|"), commit, date)
    for flake in record.flakes:
        counts[flake.test] += 1
        latest[flake.test] = flake
    rows = [
        _row(latest[test], count)
        for test, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    ]
    head = "| test | flakes | latest | failed with |\n|---|---|---|---|\n"
    return (
        f"Whole runs of the suite: {runs}.\n\n"
        + (head + "\n".join(rows) if rows else "No flake was recorded.")
        + "\n"
    )


def _row(flake: Flake, count: int) -> str:
    failure = _cell(flake.failure[:_FAILURE])
    return f"| `{_cell(flake.test)}` | {count} | {flake.date}, `{flake.commit}` | {failure} |"


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


if __name__ == "__main__":
    main()
