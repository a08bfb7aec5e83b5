from pathlib import Path


def test_lines_are_sorted():
    assert Path("/app/sorted.txt").read_text().split() == ["a", "b", "c"]
