"""Agents as layers: what a harness installs runs in its image, without a network, without writing, as
nobody in particular.
"""

import re

import pytest

from harnessgym.harness import Endpoint
from harnessgym.provisioning import image_of, make_harness
from harnessgym.run_config.run import HarnessSection
from harnessgym.sandbox import Capability
from harnessgym.sandboxes.images.layers import ensure
from harnessgym.task import Task

pytestmark = [pytest.mark.docker, pytest.mark.agents, pytest.mark.timeout(900)]


def confined(engine, image, argv):
    """What a command prints in a container that has nothing but a workspace."""
    hostile = {
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "read_only": True,
        "network_mode": "none",
    }
    place = {"user": "1000:1000", "working_dir": "/tmp", "tmpfs": {"/tmp": "mode=1777"}}
    output = engine.client.containers.run(
        image, argv, entrypoint="", remove=True, stderr=True, **place, **hostile
    )
    return output.decode()


@pytest.mark.parametrize(
    ("name", "command", "said"),
    [
        ("mini_swe_agent", ("mini", "--help"), r"Usage: mini"),
        ("claude_code", ("claude", "--version"), r"2\.\d+\.\d+ \(Claude Code\)"),
    ],
)
def test_an_agent_runs_confined_in_the_image_that_has_it_as_layers(engine, name, command, said):
    image = ensure(*image_of(name), engine=engine)
    harness = make_harness(HarnessSection(name=name, type=name), frozenset({Capability.IMAGE}))
    launch = harness.launch(Task("t", "x"), Endpoint("http://127.0.0.1:1", "key"))
    program = launch.argv[:4]  # sh -c SCRIPT PATH
    assert re.search(said, confined(engine, image, [*program, *command]))
    wrong = "find /opt/harnessgym ! -perm -o=r ! -type l; find /dev /opt /var /etc -name '*harnessgym-*' 2>/dev/null; true"
    assert confined(engine, image, ["sh", "-c", wrong]) == ""


def test_programs_of_the_shipped_examples_find_their_sdks(engine):
    image = ensure("harnessgym/python", [], engine=engine)
    code = "import sys, openai, anthropic, pytest; print(sys.executable)"
    assert confined(engine, image, ["python", "-c", code]) == "/usr/bin/python\n"
    assert confined(engine, image, ["git", "--version"]).startswith("git version")
