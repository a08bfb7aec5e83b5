"""Versions published as deltas, and every way to read them."""

import json
import logging
import shutil

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harnessgym.errors import PolicyError
from trainers.weights.chain import chain_of, links_after, read_from, read_version
from trainers.weights.delta import flat_bytes
from trainers.weights.manifest import DELTA, FULL, MANIFEST, MARKER, Manifest, read_manifest, version_path
from trainers.weights.publish import BaseVersion, directory_bytes, publish, publish_full

SHAPES = {"embed": (64, 32), "norm": (32,), "scale": (), "none": (0, 4), "out": (33, 7)}


def start(seed=0, dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in SHAPES.items()}


def stepped(weights, seed, share=0.02):
    """Weights some of whose elements got other bits: any bits, so NaNs and zeros of both signs among them."""
    generator, out = torch.Generator().manual_seed(seed), {}
    for name, tensor in weights.items():
        changed = tensor.clone()
        if tensor.numel():
            raw = changed.view(-1).view(torch.uint8).view(tensor.numel(), -1)
            mask = torch.rand(tensor.numel(), generator=generator) < share
            raw[mask] = torch.randint(0, 256, raw[mask].shape, dtype=torch.uint8, generator=generator)
        out[name] = changed
    return out


def same(one, other):
    return one.keys() == other.keys() and all(
        flat_bytes(one[name]).tobytes() == flat_bytes(other[name]).tobytes() for name in one
    )


def publish_chain(root, count, *, share=0.02, full_every=16, first=0):
    """Versions 0..count-1, each made of the one before; the weights of each."""
    made = {first: start()}
    publish(root, first, None, made[first], 0, "r")
    for version in range(first + 1, first + count):
        made[version] = stepped(made[version - 1], version, share)
        base = BaseVersion(version - 1, made[version - 1])
        publish(root, version, version - 1, made[version], version, "r", base=base, full_every=full_every)
    return made


def test_a_delta_reads_like_the_full_version(tmp_path):
    made = publish_chain(tmp_path / "delta", 4)
    for version, weights in made.items():
        path = version_path(tmp_path / "delta", version)
        manifest, read = read_version(path)
        full = publish_full(tmp_path / "full", version, None, weights, version, "r")
        assert same(read, weights)
        assert manifest.checksum == full.checksum
        assert manifest.kind == ("full" if version == 0 else "delta")
        assert (directory_bytes(path) < full.bytes) == (version > 0)
        assert {file.name for file in path.iterdir()} == {MANIFEST, MARKER, FULL if version == 0 else DELTA}


def test_a_row_of_deltas_ends_with_a_full_version_that_has_a_delta_too(tmp_path):
    made = publish_chain(tmp_path, 7, full_every=3)
    kinds = [read_manifest(version_path(tmp_path, version)).kind for version in made]
    assert kinds == ["full", "delta", "delta", "full", "delta", "delta", "full"]
    third = version_path(tmp_path, 3)
    assert (third / FULL).is_file()
    assert (third / DELTA).is_file()
    assert [link.manifest.version for link in chain_of(version_path(tmp_path, 5))] == [3, 4, 5]
    assert [link.manifest.version for link in links_after(2, version_path(tmp_path, 5))] == [3, 4, 5]
    for file in (DELTA, FULL):
        kept = (third / file).rename(tmp_path / file)
        assert same(read_version(version_path(tmp_path, 5))[1], made[5]), f"it can be read without {file}"
        kept.rename(third / file)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_every_way_from_a_held_version_gives_the_same_bits(tmp_path_factory, data):
    root = tmp_path_factory.mktemp("v")
    count, full_every = data.draw(st.integers(2, 6)), data.draw(st.integers(1, 4))
    made = publish_chain(
        root, count, share=data.draw(st.sampled_from([0.0, 0.01, 0.2])), full_every=full_every
    )
    held, wanted = (data.draw(st.integers(0, count - 1)) for _ in range(2))
    before = {name: tensor.clone() for name, tensor in made[held].items()}
    manifest, read = read_from(held, made[held], version_path(root, wanted))
    assert manifest.version == wanted
    assert same(read, made[wanted])
    assert same(made[held], before), "what is served is never written to"


def test_gaps_in_the_numbers_and_forks_are_followed_by_base(tmp_path):
    weights = {0: start()}
    publish(tmp_path, 0, None, weights[0], 0, "r")
    for version, parent in ((3, 0), (4, 3), (9, 3)):
        weights[version] = stepped(weights[parent], version)
        publish(
            tmp_path, version, parent, weights[version], 0, "r", base=BaseVersion(parent, weights[parent])
        )
    assert [link.manifest.version for link in chain_of(version_path(tmp_path, 9))] == [0, 3, 9]
    assert same(read_version(version_path(tmp_path, 9))[1], weights[9])
    with pytest.raises(PolicyError, match="does not build on version 4"):
        links_after(4, version_path(tmp_path, 9))
    assert same(read_from(4, weights[4], version_path(tmp_path, 9))[1], weights[9])


def test_weights_that_are_not_the_base_are_given_up_for_the_full_version(tmp_path, caplog):
    made = publish_chain(tmp_path, 3)
    wrong = made[1] | {"norm": made[1]["norm"] + 1}
    recast = {name: tensor.float() for name, tensor in made[1].items()}
    for held, why in (
        (wrong, "'norm' is not the one"),
        (recast, "differs in dtype or shape"),
        ({}, "only one side has it"),
    ):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert same(read_from(1, held, version_path(tmp_path, 2))[1], made[2])
        assert "read in full" in caplog.text
        assert why in caplog.text


def test_a_reader_with_the_base_needs_only_later_links(tmp_path):
    made = publish_chain(tmp_path, 5)
    for version in (0, 1, 2):
        shutil.rmtree(version_path(tmp_path, version))
    assert same(read_from(2, made[2], version_path(tmp_path, 4))[1], made[4])
    with pytest.raises(
        PolicyError, match=r"v00000002.*marker is missing.*v00000003 is a delta that needs it.*in full"
    ):
        read_from(1, made[1], version_path(tmp_path, 4))


def test_a_link_of_another_history_is_refused(tmp_path):
    made = publish_chain(tmp_path / "a", 3)
    other = stepped(made[0], 99)
    publish(tmp_path / "b", 0, None, made[0], 0, "r")
    publish(tmp_path / "b", 1, 0, other, 0, "r", base=BaseVersion(0, made[0]))
    shutil.rmtree(version_path(tmp_path / "a", 1))
    shutil.copytree(version_path(tmp_path / "b", 1), version_path(tmp_path / "a", 1))
    with pytest.raises(PolicyError, match=r"but the delta at .*v00000002 was made of version 1 with"):
        read_version(version_path(tmp_path / "a", 2))


@pytest.mark.parametrize("change", ["renamed", "reshaped", "recast", "added"])
def test_other_tensors_make_a_full_version(tmp_path, change):
    weights = start()
    publish(tmp_path, 0, None, weights, 0, "r")
    other = dict(weights)
    if change == "renamed":
        other["norm2"] = other.pop("norm")
    elif change == "reshaped":
        other["norm"] = other["norm"].view(4, 8)
    elif change == "recast":
        other["norm"] = other["norm"].view(torch.int16)
    else:
        other["more"] = torch.ones(3)
    made = publish(tmp_path, 1, 0, other, 1, "r", base=BaseVersion(0, weights))
    assert made.kind == "full"
    assert same(read_version(made.path)[1], other)


def test_a_delta_beyond_its_share_makes_a_full_version(tmp_path):
    weights = start()
    publish(tmp_path, 0, None, weights, 0, "r")
    changed = stepped(weights, 1, share=0.3)
    kinds = [
        publish(tmp_path, number, 0, changed, 1, "r", base=BaseVersion(0, weights), largest_share=share).kind
        for number, share in ((1, 0.1), (2, 0.8))
    ]
    assert kinds == ["full", "delta"]
    assert not (version_path(tmp_path, 1) / DELTA).exists()


@pytest.mark.parametrize("trouble", ["missing", "changed in memory"])
def test_a_base_that_is_not_there_makes_a_full_version(tmp_path, trouble, caplog):
    weights = start()
    made = publish(tmp_path, 0, None, weights, 0, "r")
    base = BaseVersion(0, weights | {"norm": weights["norm"] + 1})
    if trouble == "missing":
        shutil.rmtree(made.path)
    with caplog.at_level(logging.WARNING):
        assert publish(tmp_path, 1, 0, stepped(weights, 1), 1, "r", base=base).kind == "full"
    assert "published in full" in caplog.text


def test_a_version_without_changes_is_an_empty_delta(tmp_path):
    weights = start()
    publish(tmp_path, 0, None, weights, 0, "r")
    made = publish(tmp_path, 1, 0, weights, 1, "r", base=BaseVersion(0, weights))
    assert (made.path / DELTA).stat().st_size == 0
    assert same(read_version(made.path)[1], weights)


@settings(max_examples=20, deadline=None)
@given(
    share=st.floats(0, 1),
    seed=st.integers(0, 100),
    dtype=st.sampled_from([torch.bfloat16, torch.float32, torch.float8_e5m2]),
)
def test_a_delta_is_never_larger_than_full_and_its_manifest(tmp_path_factory, share, seed, dtype):
    root, weights = tmp_path_factory.mktemp("v"), start(seed, dtype)
    full = publish(root, 0, None, weights, 0, "r")
    made = publish(
        root, 1, 0, stepped(weights, seed, share), 1, "r", base=BaseVersion(0, weights), largest_share=1.0
    )
    assert made.bytes <= full.bytes + 300 * len(weights)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_changed_byte_of_any_file_is_noticed(chain_folder, data):
    """Of a full version, of a link on the way, or of the version itself: reading it is an error, never
    other weights.
    """
    version = data.draw(st.integers(0, 2))
    file = data.draw(st.sampled_from(sorted(version_path(chain_folder, version).iterdir())))
    raw = file.read_bytes()
    at = data.draw(st.integers(0, len(raw) - 1))
    damaged = bytearray(raw)
    damaged[at] ^= data.draw(st.integers(1, 255))
    if data.draw(st.booleans()):
        damaged = damaged[:at]
    try:
        file.write_bytes(damaged)
        with pytest.raises(PolicyError, match=f"v{version:08d}"):
            read_version(version_path(chain_folder, 2))
    finally:
        file.write_bytes(raw)
    read_version(version_path(chain_folder, 2))


@pytest.fixture(scope="module")
def chain_folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("chain")
    publish_chain(root, 3)
    return root


def test_a_damaged_link_is_avoided_by_a_full_version_behind_it(tmp_path, caplog):
    made = publish_chain(tmp_path, 5, full_every=3)
    file = version_path(tmp_path, 3) / DELTA
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with caplog.at_level(logging.WARNING):
        assert same(read_from(2, made[2], version_path(tmp_path, 4))[1], made[4])
    assert str(file) in caplog.text
    (version_path(tmp_path, 3) / FULL).unlink()
    with pytest.raises(PolicyError, match=r"delta.bin"):
        read_from(2, made[2], version_path(tmp_path, 4))


def test_versions_of_format_1_are_read_and_built_upon(tmp_path):
    weights = start()
    path = publish(tmp_path, 0, None, weights, 0, "r").path
    manifest = read_manifest(path)
    old = Manifest(version=0, parent=None, step=0, run="r", tensors=manifest.tensors).model_dump(
        exclude={
            "format": True,
            "base": True,
            "base_checksum": True,
            "files": True,
            "tensors": {"__all__": {"payload"}},
        }
    )
    (path / MANIFEST).write_text(json.dumps(old, indent=2) + "\n")
    (path / MARKER).write_bytes(b"")
    assert read_manifest(path).format == 1
    assert same(read_version(path)[1], weights)
    made = publish(tmp_path, 1, 0, stepped(weights, 1), 1, "r", base=BaseVersion(0, weights))
    assert made.kind == "delta"
    assert same(read_version(made.path)[1], stepped(weights, 1))


def test_a_manifest_that_builds_on_a_later_version_is_refused():
    with pytest.raises(ValueError, match="cannot build on the later version 4"):
        Manifest(version=4, kind="delta", base=4, base_checksum="0", step=0, run="r", tensors={})
    with pytest.raises(ValueError, match="a delta needs a base"):
        Manifest(version=4, kind="delta", step=0, run="r", tensors={})
