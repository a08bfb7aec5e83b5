import json
import stat

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from harnessgym.errors import PolicyError
from trainers.weights.chain import read_version
from trainers.weights.manifest import Manifest, newest_version, version_path
from trainers.weights.publish import publish_full


def weights(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {
        "a.weight": torch.randn(4, 3, generator=generator),
        "b.weight": torch.randn(5, generator=generator).bfloat16(),
    }


def test_a_version_reads_back_bit_by_bit(tmp_path):
    made = publish_full(tmp_path, 3, 2, weights(), step=7, run="r1")
    manifest, read = read_version(made.path)
    assert made.path == version_path(tmp_path, 3) == tmp_path / "v00000003"
    assert (manifest.version, manifest.parent, manifest.kind, manifest.step, manifest.run) == (
        3,
        2,
        "full",
        7,
        "r1",
    )
    assert manifest.checksum == made.checksum
    assert manifest.tensors["b.weight"].dtype == "bfloat16"
    assert manifest.tensors["a.weight"].shape == (4, 3)
    assert all(torch.equal(tensor, read[name]) for name, tensor in weights().items())
    assert made.bytes == sum(file.stat().st_size for file in made.path.iterdir())
    assert {file.name for file in tmp_path.iterdir()} == {"v00000003"}
    assert stat.S_IMODE(made.path.stat().st_mode) == 0o755


def test_a_version_is_never_overwritten(tmp_path):
    made = publish_full(tmp_path, 1, None, weights(0), step=0, run="r")
    with pytest.raises(PolicyError, match="never overwritten"):
        publish_full(tmp_path, 1, None, weights(1), step=0, run="r")
    assert torch.equal(read_version(made.path)[1]["a.weight"], weights(0)["a.weight"])


def test_views_and_shared_tensors_are_published(tmp_path):
    block = torch.randn(6, 4)
    made = publish_full(tmp_path, 0, None, {"t": block.T, "part": block[2:4].clone()}, step=0, run="r")
    assert torch.equal(read_version(made.path)[1]["t"], block.T)


def test_without_the_marker_nothing_is_read(tmp_path):
    made = publish_full(tmp_path, 1, None, weights(), step=0, run="r")
    (made.path / "COMMITTED").unlink()
    with pytest.raises(PolicyError, match="COMMITTED marker is missing"):
        read_version(made.path)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_flipped_byte_of_the_data_is_noticed(tmp_path_factory, data):
    made = publish_full(tmp_path_factory.mktemp("v"), 1, None, weights(), step=0, run="r")
    file = made.path / "model.safetensors"
    raw = bytearray(file.read_bytes())
    start = 8 + int.from_bytes(raw[:8], "little")
    raw[data.draw(st.integers(start, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    file.write_bytes(raw)
    with pytest.raises(PolicyError, match=r"tensor '(a|b)\.weight' is not the one that was published"):
        read_version(made.path)


@pytest.mark.parametrize("change", ["dropped", "added", "reshaped", "recast"])
def test_changed_tensors_are_named(tmp_path, change):
    made = publish_full(tmp_path, 1, None, weights(), step=0, run="r")
    held = load_file(made.path / "model.safetensors")
    if change == "dropped":
        del held["a.weight"]
    elif change == "added":
        held["a.weights"] = torch.zeros(1)
    elif change == "reshaped":
        held["a.weight"] = held["a.weight"].reshape(3, 4)
    else:
        held["a.weight"] = held["a.weight"].view(torch.int32)
    save_file(held, made.path / "model.safetensors")
    with pytest.raises(PolicyError, match=r"'a\.weight"):
        read_version(made.path)


@pytest.mark.parametrize("file", ["manifest.json", "model.safetensors"])
def test_unreadable_files_are_policy_errors(tmp_path, file):
    made = publish_full(tmp_path, 1, None, weights(), step=0, run="r")
    (made.path / file).write_bytes(b"{}")
    with pytest.raises(PolicyError, match="cannot be read"):
        read_version(made.path)


def test_the_checksum_covers_names_and_contents():
    raw = {"version": 1, "parent": None, "step": 0, "run": "r"}
    entry = {"dtype": "float32", "shape": [1], "xxh3": "00"}
    sums = {
        Manifest.model_validate_json(json.dumps(raw | {"tensors": tensors})).checksum
        for tensors in ({"a": entry}, {"b": entry}, {"a": entry | {"xxh3": "01"}}, {"a": entry, "b": entry})
    }
    assert len(sums) == 4


def test_the_newest_version_is_found_again(tmp_path):
    assert newest_version(tmp_path) == -1
    for number in (2, 11):
        publish_full(tmp_path, number, None, weights(number), step=0, run="r")
    assert newest_version(tmp_path) == 11


def test_drafts_of_a_killed_trainer_are_removed(tmp_path):
    kept = publish_full(tmp_path, 1, None, weights(), step=0, run="r")
    draft = tmp_path / ".v00000002-abc"
    draft.mkdir()
    (draft / "model.safetensors").write_bytes(b"half")
    made = publish_full(tmp_path, 2, 1, weights(), step=1, run="r")
    assert set(tmp_path.iterdir()) == {kept.path, made.path}
