from poster.theme import DARK, between


def test_dark():
    assert len(DARK) == 2


def test_mixed():
    assert between("#000000", "#020202") == "#010101"
