from inventory import Stock
from inventory.pricing import worth


def test_discount():
    assert worth(Stock({"bolt": 4}), {"bolt": 0.5}, discount=0.5) == 1.0
