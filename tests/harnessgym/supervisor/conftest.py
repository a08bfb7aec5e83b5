"""Databases for runs that are started."""

import pytest


@pytest.fixture
def make_url(tmp_path, request):
    """Makes an empty database of a kind; `inside` is the SQLite file in the run's folder."""

    def make(kind, name="shared"):
        if kind == "inside":
            return None
        if kind == "sqlite":
            return f"sqlite:///{tmp_path}/{name}.db"
        return request.getfixturevalue("postgres").create_database()

    return make
