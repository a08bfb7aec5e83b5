import gauge


def test_version():
    assert gauge.__version__ == "3.2"
