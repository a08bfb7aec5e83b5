import pytest
import torch
import xxhash
from pydantic import ValidationError

from harnessgym.errors import PolicyError
from trainers.weights.manifest import (
    MANIFEST,
    MARKER,
    Manifest,
    TensorEntry,
    file_checksum,
    marker_of,
    newest_version,
    parse_manifest,
    read_manifest,
    version_numbers,
    version_path,
)

WEIGHT = torch.arange(6, dtype=torch.float32).reshape(2, 3)


def make_manifest(version=3, **fields):
    tensors = fields.pop("tensors", {"weight": TensorEntry.of(WEIGHT)})
    return Manifest(version=version, step=7, run="run", tensors=tensors, **fields)


def committed(folder, manifest, marker=None):
    path = version_path(folder, manifest.version)
    path.mkdir()
    raw = manifest.encoded()
    (path / MANIFEST).write_bytes(raw)
    (path / MARKER).write_bytes(
        (marker_of(raw) if manifest.format > 1 else b"") if marker is None else marker
    )
    return path


@pytest.mark.parametrize("form", [1, 2])
def test_a_committed_manifest_is_read_as_it_was_written(tmp_path, form):
    manifest = make_manifest(format=form, parent=2)
    assert read_manifest(committed(tmp_path, manifest)) == manifest


def test_fields_without_a_value_are_not_written():
    assert b"parent" not in make_manifest().encoded()
    assert b'"parent": 0' in make_manifest(parent=0).encoded()


def test_a_version_without_a_marker_was_never_completely_written(tmp_path):
    path = committed(tmp_path, make_manifest())
    (path / MARKER).unlink()
    with pytest.raises(PolicyError, match="the COMMITTED marker is missing"):
        read_manifest(path)


def test_a_version_without_a_manifest_cannot_be_read(tmp_path):
    path = committed(tmp_path, make_manifest())
    (path / MANIFEST).unlink()
    with pytest.raises(PolicyError, match=r"cannot be read: .*Publish it again as a new version"):
        read_manifest(path)


@pytest.mark.parametrize("raw", [b"", b"{}", b"not json", b'{"version": 1, "step": 0, "run": "r"}'])
def test_a_malformed_manifest_is_refused_with_its_place(raw):
    with pytest.raises(PolicyError, match="Policy version at /versions/v1 cannot be read"):
        parse_manifest(raw, b"", "/versions/v1")


@pytest.mark.parametrize(("form", "marker"), [(2, b""), (2, b"0" * 32 + b"\n"), (1, b"anything")])
def test_a_manifest_that_does_not_match_its_marker_is_refused(tmp_path, form, marker):
    path = committed(tmp_path, make_manifest(format=form), marker)
    with pytest.raises(PolicyError, match=r"manifest\.json does not match the checksum in COMMITTED"):
        read_manifest(path)


def test_one_changed_byte_of_a_manifest_is_noticed(tmp_path):
    path = committed(tmp_path, make_manifest(format=2))
    raw = (path / MANIFEST).read_bytes()
    (path / MANIFEST).write_bytes(raw.replace(b'"step": 7', b'"step": 8'))
    with pytest.raises(PolicyError, match="does not match"):
        read_manifest(path)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"kind": "delta"}, "a delta needs a base"),
        ({"base": 2}, "a delta needs a base"),
        ({"base_checksum": "ab"}, "a delta needs a base"),
        ({"base": 3, "base_checksum": "ab"}, "version 3 cannot build on the later version 3"),
        ({"base": 4, "base_checksum": "ab"}, "version 3 cannot build on the later version 4"),
        ({"unheard_of": 1}, "unheard_of"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(fields, problem):
    with pytest.raises(ValidationError, match=problem):
        make_manifest(**fields)


def test_a_full_version_may_have_a_delta_too():
    assert make_manifest(base=2, base_checksum="ab").kind == "full"


def test_the_checksum_depends_on_names_and_bits_but_not_on_the_order():
    one, two = TensorEntry.of(WEIGHT), TensorEntry.of(WEIGHT + 1)
    checksum = make_manifest(tensors={"a": one, "b": two}).checksum
    assert make_manifest(tensors={"b": two, "a": one}, parent=1).checksum == checksum
    assert make_manifest(tensors={"a": two, "b": one}).checksum != checksum
    assert make_manifest(tensors={"a": one, "c": two}).checksum != checksum


def test_an_entry_matches_equal_bits_only():
    entry = TensorEntry.of(WEIGHT)
    assert (entry.dtype, entry.shape) == ("float32", (2, 3))
    assert entry.matches(WEIGHT.clone())
    assert entry.describes(WEIGHT + 1)
    assert not entry.matches(WEIGHT + 1)


@pytest.mark.parametrize("other", [WEIGHT.reshape(3, 2), WEIGHT.to(torch.bfloat16), WEIGHT.to(torch.int32)])
def test_an_entry_describes_one_shape_and_dtype(other):
    assert not TensorEntry.of(WEIGHT).describes(other)
    assert not TensorEntry.of(WEIGHT).matches(other)


def test_negative_zero_is_another_value():
    assert not TensorEntry.of(torch.zeros(2)).matches(-torch.zeros(2))


def test_only_directories_of_versions_are_counted(tmp_path):
    for name in ("v00000002", "v00000010", "v123456789", "v1", "v00000003.tmp", "versions"):
        (tmp_path / name).mkdir()
    assert version_numbers(tmp_path) == [2, 10, 123456789]
    assert newest_version(tmp_path) == 123456789


def test_a_folder_without_versions_has_minus_one_as_its_newest(tmp_path):
    assert newest_version(tmp_path) == -1
    assert newest_version(tmp_path / "missing") == -1


def test_a_version_s_directory_has_eight_digits_or_more(tmp_path):
    assert version_path(tmp_path, 42).name == "v00000042"
    assert version_path(tmp_path, 1234567890).name == "v1234567890"


@pytest.mark.parametrize("size", [0, 1, (1 << 20) + 3])
def test_a_file_s_checksum_covers_all_its_bytes(tmp_path, size):
    data = bytes(number % 251 for number in range(size))
    (tmp_path / "file").write_bytes(data)
    assert file_checksum(tmp_path / "file") == xxhash.xxh3_128_hexdigest(data)
