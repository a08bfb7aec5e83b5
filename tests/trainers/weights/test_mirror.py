"""Mirrors of a version server, over real sockets."""

import os
import shutil
import subprocess
import sys
import time

import httpx
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harnessgym.errors import PolicyError, TransferError
from tests.trainers.weights.mirroring import KEY, mirror_of, publish_chain, relayed, same, serving
from trainers.weights.chain import chain_of, read_version
from trainers.weights.manifest import DELTA, FULL, MANIFEST, MARKER, Manifest, read_manifest, version_path
from trainers.weights.mirror import fetched, plan
from trainers.weights.publish import publish
from trainers.weights.settings import MirrorSettings
from trainers.weights.version_server import Offer, VersionFolder


def files(root):
    return {path.name: {file.name for file in path.iterdir()} for path in root.glob("v*")}


def test_a_mirror_has_the_version_and_what_it_builds_on(tmp_path):
    made = publish_chain(tmp_path / "there", 4)
    with relayed(tmp_path / "there") as relay, mirror_of(relay.url, tmp_path / "here") as mirror:
        path = mirror.fetch(3)
        assert path == version_path(tmp_path / "here", 3)
        assert same(read_version(path)[1], made[3])
        assert mirror.fetched_bytes == sum(
            file.stat().st_size
            for number in range(4)
            for file in version_path(tmp_path / "there", number).glob("[md]*.[sb]*")
        )
        before = mirror.fetched_bytes
        assert mirror.fetch(3) == path
        assert mirror.fetched_bytes == before
    assert {entry.name for entry in (tmp_path / "here").iterdir()} == {
        ".mirror.lock",
        *(f"v{n:08d}" for n in range(4)),
    }


def test_only_links_that_are_lacking_are_fetched_past_a_full_version(tmp_path):
    made = publish_chain(tmp_path / "there", 6, full_every=3)
    here = tmp_path / "here"
    with relayed(tmp_path / "there") as relay, mirror_of(relay.url, here) as mirror:
        mirror.fetch(2)
        first = mirror.fetched_bytes
        assert same(read_version(mirror.fetch(5))[1], made[5])
        assert mirror.fetched_bytes - first < 3 * 10_000 < first
        assert files(here)["v00000003"] == {DELTA, MANIFEST, MARKER}
        shutil.rmtree(here)
        assert same(read_version(mirror.fetch(5))[1], made[5])
        assert sorted(files(here)) == ["v00000003", "v00000004", "v00000005"]
        assert files(here)["v00000003"] == {FULL, MANIFEST, MARKER}


def test_a_full_file_joins_a_version_that_is_here_as_a_delta(tmp_path):
    made = publish_chain(tmp_path / "there", 5, full_every=3)
    here = tmp_path / "here"
    with relayed(tmp_path / "there") as relay, mirror_of(relay.url, here) as mirror:
        mirror.fetch(2)
        mirror.fetch(3)
        for version in (0, 1, 2):
            shutil.rmtree(version_path(here, version))
        assert same(read_version(mirror.fetch(4))[1], made[4])
    assert files(here)["v00000003"] == {FULL, DELTA, MANIFEST, MARKER}


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    faults=st.lists(st.tuples(st.sampled_from(["cut", "lie", "refuse"]), st.integers(0, 90_000)), max_size=6)
)
def test_cuts_lies_and_refusals_are_overcome(tmp_path_factory, chain, faults):
    root, made = chain
    faults = [("refuse", 0) if fault[0] == "refuse" else fault for fault in faults]
    here = tmp_path_factory.mktemp("here")
    with relayed(root, *faults) as relay, mirror_of(relay.url, here) as mirror:
        assert same(read_version(mirror.fetch(2))[1], made[2])
    assert not list(here.glob(".*.partial"))


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    root = tmp_path_factory.mktemp("there")
    return root, publish_chain(root, 3)


def test_a_cut_transfer_goes_on_where_it_stopped(tmp_path):
    made = publish_chain(tmp_path / "there", 1)
    size = (version_path(tmp_path / "there", 0) / FULL).stat().st_size
    faults = ("cut", 30_000), ("cut", 20_000)
    with relayed(tmp_path / "there", *faults) as relay, mirror_of(relay.url, tmp_path / "here") as mirror:
        path = mirror.fetch(0)
        assert relay.connections == 3
        assert mirror.fetched_bytes == size
    assert same(read_version(path)[1], made[0])


def test_a_restarted_mirror_and_a_server_that_comes_back_go_on_too(tmp_path):
    made = publish_chain(tmp_path / "there", 1)
    partial = tmp_path / "here" / ".v00000000.partial" / FULL
    with relayed(tmp_path / "there", *[("cut", 30_000)], *[("refuse", 0)] * 50) as relay:
        with (
            mirror_of(relay.url, tmp_path / "here", patience_s=0.2) as mirror,
            pytest.raises(TransferError, match="gave no"),
        ):
            mirror.fetch(0)
        got = partial.stat().st_size
        assert 0 < got < 30_000
        relay.faults.clear()
        with mirror_of(relay.url, tmp_path / "here") as mirror:
            assert same(read_version(mirror.fetch(0))[1], made[0])
            assert mirror.fetched_bytes == (version_path(tmp_path / "there", 0) / FULL).stat().st_size - got


def test_what_is_here_can_be_read_without_the_server(tmp_path):
    made = publish_chain(tmp_path / "there", 2)
    with relayed(tmp_path / "there") as relay, mirror_of(relay.url, tmp_path / "here") as mirror:
        mirror.fetch(0)
    with mirror_of(relay.url, tmp_path / "here", patience_s=0.1) as mirror:
        assert same(read_version(mirror.fetch(0))[1], made[0])
        with pytest.raises(TransferError):
            mirror.fetch(1)


def test_what_is_here_with_the_known_checksum_is_there_at_once(tmp_path):
    publish_chain(tmp_path / "there", 2)
    first = read_manifest(version_path(tmp_path / "there", 0)).checksum
    with relayed(tmp_path / "there") as relay, mirror_of(relay.url, tmp_path / "here") as mirror:
        mirror.fetch(0, first)
    with mirror_of(relay.url, tmp_path / "here") as mirror:
        began = time.monotonic()
        assert mirror.fetch(0, first) == version_path(tmp_path / "here", 0)
        assert time.monotonic() - began < 5 < mirror.settings.patience_s
        with pytest.raises(PolicyError, match="Mirror into an empty folder"):
            mirror.fetch(0, "of another run")


def test_what_came_of_versions_that_were_overtaken_is_removed(tmp_path):
    publish_chain(tmp_path / "there", 3)
    here = tmp_path / "here"
    with relayed(tmp_path / "there") as relay:
        relay.faults = [("cut", 30_000), *[("refuse", 0)] * 50]
        with mirror_of(relay.url, here, patience_s=0.2) as mirror, pytest.raises(TransferError):
            mirror.fetch(0)
        for number in (7, 123456789):
            (here / f".v{number:08d}.partial").mkdir()
        got = (here / ".v00000000.partial" / FULL).stat().st_size
        relay.faults.clear()
        with mirror_of(relay.url, here) as mirror:
            path = mirror.fetch(1)
            whole = (version_path(here, 0) / FULL).stat().st_size + (path / DELTA).stat().st_size
            assert mirror.fetched_bytes == whole - got, "a version that is wanted goes on where it stopped"
    assert not list(here.glob(".*.partial"))


@pytest.mark.parametrize("name", [FULL, MANIFEST])
def test_a_damaged_version_is_fetched_anew_and_one_that_is_whole_is_not(tmp_path, name):
    made = publish_chain(tmp_path / "there", 3)
    with relayed(tmp_path / "there") as relay, mirror_of(relay.url, tmp_path / "here") as mirror:
        mirror.fetch(2)
        got = mirror.fetched_bytes
        assert same(read_version(mirror.repair(2))[1], made[2])
        assert mirror.fetched_bytes == got
        damaged = version_path(tmp_path / "here", 0) / name
        damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
        assert same(read_version(mirror.repair(2))[1], made[2])
        assert mirror.fetched_bytes == 2 * got


def test_a_version_whose_manifest_is_damaged_is_replaced(tmp_path):
    made = publish_chain(tmp_path / "there", 2)
    with relayed(tmp_path / "there") as relay, mirror_of(relay.url, tmp_path / "here") as mirror:
        damaged = mirror.fetch(1) / MANIFEST
        damaged.write_bytes(damaged.read_bytes() + b" ")
        assert same(read_version(mirror.fetch(1))[1], made[1])


def test_wrong_bytes_in_a_partial_file_are_thrown_away(tmp_path):
    made = publish_chain(tmp_path / "there", 1)
    partial = tmp_path / "here" / ".v00000000.partial"
    for wrong in (b"x" * 1000, b"x" * 1_000_000):
        partial.mkdir(parents=True, exist_ok=True)
        (partial / FULL).write_bytes(wrong)
        (partial / DELTA).write_bytes(b"of another plan")
        with relayed(tmp_path / "there") as relay, mirror_of(relay.url, tmp_path / "here") as mirror:
            path = mirror.fetch(0)
        assert same(read_version(path)[1], made[0])
        assert files(tmp_path / "here") == {"v00000000": {FULL, MANIFEST, MARKER}}
        shutil.rmtree(path)


def test_a_server_that_lies_for_good_is_given_up(tmp_path):
    publish_chain(tmp_path / "there", 1)
    file = version_path(tmp_path / "there", 0) / FULL
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with (
        relayed(tmp_path / "there") as relay,
        mirror_of(relay.url, tmp_path / "here", patience_s=0.3) as mirror,
        pytest.raises(TransferError, match="wrong checksum"),
    ):
        mirror.fetch(0)
    assert files(tmp_path / "here") == {}


def test_a_wrong_key_is_refused_at_once(tmp_path):
    publish_chain(tmp_path / "there", 1)
    with (
        serving(tmp_path / "there") as port,
        mirror_of(f"http://127.0.0.1:{port}", tmp_path / "h", key="wrong") as mirror,
    ):
        with pytest.raises(TransferError, match="refused the key"):
            mirror.fetch(0)
        for path in ("/versions", f"/versions/0/{FULL}"):
            assert httpx.get(f"http://127.0.0.1:{port}{path}").status_code == 401


def test_the_server_gives_files_of_committed_versions_only_and_ranges_of_them(tmp_path):
    publish_chain(tmp_path / "there", 2)
    (tmp_path / "there" / "secret.txt").write_text("s")
    (version_path(tmp_path / "there", 1) / "other.txt").write_text("s")
    shutil.copytree(version_path(tmp_path / "there", 1), version_path(tmp_path / "there", 2))
    (version_path(tmp_path / "there", 2) / MARKER).unlink()
    headers = {"authorization": f"Bearer {KEY}"}
    with (
        serving(tmp_path / "there") as port,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers) as http,
    ):
        assert [(offer["version"], offer["kind"]) for offer in http.get("/versions").json()] == [
            (0, "full"),
            (1, "delta"),
        ]
        raw = (version_path(tmp_path / "there", 0) / FULL).read_bytes()
        part = http.get(f"/versions/0/{FULL}", headers={"range": "bytes=100-199"})
        assert (part.status_code, part.content) == (206, raw[100:200])
        for path in (
            "/versions/1/other.txt",
            "/versions/1/..%2Fsecret.txt",
            f"/versions/2/{DELTA}",
            f"/versions/1/{FULL}",
        ):
            assert http.get(path).status_code == 404
        assert http.post("/versions").status_code == 405
        assert http.delete(f"/versions/0/{FULL}").status_code == 405


def test_a_mirror_bears_a_limit(tmp_path):
    publish_chain(tmp_path / "there", 1)
    with (
        relayed(tmp_path / "there") as relay,
        mirror_of(relay.url, tmp_path / "here", bytes_per_s=200_000) as mirror,
    ):
        began = time.monotonic()
        mirror.fetch(0)
        assert time.monotonic() - began >= 0.9 * mirror.fetched_bytes / 200_000


def test_another_run_under_the_same_numbers_is_refused(tmp_path):
    publish_chain(tmp_path / "there", 2)
    publish(tmp_path / "here", 1, None, {"a": torch.ones(3)}, 0, "other")
    with (
        relayed(tmp_path / "there") as relay,
        mirror_of(relay.url, tmp_path / "here") as mirror,
        pytest.raises(PolicyError, match="Mirror into an empty folder"),
    ):
        mirror.fetch(1)


def test_versions_of_format_1_are_mirrored(tmp_path):
    made = publish_chain(tmp_path / "there", 1)
    path = version_path(tmp_path / "there", 0)
    old = Manifest(version=0, step=0, run="r", tensors=read_manifest(path).tensors)
    (path / MANIFEST).write_bytes(old.encoded())
    (path / MARKER).write_bytes(b"")
    faults = ("cut", 40_000), ("lie", 25_000)
    with relayed(tmp_path / "there", *faults) as relay, mirror_of(relay.url, tmp_path / "here") as mirror:
        assert same(read_version(mirror.fetch(0))[1], made[0])


def test_what_nobody_needs_leaves_the_mirror(tmp_path):
    publish_chain(tmp_path / "there", 6, full_every=2)
    with relayed(tmp_path / "there") as relay:
        for version in range(6):
            fetched(
                MirrorSettings(url=relay.url, folder=tmp_path / "here", key=KEY, keep=1, longest_chain=2),
                version,
            )
    assert [link.manifest.version for link in chain_of(version_path(tmp_path / "here", 5))] == sorted(
        int(name[1:]) for name in files(tmp_path / "here")
    )
    assert len(files(tmp_path / "here")) <= 3


def offer(number, base=None, full=None, delta=None):
    sizes = {name: size for name, size in ((FULL, full), (DELTA, delta)) if size is not None}
    return Offer(
        version=number, kind="full" if full else "delta", base=base, checksum=str(number), files=sizes
    )


@pytest.mark.parametrize(
    ("offers", "wanted", "expected"),
    [
        ([offer(0, full=100)], 0, [(0, FULL)]),
        (
            [offer(0, full=100), offer(1, 0, delta=5), offer(2, 1, delta=5)],
            2,
            [(0, FULL), (1, DELTA), (2, DELTA)],
        ),
        ([offer(0, full=100), offer(1, 0, delta=5), offer(2, 1, 100, 5)], 2, [(2, FULL)]),
        (
            [offer(0, full=10), offer(1, 0, delta=5), offer(2, 1, 100, 5)],
            2,
            [(0, FULL), (1, DELTA), (2, DELTA)],
        ),
        ([offer(1, 0, 100, 5), offer(2, 1, delta=5)], 2, [(1, FULL), (2, DELTA)]),
    ],
)
def test_the_way_with_the_fewest_bytes_is_taken(tmp_path, offers, wanted, expected):
    assert plan(tmp_path, {item.version: item for item in offers}, wanted) == expected


def test_a_version_without_a_way_is_refused(tmp_path):
    with pytest.raises(TransferError, match=r"version 1 is missing there. It has 2; ask for the newest"):
        plan(tmp_path, {2: offer(2, 1, delta=5)}, 2)


def test_the_commands_serve_and_mirror(tmp_path):
    made = publish_chain(tmp_path / "there", 2)
    env = os.environ | {"HARNESSGYM_WEIGHTS_KEY": KEY, "OMP_NUM_THREADS": "1"}
    run = [sys.executable, "-m", "harnessgym", "weights"]
    with subprocess.Popen(
        [*run, "serve", str(tmp_path / "there"), "--port", "0"], stdout=subprocess.PIPE, env=env
    ) as server:
        url = server.stdout.readline().decode().split()[-1]
        with subprocess.Popen(
            [*run, "mirror", url, str(tmp_path / "here"), "--poll_s", "0.05"], env=env
        ) as mirror:
            deadline = time.monotonic() + 60
            while not (version_path(tmp_path / "here", 1) / MARKER).is_file():
                assert time.monotonic() < deadline
                time.sleep(0.02)
            assert same(read_version(version_path(tmp_path / "here", 1))[1], made[1])
            mirror.terminate()
        server.terminate()


def test_a_damaged_version_is_not_offered(tmp_path, caplog):
    publish_chain(tmp_path, 2)
    folder = VersionFolder(tmp_path)
    path = version_path(tmp_path, 1) / MANIFEST
    path.write_bytes(path.read_bytes() + b" ")
    assert [item.version for item in folder.offers()] == [0]
    assert "Version 1 is not offered" in caplog.text


def test_files_that_came_or_went_are_offered_as_they_are(tmp_path):
    publish_chain(tmp_path, 4, full_every=3)
    folder, third = VersionFolder(tmp_path), version_path(tmp_path, 3)
    assert folder.offers()[3].files.keys() == {FULL, DELTA}
    kept = (third / FULL).rename(tmp_path / FULL)
    assert folder.offers()[3].files.keys() == {DELTA}
    kept.rename(third / FULL)
    assert folder.offers()[3].files.keys() == {FULL, DELTA}
    shutil.rmtree(third)
    assert [item.version for item in folder.offers()] == [0, 1, 2]
