import pytest
import torch

from harnessgym.errors import PolicyError
from harnessgym.run_config.trainer import PublishSection
from harnessgym.store import TraceStore, policies, runs, workers
from harnessgym.store.policies import PolicyVersion
from harnessgym.store.workers import WorkerRow
from trainers.weights.chain import read_version
from trainers.weights.manifest import DELTA, FULL, version_numbers, version_path
from trainers.weights.publish import Publisher


@pytest.fixture
def site(tmp_path):
    """Makes publishers of one policy, each of which remembers nothing of those before."""
    with TraceStore.create(f"sqlite:///{tmp_path}/traces.db") as store:
        run_id = store.write(lambda conn: runs.add(conn, "r", {}, "0", "training"))
        policy_id = store.write(lambda conn: policies.register(conn, run_id, "policy"))
        yield lambda **options: Publisher(tmp_path / "v", store, run_id, policy_id, PublishSection(**options))


def weights(step):
    made = {"a": torch.linspace(-1, 1, 1000), "n": torch.arange(3)}
    made["a"][:step] += 1
    return made


def test_the_base_of_a_delta_is_remembered_or_read_again(site):
    publisher = site(dtype="bfloat16")
    kinds = [
        publisher.publish(version, version - 1 if version else None, weights(version), version).kind
        for version in range(3)
    ]
    kinds.append(site(dtype="bfloat16").publish(3, 2, weights(3), 3).kind)
    assert kinds == ["full", "delta", "delta", "delta"]
    read = read_version(version_path(publisher.root, 3))[1]
    assert read["a"].equal(weights(3)["a"].bfloat16())
    assert read["n"].equal(weights(3)["n"]), "only floating-point tensors are rounded"


def test_full_versions_are_published_on_request_and_where_the_parent_is_damaged(site):
    publisher = site(dtype="bfloat16")
    publisher.publish(0, None, weights(0), 0)
    file = version_path(publisher.root, 0) / FULL
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    assert site(dtype="bfloat16").publish(1, 0, weights(1), 1).kind == "full"
    assert site(dtype="bfloat16", kind="full").publish(2, 1, weights(2), 2).kind == "full"
    assert site(dtype="bfloat16").publish(3, 2, weights(3), 3).kind == "delta"


def test_a_version_that_is_there_is_kept_as_it_is(site):
    made = [
        site(dtype="bfloat16").publish(version, version - 1 if version else None, weights(version), 0)
        for version in range(2)
    ]
    before = {file: file.read_bytes() for file in made[1].path.iterdir()}
    assert site(dtype="bfloat16", kind="full").publish(1, 0, weights(1), 0) == made[1]
    assert {file: file.read_bytes() for file in made[1].path.iterdir()} == before
    assert (made[1].path / DELTA).exists()
    with pytest.raises(PolicyError, match="has other weights than the checkpoint"):
        site(dtype="bfloat16").publish(1, 0, weights(2), 0)


def test_nothing_is_removed_unless_asked(site):
    for keep in (0, 2):
        publisher = site(kind="full", keep=keep)
        for version in range(len(version_numbers(publisher.root)), 5):
            publisher.publish(version, None, weights(version), 0)
        assert publisher.collect() == ([] if not keep else [2, 1, 0])


def test_what_another_policys_engine_serves_is_not_in_use(tmp_path):
    with TraceStore.create(f"sqlite:///{tmp_path}/traces.db") as store:
        run_id = store.write(lambda conn: runs.add(conn, "r", {}, "0", "training"))
        ours, other = (
            store.write(lambda conn, name=name: policies.register(conn, run_id, name)) for name in ("a", "b")
        )
        for name, version, policy_id in (("e0", 1, ours), ("e1", 0, other)):
            row = WorkerRow(name, run_id, "embedded", name, version, "ready", policy_id)
            store.write(lambda conn, row=row: workers.upsert(conn, row))
        publisher = Publisher(tmp_path / "v", store, run_id, ours, PublishSection(kind="full", keep=1))
        for version in range(4):
            publisher.publish(version, None, weights(version), 0)
        assert publisher.collect() == [2, 0]


def test_what_the_next_batch_may_have_been_sampled_by_stays_after_a_fork(tmp_path):
    with TraceStore.create(f"sqlite:///{tmp_path}/traces.db") as store:
        run_id = store.write(lambda conn: runs.add(conn, "r", {}, "0", "training"))
        policy_id = store.write(lambda conn: policies.register(conn, run_id, "policy"))
        publisher = Publisher(tmp_path / "v", store, run_id, policy_id, PublishSection(kind="full", keep=2))

        def publish(version, parent):
            made = publisher.publish(version, parent, weights(version), version)
            row = PolicyVersion(
                version, parent, made.kind, str(made.path), version, made.checksum, made.bytes, True, False
            )
            store.write(lambda conn: policies.publish(conn, policy_id, row))

        for version in range(5):
            publish(version, version - 1 if version else None)
        store.write(lambda conn: policies.orphan_after(conn, policy_id, 1))
        publish(5, 1)
        assert publisher.collect() == [0], "1 is one step behind 5, and what 2, 3 and 4 sampled counts as 1's"
        publish(6, 5)
        assert publisher.collect() == [4, 3, 2, 1]
