from shelf import by_author


def test_by_author():
    assert by_author([("Lem", "Solaris"), ("Lem", "Fiasco")]) == {"Lem": ["Solaris", "Fiasco"]}


def test_empty():
    import shelf.index

    assert shelf.index.by_author([]) == {}
