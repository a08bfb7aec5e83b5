"""What the README promises is what CI runs and what the tree holds."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language):
    found = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    return [text for name, text in found if name == language]


def test_every_command_is_run_by_ci():
    ci = (ROOT / ".ci" / "run").read_text()
    commands = [
        line for block in blocks("") for line in block.splitlines() if line.startswith(("make ", ".venv/"))
    ]
    assert len(commands) >= 4
    assert [command for command in commands if command not in ci] == []


def test_the_python_example_is_run_by_ci():
    assert len(blocks("python")) == 1
    assert "README.md | .venv/bin/python -" in (ROOT / ".ci" / "run").read_text()


def test_the_file_tree_names_what_is_there():
    tree = next(block for block in blocks("") if block.startswith("harnessgym/"))
    folder = ROOT
    for line in tree.splitlines():
        name = line.split()[0]
        top = not line.startswith(" ")
        path = (ROOT if top else folder) / name
        assert path.exists(), line
        folder = path if top else folder


def test_every_link_leads_somewhere():
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"
