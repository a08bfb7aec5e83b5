"""Findings of a verification are kept in order, and what was checked is counted."""

from typing import get_args

import pytest

from harnessgym.traces.verification.findings import Coverage, Finding, FindingKind, Tally, VerificationReport


def test_nothing_found_is_fine():
    report = Tally().report()
    assert report == VerificationReport((), Coverage())
    assert report.ok
    assert report.kinds == frozenset()


def test_findings_come_in_the_order_they_were_made():
    tally = Tally()
    tally.find("usage", "call 2", "differs")
    tally.find("reference", "call 1", "is gone")
    tally.find("usage", "call 3", "differs")
    report = tally.report()
    assert not report.ok
    assert [finding.where for finding in report.findings] == ["call 2", "call 1", "call 3"]
    assert report.findings[0] == Finding("usage", "call 2", "differs")
    assert report.kinds == {"usage", "reference"}


def test_counts_add_up_by_field():
    tally = Tally()
    tally.count("calls")
    tally.count("calls", 2)
    tally.count("tokens", 10)
    assert tally.report().checked == Coverage(calls=3, tokens=10)


def test_a_count_of_an_unknown_field_is_an_error():
    tally = Tally()
    tally.count("bytes")
    with pytest.raises(TypeError, match="bytes"):
        tally.report()


def test_a_report_does_not_change_with_its_tally():
    tally = Tally()
    report = tally.report()
    tally.find("usage", "call", "differs")
    tally.count("calls")
    assert report.ok
    assert report.checked.calls == 0


def test_kinds_are_stable_names():
    kinds = get_args(FindingKind)
    assert len(set(kinds)) == len(kinds)
    assert all(kind.isidentifier() and kind.islower() for kind in kinds)
