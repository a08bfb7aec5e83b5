import hexcolor


def test_red():
    assert hexcolor.parts("#ff0000") == (255, 0, 0)
