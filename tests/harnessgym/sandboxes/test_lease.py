"""Nodes' folders and their locks."""

import os

from harnessgym.sandboxes.lease import claim, is_abandoned


def test_a_folder_is_its_node_s_until_it_is_released(tmp_path):
    first = claim(tmp_path)
    second = claim(tmp_path)
    assert first.folder.is_dir()
    assert not is_abandoned(str(first.folder))
    first.release()
    assert is_abandoned(str(first.folder))
    third = claim(tmp_path)
    assert not first.folder.exists()
    assert {path.name for path in tmp_path.iterdir()} == {second.folder.name, third.folder.name}
    second.release()
    third.release()


def test_a_folder_has_one_name_however_its_place_is_called(tmp_path):
    (tmp_path / "place").mkdir()
    (tmp_path / "link").symlink_to("place")
    for root in (tmp_path / "link", tmp_path / "place" / ".." / "place"):
        lease = claim(root)
        assert lease.folder.parent == tmp_path / "place"
        lease.release()


def test_what_is_gone_is_abandoned_and_what_cannot_be_looked_at_is_not(tmp_path):
    assert is_abandoned(str(tmp_path / "nothing"))
    (tmp_path / "link").symlink_to(tmp_path)
    assert not is_abandoned(str(tmp_path / "link"))
    assert not is_abandoned(os.devnull + "/x")
