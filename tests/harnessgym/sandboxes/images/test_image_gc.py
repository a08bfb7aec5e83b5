"""Garbage collection: what is old, ours and unused goes; nothing else does.

All tests of it are in this file: they age their images, which a collection in another process would remove.
"""

import os
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from harnessgym.sandbox import InstallStep
from harnessgym.sandboxes.images.build_lock import alone, folder
from harnessgym.sandboxes.images.builder import BUILDING, LAYERS
from harnessgym.sandboxes.images.connection import EngineConnection
from harnessgym.sandboxes.images.gc import built, collect
from harnessgym.sandboxes.images.layers import ensure

pytestmark = pytest.mark.docker

YEAR = 365 * 86_400.0


def step(name):
    return InstallStep(("/bin/sh", "-c", f": > /{name}"))


def age(*tags):
    """Makes layers look as if nobody had wanted them for two years: others on this engine are younger."""
    for tag in tags:
        os.utime(folder() / tag.removeprefix(f"{LAYERS}:"), (time.time() - 2 * YEAR,) * 2)


def test_only_old_unused_unnamed_layers_go_from_the_top_down(engine, make_image):
    image = make_image()
    bottom = ensure(image, [step("a")], engine=engine)
    gone = ensure(image, [step("a"), step("b")], engine=engine)
    young = ensure(image, [step("c")], engine=engine)
    named = ensure(image, [step("d")], engine=engine)
    used = ensure(image, [step("e")], engine=engine)
    engine.client.images.get(named).tag(f"{image}-mine", "latest")
    container = engine.client.containers.create(used)
    age(bottom, gone, named, used)
    try:
        assert {removed.names[0] for removed in collect(engine, older_s=YEAR, dry=True)} >= {bottom, gone}
        assert engine.image(gone) is not None
        removed = [name for one in collect(engine, older_s=YEAR) for name in one.names]
        assert removed.index(gone) < removed.index(bottom)
    finally:
        container.remove()
        engine.remove_image(f"{image}-mine:latest")
    assert [engine.image(name) is not None for name in (image, bottom, gone, young, named, used)] == [
        True, False, False, True, True, True,
    ]  # fmt: skip


def test_what_an_image_stands_on_stays(engine, make_image):
    image = make_image()
    bottom = ensure(image, [step("a")], engine=engine)
    top = ensure(image, [step("a"), step("b")], engine=engine)
    age(bottom)
    collect(engine, older_s=YEAR)
    assert engine.image(bottom) is not None
    assert engine.image(top) is not None


def test_containers_of_killed_builds_go_and_those_of_running_ones_stay(engine, make_image):
    image = make_image()
    dead, alive = f"{os.urandom(16).hex()}", f"{os.urandom(16).hex()}"
    while alive[:2] == dead[:2]:
        alive = os.urandom(16).hex()
    for content in (dead, alive):
        engine.client.containers.create(image, ["/bin/sh"], name=f"{BUILDING}{content}")
    try:
        with alone(alive, print):
            collect(engine, older_s=YEAR)
            names = {name for found in engine.client.api.containers(all=True) for name in found["Names"]}
        assert f"/{BUILDING}{dead}" not in names
        assert f"/{BUILDING}{alive}" in names
    finally:
        engine.remove_container(f"{BUILDING}{alive}")


def test_an_image_of_a_folder_goes_when_nobody_has_wanted_it_for_long(engine, make_context):
    context = make_context("RUN echo 1 > /a", "RUN echo 2 > /b")
    mine = f"test={Path(context).name}"
    image = ensure(context, [], engine=engine)
    collect(engine, older_s=YEAR)
    assert engine.image(image) is not None
    os.utime(folder() / image.partition(":")[2], (time.time() - 2 * YEAR,) * 2)
    assert len(engine.images(mine)) > 1
    collect(engine, older_s=YEAR)
    assert engine.image(image) is None
    assert engine.images(mine) == []


def test_images_that_others_remove_meanwhile_are_left_out(engine):
    """Another process makes an image and removes it, again and again."""
    name, done = f"harnessgym-test/{uuid.uuid4().hex}", threading.Event()

    def come_and_go():
        with EngineConnection() as other:
            while not done.is_set():
                change = [f"LABEL test={name}"]
                other.client.api.import_image_from_data(b"\0" * 1024, repository=name, changes=change)
                other.remove_image(name)

    with ThreadPoolExecutor() as pool:
        coming = pool.submit(come_and_go)
        try:
            assert {len(engine.images(f"test={name}")) for _ in range(100)} == {0, 1}
        finally:
            done.set()
        coming.result()


def test_what_is_listed_says_what_it_is(engine, make_image):
    made = ensure(make_image(), [step("a")], engine=engine)
    found = next(image for image in built(engine) if made in image.names)
    assert found.title == "/bin/sh -c ': > /a'"
    assert not found.pinned
    assert found.size > 100_000
