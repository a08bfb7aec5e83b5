"""A pytest plugin that names and records flakes: tests that failed beside others and passed when they ran
again alone.

`make test` runs the suite, then what failed once more with `--last-failed --flakes`. The plugin keeps how
each test failed in the first run, and records those that pass in the second. Both stay in pytest's cache,
where `python -m tests.suites.flakes` reads them.
"""

import subprocess
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Self

import pytest

_FAILURES = "harnessgym/failures"
"""Key of pytest's cache: how each test failed that failed in the latest run, by test id."""
RECORD = "harnessgym/flakes"
"""Key of pytest's cache: the record."""


@dataclass(frozen=True)
class Flake:
    """One test that failed and then passed."""

    test: str
    failure: str
    """The first line of the error."""
    commit: str
    date: str


@dataclass
class FlakeRecord:
    """What was recorded since it was last counted."""

    runs: int = 0
    """Runs of the whole suite that came to their end."""
    flakes: list[Flake] = field(default_factory=list)

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> Self:
        """Reads what `asdict` wrote; an empty dict is an empty record."""
        return cls(raw.get("runs", 0), [Flake(**flake) for flake in raw.get("flakes", [])])


class FlakePlugin:
    """Registered once, not in xdist's workers."""

    def __init__(self, config: pytest.Config) -> None:
        cache = getattr(config, "cache", None)  # `-p no:cacheprovider` leaves none
        self._config = config
        self._cache: pytest.Cache | None = cache
        self._is_rerun = bool(config.getoption("--flakes"))
        self._before: dict[str, str] = (
            cache.get(_FAILURES, {}) if cache is not None and self._is_rerun else {}
        )
        self._failures: dict[str, str] = {}
        self._passed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note how each test ended; a failed set-up or teardown is a failure too."""
        if report.failed:
            self._failures.setdefault(report.nodeid, _first_line(report))
        elif report.passed and report.when == "call":
            self._passed.add(report.nodeid)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Keep what failed, or add to the record what flaked. An interrupted run counts for nothing."""
        if self._cache is None or exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            return
        record = FlakeRecord.from_dict(self._cache.get(RECORD, {}))
        if self._is_rerun:
            commit = _commit()
            date = datetime.now(UTC).date().isoformat()
            record.flakes += [Flake(test, self._before[test], commit, date) for test in self._flaked]
        else:
            self._cache.set(_FAILURES, self._failures)
            record.runs += self._is_whole
        self._cache.set(RECORD, asdict(record))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Name the flakes at the end of the rerun."""
        if self._is_rerun:
            count = len(self._flaked)
            terminalreporter.section(f"{count} {'flake' if count == 1 else 'flakes'}", yellow=bool(count))
            for test in self._flaked:
                terminalreporter.write_line(f"FLAKE {test} - {self._before[test]}")
            if count:
                terminalreporter.write_line(
                    "`python -m tests.suites.flakes` counts them in docs/reliability.md."
                )

    @property
    def _is_whole(self) -> bool:
        """Whether the run is of the whole suite: no path on the command line, and not only what failed."""
        return self._config.args_source is pytest.Config.ArgsSource.TESTPATHS and not self._config.getoption(
            "--last-failed"
        )

    @property
    def _flaked(self) -> list[str]:
        return [test for test in self._before if test in self._passed and test not in self._failures]


def _first_line(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else report.longreprtext
    return (text.splitlines() or [""])[0]


def _commit() -> str:
    """The commit that was tested, with a `+` if files differ from it."""
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty=+"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"
