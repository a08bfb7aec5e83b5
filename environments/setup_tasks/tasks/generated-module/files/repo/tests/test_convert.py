import pytest

from gauge.convert import convert


def test_length():
    assert convert(1, "mi", "ft") == pytest.approx(5280)


def test_unknown():
    with pytest.raises(KeyError):
        convert(1, "mi", "parsec")
