"""Images from folders with a Dockerfile: built by the engine, once per content, and every failure says
which folder and why.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessgym.errors import ImageError
from harnessgym.sandbox import InstallStep
from harnessgym.sandboxes.images.builder import CONTEXTS
from harnessgym.sandboxes.images.contexts import starting_images
from harnessgym.sandboxes.images.layers import ensure, workdir_of

docker = pytest.mark.docker
ASK = """
import sys
from harnessgym.sandboxes.images.layers import ensure
print(ensure(sys.argv[1], []))
"""


def said(engine, image, *command):
    return engine.client.containers.run(image, list(command), network_mode="none", remove=True).decode()


def where(context):
    return Path(context.removeprefix("context:"))


@docker
def test_a_folder_becomes_an_image_and_is_found_again(engine, make_context):
    context = make_context(
        "COPY words /words", "ENV SAID=yes", "RUN echo $(cat /words) built > /made", files={"words": "as"}
    )
    told = []
    image = ensure(context, [], engine=engine, say=told.append)
    assert image.startswith(f"{CONTEXTS}:")
    assert any(line.startswith("Step 5/") for line in told)
    assert said(engine, image, "sh", "-c", "cat /made; echo $SAID") == "as built\nyes\n"
    told.clear()
    assert ensure(context, [], engine=engine, say=told.append) == image
    assert told == []


@docker
def test_steps_are_laid_on_top_of_it(engine, make_context):
    image = ensure(
        make_context("RUN echo below > /below"),
        [InstallStep(("sh", "-c", "cp /below /above"))],
        engine=engine,
    )
    assert said(engine, image, "cat", "/above") == "below\n"


@docker
def test_what_is_sent_decides_whether_it_is_built_again(engine, make_context):
    context = make_context(
        "COPY . /all", files={"a": "1", ".dockerignore": "# nothing\n\nignored\n", "ignored": "x"}
    )
    first = ensure(context, [], engine=engine)
    (where(context) / "ignored").write_text("another")
    os.utime(where(context) / "a", (1, 1))
    assert ensure(context, [], engine=engine) == first
    (where(context) / "a").chmod(0o755)
    second = ensure(context, [], engine=engine)
    (where(context) / "link").symlink_to("a")
    third = ensure(context, [], engine=engine)
    assert len({first, second, third}) == 3
    assert (
        said(engine, third, "sh", "-c", "ls /all; test -x /all/a && readlink /all/link")
        == "Dockerfile\na\nlink\na\n"
    )


@docker
def test_an_image_below_that_changed_makes_another(engine, make_context):
    first = ensure(make_context("RUN echo 1 > /below"), [], engine=engine)
    second = ensure(make_context("RUN echo 2 > /below"), [], engine=engine)
    name = f"harnessgym-test/below-{first[-8:]}"
    context = make_context("RUN cp /below /above", base=name)
    try:
        found = []
        for below in (first, second):
            engine.client.images.get(below).tag(name, "latest")
            found.append(said(engine, ensure(context, [], engine=engine), "cat", "/above"))
        assert found == ["1\n", "2\n"]
    finally:
        engine.remove_image(f"{name}:latest")


@docker
def test_many_processes_that_want_one_folder_build_it_once(engine, make_context):
    context = make_context("RUN echo $$ $(cat /proc/uptime) > /made; sleep 1")
    began = time.time()
    asking = [
        subprocess.Popen([sys.executable, "-c", ASK, context], stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    answers = {process.communicate(timeout=300)[0].strip() for process in asking}
    assert len(answers) == 1
    (image,) = answers
    events = engine.client.events(
        since=int(began), until=int(time.time()) + 1, filters={"event": "tag"}, decode=True
    )
    assert sum(event["Actor"]["Attributes"].get("name") == image for event in events) == 1


@docker
def test_a_build_that_fails_shows_its_last_words_and_its_folder(engine, make_context):
    context = make_context("RUN echo so far so good && echo then this >&2 && exit 7")
    for _ in range(2):
        with pytest.raises(ImageError) as caught:
            ensure(context, [], engine=engine)
        assert str(where(context)) in str(caught.value)
        assert "then this" in str(caught.value)
        assert "returned a non-zero code: 7" in str(caught.value)


@docker
@pytest.mark.parametrize(
    "line", ["NONSENSE here", "COPY missing /there", "RUN --mount=type=cache,target=/x true"]
)
def test_what_the_engine_refuses_names_the_folder(engine, make_context, line):
    context = make_context(line)
    with pytest.raises(ImageError, match=where(context).name):
        ensure(context, [], engine=engine)


@docker
@pytest.mark.parametrize(
    "command", ["sleep 600", "while true; do echo on; sleep 0.05; done"], ids=["silent", "talking"]
)
def test_a_build_that_does_not_end_is_given_up(engine, make_context, command):
    context = make_context(f"RUN {command}")
    with pytest.raises(ImageError, match=r"did not end within 3 s"):
        ensure(context, [], engine=engine, timeout_s=3.0)


@docker
def test_an_image_that_is_nowhere_is_named(engine, make_context):
    context = make_context(base="no-such.invalid/nothing:1")
    with pytest.raises(
        ImageError, match=r"Dockerfile starts from the image 'no-such.invalid/nothing:1', .* pulled"
    ) as caught:
        ensure(context, [], engine=engine)
    assert str(where(context)) in str(caught.value)


@docker
def test_a_folder_without_a_dockerfile_is_named(engine, tmp_path):
    with pytest.raises(ImageError, match=f"There is no {tmp_path}/Dockerfile"):
        ensure(f"context:{tmp_path}", [], engine=engine)


@docker
def test_the_workdir_of_an_image(engine, make_context, make_image):
    assert workdir_of(make_context("WORKDIR /some", "WORKDIR where"), engine=engine) == "/some/where"
    assert workdir_of(make_image(), engine=engine) == "/"
    with pytest.raises(ImageError, match="'no-such/image'"):
        workdir_of("no-such/image", engine=engine)


def test_what_a_dockerfile_starts_from():
    text = """
        ARG BASE=one/image:1
        ARG EMPTY
        FROM --platform=linux/amd64 ${BASE} AS Build
        ARG LATER=not/this
        RUN echo FROM nowhere
        # FROM comment
        FROM build AS test
        from two/image \\
            as last
        FROM ${EMPTY}
        FROM ${OTHER:-three/image}
        FROM $BASE
        FROM scratch
        COPY --from=build --chown=1:1 /a /b
        COPY --from=0 /a /b
        COPY --from=four/image@sha256:00 /a /b
    """
    assert starting_images(text) == ["one/image:1", "two/image", "three/image", "four/image@sha256:00"]


@given(st.text(max_size=200))
def test_any_text_has_starting_images(text):
    assert all(starting_images(text))
