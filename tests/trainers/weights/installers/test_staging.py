import hashlib

import pytest
import torch
from safetensors.torch import load_file

from harnessgym.errors import UpstreamError
from harnessgym.store.policies import PolicyVersion
from trainers.weights.installers.api import (
    INSTALLING,
    WEIGHTS,
    digests,
    label_of,
    stage,
    tidy,
    version_in,
)

TENSORS = {
    "a": torch.arange(6.0).reshape(2, 3),
    "b": torch.ones(4, dtype=torch.bfloat16),
    "c": torch.zeros(0),
}


def row(version, kind, path="/versions/x"):
    return PolicyVersion(version, None, kind, str(path), version, "", 0, committed=True, orphaned=False)


def test_a_full_version_is_read_where_it_is(tmp_path):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / WEIGHTS).touch()
    assert stage(TENSORS, row(1, "full", tmp_path / "here"), tmp_path / "scratch") == tmp_path / "here"
    assert not (tmp_path / "scratch").exists()


def test_a_full_version_whose_delta_alone_was_mirrored_is_written_whole(tmp_path):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "delta.bin").touch()
    staged = stage(TENSORS, row(3, "full", tmp_path / "here"), tmp_path / "scratch")
    assert staged.parent == tmp_path / "scratch"
    assert load_file(staged / WEIGHTS).keys() == TENSORS.keys()


def test_another_is_written_whole_and_removed_when_a_later_one_is_served(tmp_path):
    transposed = {**TENSORS, "a": TENSORS["a"].T}
    first, second = stage(TENSORS, row(1, "delta"), tmp_path), stage(transposed, row(2, "delta"), tmp_path)
    for folder, weights in ((first, TENSORS), (second, transposed)):
        found = load_file(folder / WEIGHTS)
        assert found.keys() == weights.keys()
        assert all(
            torch.equal(found[name], tensor) and found[name].dtype == tensor.dtype
            for name, tensor in weights.items()
        )
    tidy(tmp_path, second)
    assert list(tmp_path.iterdir()) == [second]


def test_versions_that_were_published_there_stay(tmp_path):
    for name in ("v00000001", "versions"):
        (tmp_path / name).mkdir()
    staged = stage(TENSORS, row(2, "delta"), tmp_path)
    tidy(tmp_path, tmp_path / "v00000001")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["v00000001", "versions"]
    assert not staged.exists()


def test_what_was_half_written_is_replaced(tmp_path):
    (tmp_path / "staged-v00000001").mkdir()
    (tmp_path / "staged-v00000001" / WEIGHTS).write_text("half")
    assert load_file(stage(TENSORS, row(1, "delta"), tmp_path) / WEIGHTS).keys() == TENSORS.keys()


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UpstreamError, match=r"Version 1 could not be staged in .*/file/staged-v00000001"):
        stage(TENSORS, row(1, "delta"), tmp_path / "file")


def test_digests_are_of_the_bytes_in_the_file():
    found = digests({**TENSORS, "t": TENSORS["a"].T})
    assert found["a"] == hashlib.sha256(TENSORS["a"].numpy().tobytes()).hexdigest()
    assert found["t"] == hashlib.sha256(TENSORS["a"].T.contiguous().numpy().tobytes()).hexdigest()
    assert found["c"] == hashlib.sha256(b"").hexdigest()


def test_a_label_names_a_version_of_one_policy():
    assert version_in(label_of("p", 12), "p") == 12
    assert [
        version_in(label, "p") for label in (label_of("q", 12), "default", INSTALLING, "", "12", "x@p")
    ] == [None] * 6
