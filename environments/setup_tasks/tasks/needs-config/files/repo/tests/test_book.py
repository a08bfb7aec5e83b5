from ledger.book import balance, shown


def test_balance():
    assert balance(["1.10", "-0.10"]) == 1


def test_currency():
    assert shown(3)[-3:].isupper()
