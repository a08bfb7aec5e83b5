from recipes.reader import amounts, words


def test_amounts():
    assert amounts("2 eggs, 300 flour") == [2, 300]


def test_words():
    assert words("2 eggs") == ["eggs"]
