"""Versions as an agent reads them: from the store's paths, from what it holds, or through a mirror."""

import shutil

import pytest

from harnessgym.errors import PolicyError
from harnessgym.store.policies import PolicyVersion
from tests.trainers.weights.mirroring import KEY, publish_chain, same, serving
from trainers.weights.agent import read_verified
from trainers.weights.manifest import DELTA, FULL, read_manifest, version_path
from trainers.weights.settings import MirrorSettings


def recorded(root, version, path=None):
    """What the store says of a version."""
    there = version_path(root, version)
    made = read_manifest(there)
    return PolicyVersion(
        version,
        None,
        made.kind,
        str(path or there),
        version,
        made.checksum,
        1,
        committed=True,
        orphaned=False,
    )


def test_a_delta_is_read_from_what_is_held(tmp_path):
    made = publish_chain(tmp_path, 4)
    _, held = read_verified(recorded(tmp_path, 1))
    newest = recorded(tmp_path, 3)
    for version in (0, 1):
        shutil.rmtree(version_path(tmp_path, version))
    there, read = read_verified(newest, (1, held))
    assert there == newest
    assert same(read, made[3])
    with pytest.raises(PolicyError, match="v00000001"):
        read_verified(newest)


def test_a_mirror_says_where_it_has_the_version(tmp_path):
    made = publish_chain(tmp_path / "there", 2)
    row = recorded(tmp_path / "there", 1, "/nowhere/v00000001")
    with serving(tmp_path / "there") as port:
        mirror = MirrorSettings(url=f"http://127.0.0.1:{port}", folder=tmp_path / "here", key=KEY)
        there, read = read_verified(row, mirror=mirror)
    assert same(read, made[1])
    assert there.path == str(version_path(tmp_path / "here", 1))
    assert (there.version, there.checksum) == (row.version, row.checksum)


@pytest.mark.parametrize(("version", "name"), [(0, FULL), (1, DELTA)])
def test_what_is_damaged_in_a_mirror_is_fetched_once_more(tmp_path, caplog, version, name):
    made = publish_chain(tmp_path / "there", 3)
    row = recorded(tmp_path / "there", 2)
    with serving(tmp_path / "there") as port:
        mirror = MirrorSettings(url=f"http://127.0.0.1:{port}", folder=tmp_path / "here", key=KEY)
        read_verified(row, mirror=mirror)
        damaged = version_path(tmp_path / "here", version) / name
        damaged.write_bytes(damaged.read_bytes()[:-1] + b"\x7f")
        assert same(read_verified(row, mirror=mirror)[1], made[2])
    assert "The mirror's version 2 is fetched again" in caplog.text
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\x7f")
    with pytest.raises(PolicyError, match="is not"):
        read_verified(recorded(tmp_path / "here", 2))


def test_a_mirror_of_another_run_is_left_as_it_is(tmp_path):
    publish_chain(tmp_path / "there", 1)
    publish_chain(tmp_path / "other", 1, size=10)
    row = recorded(tmp_path / "there", 0)
    with serving(tmp_path / "there") as port:
        mirror = MirrorSettings(url=f"http://127.0.0.1:{port}", folder=tmp_path / "other", key=KEY)
        with pytest.raises(PolicyError, match="Mirror into an empty folder"):
            read_verified(row, mirror=mirror)
    assert read_verified(recorded(tmp_path / "other", 0))[0].version == 0
