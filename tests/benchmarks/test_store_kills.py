"""Three seeded kills of a real proxy that writes, or of its database. `make soak` does fifty of each."""

import asyncio
import contextlib
import sqlite3

import pytest

from benchmarks.store.kills import Campaign
from harnessgym.store import TraceStore
from tests.support.postgres import PostgresServer


def test_a_proxy_killed_on_sqlite_loses_no_answered_call_and_takes_up_what_it_left(tmp_path):
    campaign = Campaign(f"sqlite:///{tmp_path}/traces.db", seed=1)
    report = asyncio.run(campaign.run(["proxy"] * 3))
    assert report.kills == {"proxy": 3}
    assert report.answered >= 3 * 2 * 8
    assert report.torn > 0
    assert report.clean, report
    assert_it_sees_harm(campaign)


@pytest.mark.postgres
def test_a_proxy_or_a_server_killed_on_postgresql_loses_no_answered_call():
    with PostgresServer() as cluster:
        report = asyncio.run(
            Campaign(cluster.create_database(), 2, cluster).run(["proxy", "server", "proxy"])
        )
    assert report.kills == {"proxy": 2, "server": 1}
    assert report.answered >= 3 * 2 * 8
    assert report.torn > 0
    assert report.clean, report


def assert_it_sees_harm(campaign):
    """What the campaign looks for it finds: other tokens, an outcome cut in half, a call that is gone."""
    first, second, third = (talker.got[-1].call_id for talker in campaign.conversations.talkers[:3])
    completion = f"(SELECT completion_segment FROM calls WHERE id = '{first}')"
    with contextlib.closing(sqlite3.connect(campaign.url.removeprefix("sqlite:///"))) as raw, raw:
        raw.execute(f"UPDATE segments SET ids = zeroblob(length(ids)) WHERE id = {completion}")
        raw.execute(f"UPDATE calls SET status = 'intent' WHERE id = '{second}'")
        raw.execute(f"UPDATE calls SET id = 'gone' WHERE id = '{third}'")
    with TraceStore.open(campaign.url) as store:
        campaign.conversations.check(store)
    assert campaign.report.lost == {first, second, third}
    assert campaign.report.half == {second}
    assert {finding.partition(":")[0] for finding in campaign.report.findings} >= {
        "segment_hash",
        "completion_hash",
        "reference",
    }
