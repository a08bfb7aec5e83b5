"""Many runs as figures with intervals, and these as a table."""

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

from rich.table import Table

from benchmarks.seeds import t_interval
from harnessgym.metrics.interval import share_with_interval

Runs = Mapping[tuple[int, str], Sequence[dict[str, Any]]]
"""By lag and method, a run for each seed, in the order of seeds."""


def figures(runs: Runs) -> list[dict[str, Any]]:
    """A row for each lag and method. `over_none` is the difference from the method none at the same lag,
    seed by seed.
    """
    rows = []
    for (lag, method), own in runs.items():
        finals, plain = [run["final"] for run in own], [run["final"] for run in runs[lag, "none"]]
        rows.append(
            {
                "lag": lag,
                "method": method,
                "seeds": len(own),
                "final": _over_seeds(finals),
                "over_none": _over_seeds([own - other for own, other in zip(finals, plain, strict=True)]),
                "collapsed": sum(run["collapsed"] for run in own),
                "collapse_rate": share_with_interval(
                    sum(run["collapsed"] for run in own), len(own)
                ).as_json(),
                "not_finite": sum(run["failed"] is not None for run in own),
                **{name: _over_seeds([run[name] for run in own]) for name in _MEANS},
                "finals": [round(value, 4) for value in finals],
            }
        )
    return rows


_MEANS = ("start", "best", "ess", "least_ess", "clipped", "masked", "updates")


def _over_seeds(values: Sequence[float]) -> dict[str, float | None]:
    """Mean and t-interval, which a single seed has not."""
    mean, low, high = t_interval(values)
    return (
        {"mean": mean, "low": low, "high": high}
        if len(values) > 1
        else {"mean": mean, "low": None, "high": None}
    )


def table(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """The rows as a table, lag by lag."""
    heads = (
        "method",
        "final reward [95 %]",
        "over none [95 %]",
        "best",
        "collapsed [95 %]",
        "ESS [95 %]",
        "least ESS",
        "cut",
    )
    found = Table("lag", *heads, title=title, title_justify="left")
    for lag, own in groupby(rows, key=lambda row: row["lag"]):
        for row in own:
            found.add_row(str(lag), *_cells(row))
        found.add_section()
    return found


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as tables over the lag, for people: final rewards, how many runs collapsed, effective
    sample sizes.
    """
    seeds = rows[0]["seeds"]
    return "\n".join(
        (
            _over_lags("final reward [95 %]", rows, lambda row: _shown(row["final"], ".3f")),
            _over_lags(f"collapsed of {seeds} [95 % of the rate]", rows, _collapsed),
            _over_lags("ESS, mean [95 %]", rows, lambda row: _shown(row["ess"], ".2f")),
        )
    )


def _over_lags(head: str, rows: Sequence[Mapping[str, Any]], cell: Callable[[Mapping[str, Any]], str]) -> str:
    lags, methods = dict.fromkeys(row["lag"] for row in rows), dict.fromkeys(row["method"] for row in rows)
    found = {(row["lag"], row["method"]): cell(row) for row in rows}
    lines = [f"| {head} | {' | '.join(f'k = {lag}' for lag in lags)} |", "|---" * (len(lags) + 1) + "|"]
    return (
        "\n".join(
            [*lines, *(f"| {own} | {' | '.join(found[lag, own] for lag in lags)} |" for own in methods)]
        )
        + "\n"
    )


def _collapsed(row: Mapping[str, Any]) -> str:
    return f"{row['collapsed']} {_bounds(row['collapse_rate'], '.2f')}"


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    over = "" if row["method"] == "none" else _shown(row["over_none"], "+.3f")
    cut = row["clipped"]["mean"] + row["masked"]["mean"]
    return (
        row["method"], _shown(row["final"], ".3f"), over, f"{row['best']['mean']:.3f}",
        f"{row['collapsed']}/{row['seeds']} {_bounds(row['collapse_rate'], '.2f')}", _shown(row["ess"], ".2f"),
        f"{row['least_ess']['mean']:.2f}", f"{cut:.2f}",
    )  # fmt: skip


def _shown(interval: Mapping[str, float | None], form: str) -> str:
    return f"{interval['mean']:{form}} {_bounds(interval, form)}".strip()


def _bounds(interval: Mapping[str, float | None], form: str) -> str:
    low, high = interval["low"], interval["high"]
    return "" if low is None or high is None else f"[{low:{form}}, {high:{form}}]"
