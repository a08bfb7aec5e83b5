"""What test scripts fetch is read from their lines; what stands in for their package managers knows what
is there.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import harnessgym
from harnessgym.grading.verifiers.tools import FOLDER, install, tools_of

UVX = """#!/bin/bash
apt-get update && apt-get install -y curl
curl -LsSf https://astral.sh/uv/0.9.5/install.sh | sh
source $HOME/.local/bin/env
uvx \\
  -p 3.13 \\
  -w pytest==8.4.1 \\
  --with=pytest-json-ctrf==0.3.5 \\
  pytest --ctrf /logs/verifier/ctrf.json /tests/test_state.py -rA
"""
VENV = """#!/bin/bash
uv venv .tbench-testing; source .tbench-testing/bin/activate
uv pip install "pytest==8.4.1" 'numpy>=1.26,<3' -i https://index.example/simple
uv run pytest $TEST_DIR/test_outputs.py -rA
"""


def read(script, **others):
    return tools_of([{"test.sh": script, **others}])


def test_the_usual_template_needs_pytest_and_no_curl():
    tools = read(UVX)
    assert tools.pip == ("pytest==8.4.1", "pytest-json-ctrf==0.3.5")
    assert (tools.fetches, tools.apt, tools.python) == (True, (), False)


def test_what_pip_installs_is_there_for_plain_python():
    tools = read(VENV)
    assert tools.pip == ("pytest==8.4.1", "numpy>=1.26,<3")
    assert tools.python


def test_packages_of_the_system_are_installed_and_curl_too_if_it_fetches_something_else():
    assert read("apt-get install -y --no-install-recommends curl jq=1.7 tree").apt == ("jq=1.7", "tree")
    assert read("apt install -y curl\ncurl -s http://localhost:80/").apt == ("curl",)


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("pip install requests", ("pytest", "requests")),
        (
            "python3 -m pip install -q --break-system-packages requests[socks]==2.32.0",
            ("pytest", "requests[socks]==2.32.0"),
        ),
        ("sudo pip3 install -U -r /tests/requirements.txt", ("pytest", "lxml==5.3.0", "six")),
        ("uv add pytest==8.4.1 pandas", ("pytest==8.4.1", "pandas")),
        ("uv tool install ruff==0.6.0", ("pytest", "ruff==0.6.0")),
        ("uv run --with requests python -m pytest", ("pytest", "requests")),
        ("uvx pytest@8.4.1 /tests", ("pytest==8.4.1",)),
        ("uvx ruff@latest check", ("pytest", "ruff")),
        ("uvx --from httpie http GET :80", ("pytest", "httpie")),
        ("uv tool run --with-requirements /tests/requirements.txt pytest", ("pytest", "lxml==5.3.0", "six")),
        ("if ! pip install six; then exit 1; fi", ("pytest", "six")),
        ("X=1 pip install ./local $NAME git+https://host/x six", ("pytest", "six")),
        ("pip install pytest==8.0.0; uvx -w pytest==9.0.0 pytest", ("pytest==8.0.0",)),
    ],
)
def test_requirements_are_read_from_every_way_to_name_them(line, wanted):
    tools = read(line, **{"requirements.txt": "lxml == 5.3.0  # parser\n\n# nothing\nsix\n"})
    assert tools.fetches
    assert tools.pip == wanted


def test_scripts_that_fetch_nothing_need_no_layer():
    tools = read(
        "#!/bin/sh\n# pip install x\npython3 -m pytest /tests && echo 1 > /logs/verifier/reward.txt\n"
    )
    assert tools == tools_of([])
    assert install(tools) == ()


@given(st.text(alphabet=st.characters(codec="utf-8")))
def test_any_text_can_be_read(text):
    assert isinstance(install(read(text)), tuple)
    assert isinstance(install(read("pip install " + text)), tuple)


def test_packages_come_before_the_programs_that_stand_in():
    first, second = install(read("apt-get install -y jq\npip install six"))
    assert first[4:] == ("jq",)
    assert second[4] == FOLDER
    assert second[-2:] == ("pytest", "six")


@pytest.fixture
def offline(tmp_path):
    """Runs the stand-in under a name, as a line of a script in a folder called /tests would."""
    program = Path(harnessgym.__file__).parent / "grading" / "runners" / "offline.py"

    def run(line, path=os.environ["PATH"]):
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        (tmp_path / "offline").write_text(f"#!{sys.executable} -I\n{program.read_text()}")
        (tmp_path / "offline").chmod(0o755)
        for name in ("apt-get", "curl", "wget", "uv", "uvx", "pip"):
            if not (folder / name).exists():
                (folder / name).symlink_to("../offline")
        env = {"PATH": f"{folder}:{path}", "HARNESSGYM_MISSING": str(tmp_path / "missing")}
        # an argument that begins with /tests/ makes the shell look like one that runs a test script
        argv = ["bash", "-c", line, "/tests/test.sh"]
        done = subprocess.run(
            argv, env=env, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
        )
        missing = tmp_path / "missing"
        return done, missing.read_text().splitlines() if missing.exists() else []

    return run


def test_what_is_there_counts_as_installed(offline):
    system = "apt-get update && apt-get install -y curl"
    done, missing = offline(f"{system} && pip install -q pytest 'pytest>=7' && uv add pytest && uv init")
    assert (done.returncode, missing) == (0, []), done.stderr


def test_the_installer_of_uv_is_an_empty_script(offline):
    curl, wget = (
        "curl -LsSf https://astral.sh/uv/0.9.5/install.sh",
        "wget -qO- https://astral.sh/uv/install.sh",
    )
    done, missing = offline(f"{curl} | sh; {wget} | sh")
    assert (done.returncode, missing) == (0, [])
    done, _ = offline("curl -LsSf https://astral.sh/uv/install.sh -o setup.sh && sh setup.sh")
    assert done.returncode == 0


def test_uvx_runs_the_command_in_the_environment_that_there_is(offline):
    done, missing = offline(
        "uvx -p 3.13 -w pytest pytest --version; uv run python -c 'import pytest; print(pytest.__name__)'"
    )
    assert (done.returncode, missing) == (0, [])
    assert "pytest" in done.stdout


def test_a_virtual_environment_can_be_made_and_entered(offline):
    entered = "uv venv .tests && . .tests/bin/activate && python -c 'import pytest'"
    done, _ = offline(f"{entered} && .tests/bin/python -c ''")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("pip install nothing-of-this-name==1", "the Python package nothing-of-this-name==1"),
        ("uvx -w pytest==1.0 pytest", "the Python package pytest==1.0"),
        ("uv pip install -r absent.txt", "the Python package absent.txt"),
        ("apt-get install -y no-such-package", "the Debian package no-such-package"),
        ("curl -s https://example.org/data.csv -o data.csv", "https://example.org/data.csv by curl"),
        ("uv publish", "uv publish"),
    ],
)
def test_what_is_not_there_is_said_and_written_down(offline, line, said):
    done, missing = offline(f"{line}; code=$?; true; exit $code")
    assert done.returncode != 0
    assert said in done.stderr
    assert missing == [said]


def test_what_other_programs_ask_for_is_not_written_down(offline):
    program = (
        'import subprocess; raise SystemExit(subprocess.call(["pip", "install", "nothing-of-this-name"]))'
    )
    done, missing = offline(f"python3 -c '{program}'; true")
    assert "nothing-of-this-name" in done.stderr
    assert missing == []
