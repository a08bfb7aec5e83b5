import pytest

from inventory.stock import Stock


def test_take():
    assert Stock({"bolt": 4}).take("bolt", 3) == 1


def test_too_much():
    with pytest.raises(LookupError):
        Stock({}).take("bolt")
