"""Recipes: what ships can be read, and what a recipe cannot say is refused with its line."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from harnessgym.errors import ImageError
from harnessgym.harnesses.program import NODE_IMAGE, PYTHON_IMAGE
from harnessgym.sandboxes.images import recipes
from harnessgym.sandboxes.images.recipes import Dockerfile

ROOT = Path(__file__).parents[4]


def read(tmp_path, text):
    path = tmp_path / "docker" / "mine" / "Dockerfile"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return Dockerfile(path).read()


def test_the_recipes_that_ship_can_be_read_parents_first():
    names = recipes.names()
    assert names[0] == "base"
    assert set(names) >= {"base", "python", "node", "proxy", "trainer"}
    for name in names[1:]:
        recipe = recipes.recipe(name)
        parent = recipes.recipe_name(recipe.parent)
        assert names.index(parent) < names.index(name)
        assert recipe.layers


def test_the_images_that_harnesses_name_have_recipes():
    assert recipes.recipe_name(PYTHON_IMAGE) == "python"
    assert recipes.recipe_name(f"{NODE_IMAGE}:latest") == "node"
    assert recipes.recipe_name("debian") is None
    assert recipes.recipe_name("harnessgym/layer:0123") is None


def test_packages_are_pinned():
    for name in recipes.names()[1:]:
        for layer in recipes.recipe(name).layers:
            words = layer.title.split() if layer.step else ()
            if "--break-system-packages" in words:
                assert all("==" in word for word in words[words.index("--break-system-packages") + 1 :])


def test_instructions_become_layers(tmp_path):
    (tmp_path / "file").write_text("x")
    parent, layers = read(
        tmp_path,
        "FROM harnessgym/base\n# a comment\nWORKDIR /here\nRUN one \\\n  # inside\n  && two\n"
        'RUN ["a", "b c"]\nCOPY file ./\nENV A=b\n',
    )
    assert parent == "harnessgym/base"
    assert layers[0].changes == ("WORKDIR /here",)
    assert layers[1].step.argv == ("sh", "-ec", "cd /here && one  && two")
    assert layers[2].step.argv == ("a", "b c")
    assert layers[3].copied.to == "/here/"
    assert layers[3].copied.sources == (tmp_path / "file",)
    assert layers[4].changes == ("ENV A=b",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("RUN x", r"Dockerfile:1: FROM must come first"),
        ("FROM a\n\nHEALTHCHECK x", r"Dockerfile:3: recipes cannot say HEALTHCHECK\. Known: FROM RUN COPY"),
        ("FROM a AS b", r"Dockerfile:1: a recipe has one FROM"),
        ("FROM a\nCOPY missing /x", r"Dockerfile:2: cannot copy .*missing"),
        ("FROM a\nCOPY ../secret /x", r"Dockerfile:2: cannot copy"),
        ('FROM a\nRUN ["x"', r"Dockerfile:2: .* is no JSON list"),
        ("# nothing", "has no FROM"),
    ],
)
def test_what_a_recipe_cannot_say_is_refused(tmp_path, text, message):
    with pytest.raises(ImageError, match=message):
        read(tmp_path, text)


def test_an_unknown_recipe_is_answered_with_the_nearest():
    with pytest.raises(ImageError, match="Did you mean 'python'"):
        recipes.recipe("pyton")


def test_a_wheel_has_the_recipes(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "docker", "harnessgym"):
        subprocess.run(["cp", "-r", str(ROOT / name), str(source)], check=True)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(tmp_path),
        str(source),
    ]
    subprocess.run(command, check=True, capture_output=True)
    names = zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist()
    for name in ("base/recipe.toml", "python/Dockerfile", "node/Dockerfile", "compose.yaml"):
        assert any(found.endswith(f"data/share/harnessgym/docker/{name}") for found in names), name
