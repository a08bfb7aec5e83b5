from ledger.settings import SETTINGS


def test_precision():
    assert 0 <= SETTINGS["precision"] <= 4
