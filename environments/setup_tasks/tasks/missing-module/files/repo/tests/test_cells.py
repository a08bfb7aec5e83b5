from tablefmt.cells import width


def test_width():
    assert width(["a", "abc"]) == 3
