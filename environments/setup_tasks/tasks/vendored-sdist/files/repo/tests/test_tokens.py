from miniparse.tokens import tokens


def test_numbers():
    assert list(tokens("1 b")) == [("number", 1), ("word", "b")]
