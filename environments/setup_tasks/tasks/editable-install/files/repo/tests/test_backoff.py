from queuecore.backoff import delay_s


def test_grows():
    assert delay_s(2) == 2.0
