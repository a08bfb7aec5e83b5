from shelf.formats.isbn import check_digit


def test_check_digit():
    assert check_digit("978030640615") == 7
