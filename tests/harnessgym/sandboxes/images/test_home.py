"""Homes: a path of an image that leads to the workspace, with what lay there set aside for root."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessgym.errors import ImageError, TaskError
from harnessgym.sandboxes.images.layers import checked_home, ensure

docker = pytest.mark.docker
LOOK = "readlink -f {home}; ls -A /.harnessgym/home; stat -c '%a %U' /.harnessgym"


def said(engine, image, text):
    return engine.client.containers.run(
        image, ["sh", "-c", text], user="0:0", network_mode="none", remove=True
    ).decode()


@docker
def test_a_home_leads_to_the_workspace_and_what_was_there_is_for_root(engine, make_context):
    context = make_context(
        "WORKDIR /srv/deep/app",
        "RUN echo 1 > .hidden && mkdir folder && chmod 0711 /srv && chmod 0700 /srv/deep",
    )
    image = ensure(context, [], home="/srv/deep/app/", engine=engine)
    looked = said(engine, image, LOOK.format(home="/srv/deep/app"))
    assert looked == "/workspace\n.hidden\nfolder\n700 root\n"
    assert said(engine, image, "stat -c %a /srv /srv/deep") == "711\n701\n"
    assert ensure(context, [], home="@workdir", engine=engine) == image


@docker
def test_a_home_that_is_not_there_yet_is_made(engine, make_context):
    image = ensure(make_context(), [], home="/quite/new", engine=engine)
    assert said(engine, image, LOOK.format(home="/quite/new")) == "/workspace\n700 root\n"


@docker
def test_the_workspace_itself_can_be_the_home(engine, make_context):
    image = ensure(make_context("WORKDIR /workspace", "RUN touch here"), [], home="@workdir", engine=engine)
    assert said(engine, image, "ls /.harnessgym/home; ls -A /workspace; pwd") == "here\n/workspace\n"


@docker
def test_a_link_as_home_moves_what_it_leads_to(engine, make_context):
    image = ensure(
        make_context("RUN mkdir /data && touch /data/here && ln -s data /app"), [], home="/app", engine=engine
    )
    assert said(engine, image, LOOK.format(home="/app")) == "/workspace\nhere\n700 root\n"
    assert said(engine, image, "readlink /app /data") == "data\n/workspace\n"


@docker
@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("RUN touch /app", "is no folder"),
        ("RUN ln -s /etc /app", "leads to /etc"),
        ("RUN ln -s / /app", "leads to /"),
        (
            (
                "RUN mkdir -p /app && ln -s app/loop /loop && ln -s loop /app/loop && rm -r /app && ln -s "
                "/loop "
                "/app"
            ),
            "/app",
        ),
        ("VOLUME /app/data", "/app/data a VOLUME"),
    ],
)
def test_a_home_that_cannot_be_moved_is_an_error_that_says_why(engine, make_context, line, why):
    with pytest.raises(ImageError, match=why):
        ensure(make_context(line), [], home="/app", engine=engine)


@docker
def test_an_image_without_a_workdir_has_no_home(engine, make_context):
    for context in (make_context(), make_context("WORKDIR /")):
        assert ensure(context, [], home="@workdir", engine=engine) == ensure(context, [], engine=engine)


@pytest.mark.parametrize(
    "home", ["", "app", "/", "//", "/.", "//app", "/a/../b", "/workspace/a", "/etc", "/usr/", "/tmp/a", "/home/agent", "/a b"]
)  # fmt: skip
def test_what_cannot_be_a_home_is_refused(home):
    with pytest.raises(TaskError, match=r"[Hh]ome"):
        checked_home(home)


@pytest.mark.parametrize(
    "home", ["/app", "/testbed/", "/workspace", "/root", "/root/a", "/usr/src/app", "/opt/x", "/home/user"]
)
def test_what_can_be_a_home(home):
    assert checked_home(home) == home.rstrip("/")


@given(st.text(alphabet="/.ab @\n", max_size=12))
def test_a_home_is_one_absolute_path(home):
    try:
        found = checked_home(home)
    except TaskError:
        return
    assert found.startswith("/")
    assert not {"", ".", ".."} & set(found[1:].split("/"))
