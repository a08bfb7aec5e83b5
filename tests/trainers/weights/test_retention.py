import shutil

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainers.weights.chain import read_version
from trainers.weights.manifest import DELTA, FULL, MANIFEST, version_numbers, version_path
from trainers.weights.publish import BaseVersion, collect, publish


def history(root, parents, full_every=4):
    """Versions 0.., each made of the one at its place in `parents`; their weights."""
    made = {}
    for version, parent in enumerate(parents):
        weights = {"a": torch.randn(50, generator=torch.Generator().manual_seed(version)).bfloat16()}
        if parent is not None:
            weights = {"a": made[parent]["a"].clone()}
            weights["a"][version % 50] = version
        made[version] = weights
        base = (
            None
            if parent is None or not version_path(root, parent).exists()
            else BaseVersion(parent, made[parent])
        )
        publish(
            root, version, parent, weights, version, "r", base=base, full_every=full_every, largest_share=1.0
        )
    return made


@st.composite
def parents(draw):
    count = draw(st.integers(1, 8))
    return [None, *(draw(st.sampled_from([None, *range(number)])) for number in range(1, count))]


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_what_is_kept_or_in_use_can_always_be_read(tmp_path_factory, data):
    root = tmp_path_factory.mktemp("v")
    made = history(root, data.draw(parents()), data.draw(st.integers(1, 5)))
    for _ in range(2):
        there = version_numbers(root)
        keep, in_use = (
            data.draw(st.integers(1, 4)),
            set(data.draw(st.lists(st.integers(0, len(made) + 1), max_size=3))),
        )
        if data.draw(st.booleans()):
            torn = root / ".removed-v00000077"  # what a process leaves that was killed while it removed
            torn.mkdir()
            (torn / MANIFEST).write_text("{")
        removed = collect(root, keep, in_use)
        assert sorted([*removed, *version_numbers(root)]) == there
        assert not list(root.glob(".removed*"))
        for number in {*there[-keep:], *(in_use & set(there))}:
            assert read_version(version_path(root, number))[1]["a"].equal(made[number]["a"])
        if keep == 1 and not in_use:
            assert len(version_numbers(root)) <= 5, "one chain"


def test_deltas_go_before_their_bases(tmp_path):
    """So whenever a process is killed between two removals, what is left can be read."""
    history(tmp_path, [None, 0, 1, None])
    assert collect(tmp_path, 1) == [2, 1, 0]
    assert version_numbers(tmp_path) == [3]


def test_nothing_older_goes_while_a_needed_version_cannot_be_read(tmp_path, caplog):
    history(tmp_path, [None, None, 1, None])
    (version_path(tmp_path, 2) / MANIFEST).write_text("{}")
    assert collect(tmp_path, 1, {2}) == []
    assert "Nothing older than version 2 is removed" in caplog.text
    assert collect(tmp_path, 1) == [2, 1, 0]


def test_a_version_that_was_never_committed_is_left_alone(tmp_path):
    history(tmp_path, [None, 0])
    shutil.copytree(version_path(tmp_path, 1), version_path(tmp_path, 5))
    (version_path(tmp_path, 5) / "COMMITTED").unlink()
    assert collect(tmp_path, 1) == []
    assert version_numbers(tmp_path) == [0, 1, 5]


def test_a_full_version_with_a_delta_needs_no_base(tmp_path):
    history(tmp_path, [None, 0, 1], full_every=2)
    assert {file.name for file in version_path(tmp_path, 2).iterdir()} >= {FULL, DELTA}
    assert collect(tmp_path, 1) == [1, 0]
    read_version(version_path(tmp_path, 2))
