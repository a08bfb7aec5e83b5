"""Folders with a Dockerfile of a content of their own; what is built from them goes afterwards."""

import time
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
    later round. Waits while the engine still ends a build that was given up; fails if something else uses
    one.
    """
    deadline = time.monotonic() + 60
    while images := engine.images(f"test={label}"):
        assert time.monotonic() < deadline, f"something still uses {[image.id for image in images]}"
        for image in images:
            for named in image.tags or [image.id]:
                engine.remove_image(named)
        time.sleep(0.02)
