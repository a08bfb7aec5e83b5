"""Images of 2 MB, so that layers are made in a fraction of a second."""

import uuid

import pytest

from harnessgym.sandboxes.images.connection import EngineConnection
from tests.harnessgym.sandboxes.images.contexts import contexts, discard
from tests.support.shell_root import shell_root


@pytest.fixture(scope="session")
def engine():
    with EngineConnection() as connection:
        yield connection


@pytest.fixture
def make_image(engine):
    """Makes images with a shell and of a content of their own; they and what is built on them go
    afterwards.
    """
    made = []

    def make(*changes):
        name = f"harnessgym-test/{uuid.uuid4().hex}"
        changes = [*changes, f"LABEL test={name}"]
        engine.client.api.import_image_from_data(shell_root(), repository=name, tag="latest", changes=changes)
        made.append(name)
        return name

    yield make
    for name in made:
        discard(engine, name)


@pytest.fixture
def make_context(engine, tmp_path):
    """Makes folders with a Dockerfile; see `contexts`."""
    with contexts(engine, tmp_path) as make:
        yield make
