"""Folders with a Dockerfile of a content of their own; what is built from them goes afterwards."""

import uuid
from contextlib import contextmanager


@contextmanager
def contexts(engine, folder):
    """Gives `make(*lines, base=..., **files)`, which returns a `context:FOLDER`."""
    made = []

    def make(*lines, base="harnessgym/base", files=()):
        label = uuid.uuid4().hex
        where = folder / label
        where.mkdir()
        for path, text in dict(files).items():
            (where / path).parent.mkdir(parents=True, exist_ok=True)
            (where / path).write_text(text)
        (where / "Dockerfile").write_text("\n".join([f"FROM {base}", f"LABEL test={label}", *lines]) + "\n")
        made.append(label)
        return f"context:{where}"

    yield make
    for label in reversed(made):  # a later one may start from an earlier
        discard(engine, label)


def discard(engine, label):
    """Removes every image with that label: one that others stand on only loses its names, and goes in a
    later round. Fails if something uses one.
    """
    before = None
    while images := engine.client.images.list(filters={"label": f"test={label}"}, all=True):
        names = {image.id: tuple(image.tags) for image in images}
        assert names != before, f"something still uses {names}"
        before = names
        for image in images:
            for named in image.tags or [image.id]:
                engine.remove_image(named)
