from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessgym.scheduling.staleness import VersionChain
from harnessgym.store import policies
from harnessgym.store.ledger import ExcludedTokens, exclude_tokens
from harnessgym.store.policies import PolicyVersion
from harnessgym.traces.token_accounting import TokenAccount, account, exclude_rest
from harnessgym.traces.verification.verify import verify


def read(recording, purpose: str = "train") -> TokenAccount:
    return recording.store.read(lambda conn: account(conn, recording.run_id, purpose))


def close(recording) -> int:
    return recording.store.write(lambda conn: exclude_rest(conn, recording.run_id))


@pytest.fixture
def trained(recording):
    """A group trained into version 2 (from 1), one still open, and an evaluation."""
    recording.publish(0)
    recording.publish(1, 0)
    group_id, (first, second) = recording.group()
    recording.session(first).call(versions=[0, 0, 1, 1, 1])
    recording.session(second).call(versions=[1, 1], kind="side")
    recording.session(second).call(versions=[1])
    recording.finish([first, second])
    recording.train(group_id, [first, second], version=2, parent=1)
    _, (left, _) = recording.group()
    recording.session(left).call(versions=[2, 2, 2])
    _, (evaluation,) = recording.group(1, purpose="evaluation")
    recording.session(evaluation).call(versions=[2, 2, 2, 2])
    return recording


def test_an_empty_run_has_an_empty_account(recording):
    assert read(recording) == TokenAccount(0, 0, 0, 0, {}, {})
    assert close(recording) == 0


def test_trained_excluded_and_open_tokens_are_counted(trained):
    found = read(trained)
    assert (found.calls, found.sampled, found.trained, found.excluded, found.unaccounted) == (4, 11, 6, 2, 3)
    assert found.excluded_by_reason == {"side_call": 2}


def test_staleness_counts_batches_between_sampling_and_training(trained):
    assert read(trained).staleness == {0: 4, 1: 2}


def test_another_purpose_has_its_own_account(trained):
    found = read(trained, "evaluation")
    assert (found.calls, found.sampled, found.unaccounted, found.staleness) == (1, 4, 4, {})


def test_at_the_end_the_account_closes(trained):
    assert close(trained) == 3
    found = read(trained)
    assert found.unaccounted == 0
    assert found.excluded_by_reason == {"run_ended": 3, "side_call": 2}
    assert close(trained) == 0
    assert read(trained, "evaluation").excluded == 0
    assert verify(trained.store).ok


def test_the_rest_of_a_partly_excluded_call_is_excluded(recording):
    _, (rollout_id,) = recording.group(1)
    call = recording.session(rollout_id).call(versions=[0] * 10)
    parts = [ExcludedTokens(rollout_id, call, start, end, "mixed") for start, end in ((2, 4), (7, 8))]
    recording.store.write(lambda conn: exclude_tokens(conn, parts))
    assert close(recording) == 7
    found = read(recording)
    assert (found.unaccounted, found.excluded_by_reason) == (0, {"mixed": 3, "run_ended": 7})


def test_a_step_into_an_orphaned_version_does_not_count(recording):
    recording.publish(0)
    group_id, (rollout_id,) = recording.group(1)
    recording.session(rollout_id).call(versions=[0, 0])
    recording.finish([rollout_id])
    recording.train(group_id, [rollout_id], version=1, parent=0)
    recording.store.write(lambda conn: policies.orphan_after(conn, recording.policy_id, 0))
    assert (read(recording).trained, read(recording).unaccounted) == (0, 2)
    recording.train(group_id, [rollout_id], version=2, parent=0)
    assert (read(recording).trained, read(recording).staleness) == (2, {0: 2})
    recording.store.write(lambda conn: policies.orphan_after(conn, recording.policy_id, 0))
    assert close(recording) == 2
    assert read(recording).unaccounted == 0


def version(number: int, parent: int | None, *, orphaned: bool = False) -> PolicyVersion:
    return PolicyVersion(number, parent, "full", "", number, "", 0, committed=True, orphaned=orphaned)


def test_along_a_chain_staleness_is_the_difference_of_versions():
    chain = VersionChain([version(0, None), *(version(number, number - 1) for number in range(1, 6))])
    assert [chain.staleness(5, sampled) for sampled in range(6)] == [4, 3, 2, 1, 0, -1]


def test_an_orphaned_version_counts_from_where_it_forked():
    """0 - 1 - (2 - 3), then 1 - 4 - 5."""
    links = [
        version(0, None),
        version(1, 0),
        version(2, 1, orphaned=True),
        version(3, 2, orphaned=True),
        version(4, 1),
        version(5, 4),
    ]
    chain = VersionChain(links)
    assert [chain.survives(number) for number in range(7)] == [True, True, False, False, True, True, True]
    assert [chain.staleness(4, sampled) for sampled in (0, 1, 2, 3)] == [1, 0, 0, 0]
    assert [chain.staleness(5, sampled) for sampled in (1, 3, 4)] == [1, 1, 0]
    assert 3 in chain
    assert 6 not in chain


def test_versions_that_were_never_recorded_count_by_their_number():
    assert VersionChain([]).staleness(7, 4) == 2


@given(st.lists(st.none() | st.integers(0, 9), min_size=1, max_size=12))
def test_staleness_along_the_chain_never_exceeds_the_difference_of_numbers(history):
    """A trainer that bounds the difference of numbers bounds the staleness. None publishes, a number goes
    back to a version.
    """
    versions = [version(0, None)]
    for back_to in history:
        if back_to is None:
            parent = max(item.version for item in versions if not item.orphaned)
            versions.append(version(len(versions), parent))
        else:
            versions = [replace(item, orphaned=item.orphaned or item.version > back_to) for item in versions]
    chain = VersionChain(versions)
    for item in versions[1:]:
        for sampled in range(item.parent_version + 1):
            if not item.orphaned:
                assert 0 <= chain.staleness(item.version, sampled) <= item.parent_version - sampled
