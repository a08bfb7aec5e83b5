"""One-liner tasks: rename, move or delete a file, make a folder.

Every task is drawn from a seed of its own. The splits share no file name, no word and no wording.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from environments.small_file import read_small_text
from harnessgym.task import Grade, Limits, Solution, Split, Task

_MAX_BYTES = 4096


def grade(task: Task, workspace: Path) -> Grade:
    """Reward 1.0 if every path is as `task.metadata["expect"]` says, else 0.0.

    A path's text is compared without white space around its lines. None means that the path must not exist. A
    path that ends with "/" is a folder.
    """
    expect: Mapping[str, str | None] = task.metadata["expect"]
    wrong = [
        name
        for name, text in expect.items()
        if not _is_as_expected(workspace / name, text, folder=name.endswith("/"))
    ]
    return Grade({"reward": float(not wrong)}, evidence={"wrong": wrong})


def _is_as_expected(path: Path, text: str | None, *, folder: bool) -> bool:
    if text is None:
        return not os.path.lexists(path)
    if folder:
        return path.is_dir() and not path.is_symlink()
    file_text = read_small_text(path, _MAX_BYTES)
    return file_text is not None and _lines(file_text) == _lines(text)


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines()]


_WORDS = """
amber anchor apple arrow autumn badge basil beacon birch bison blanket bottle branch bridge bronze butter
button cabin cactus camel candle canyon carbon carrot castle cedar cherry circle clover cobalt comet copper
coral cotton crane crystal daisy desert diamond dolphin dragon eagle ember engine falcon feather fern field
finch flame flute forest fossil fox frost garden garlic ginger glacier glass globe goose granite grape
harbor hazel helmet honey horizon island ivory jacket jade jasmine jungle kettle kitten ladder lagoon
lantern laurel lemon lilac lime lion lizard lotus magnet mango maple marble marsh meadow melon meteor mirror
mint moon moss mountain needle nickel oasis ocean olive onion orange orbit orchid otter oyster palm panda
paper parrot peach pearl pebble pepper piano pigeon pilot pine planet plum pocket pond poppy prairie pumpkin
quartz rabbit rain raven ribbon river robin rocket rose ruby saddle salmon sand sapphire shadow shell silver
sparrow spider spruce star stone storm sugar summer sunset swan table thunder tiger timber tomato topaz
tower trumpet tulip tunnel turtle valley velvet violet walnut water willow window winter wolf yarn zebra
"""
_SIZES: dict[Split, int] = {"train": 1600, "test": 400}


@dataclass(frozen=True, slots=True)
class TaskDraw:
    """The random parts of a task: distinct names, and the lines of a file."""

    one: str
    other: str
    word: str
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        """The text of the file."""
        return "".join(f"{line}\n" for line in self.lines)

    def fill(self, template: str) -> str:
        """Fills a wording or command: `{one}` and `{other}` are files, `{word}` is a folder."""
        return template.format(one=self.one, other=self.other, word=self.word)


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of task."""

    wordings: Mapping[Split, tuple[str, ...]]
    """Instructions with placeholders; see `TaskDraw.fill`."""
    command: str
    """A solution with the same placeholders."""
    files: Callable[[TaskDraw], dict[str, str]]
    """The initial files, path to text."""
    expect: Callable[[TaskDraw], dict[str, str | None]]
    """The expected paths, as `grade` reads them."""


KINDS: dict[str, Kind] = {
    "rename": Kind(
        {
            "train": (
                "Rename the file {one} to {other}.",
                "Move the file {one} to {other}.",
                "Change the name of the file {one} to {other}.",
                "Give the file {one} the new name {other}.",
            ),
            "test": ("Rename {one} as {other}.", "The file {one} gets a new name, {other}."),
        },
        "mv {one} {other}",
        lambda draw: {draw.one: draw.text},
        lambda draw: {draw.one: None, draw.other: draw.text},
    ),
    "move": Kind(
        {
            "train": (
                "Move the file {one} into the folder {word}.",
                "Put the file {one} into the directory {word}.",
                "Move {one} to the folder {word}.",
                "The file {one} belongs into the folder {word}. Move it.",
            ),
            "test": (
                "Please move {one} into the directory {word}.",
                "Bring the file {one} into the folder {word}.",
            ),
        },
        "mv {one} {word}",
        lambda draw: {draw.one: draw.text, f"{draw.word}/{draw.other}": draw.text},
        lambda draw: {
            draw.one: None,
            f"{draw.word}/{draw.one}": draw.text,
            f"{draw.word}/{draw.other}": draw.text,
        },
    ),
    "delete": Kind(
        {
            "train": (
                "Delete the file {one}.",
                "Remove the file {one}.",
                "Get rid of the file {one}.",
                "Erase the file {one}.",
            ),
            "test": ("Please delete {one}.", "Remove {one} from this folder."),
        },
        "rm {one}",
        lambda draw: {draw.one: draw.text, draw.other: draw.text},
        lambda draw: {draw.one: None, draw.other: draw.text},
    ),
    "folder": Kind(
        {
            "train": (
                "Make a directory called {word}.",
                "Create a folder named {word}.",
                "Make the folder {word}.",
                "Add a directory with the name {word}.",
            ),
            "test": ("Create a new directory {word}.", "I need a folder called {word}."),
        },
        "mkdir {word}",
        lambda draw: {draw.other: draw.text},
        lambda draw: {f"{draw.word}/": "", draw.other: draw.text},
    ),
}
"""Name to kind. They were chosen by SmolLM2's results before training, on wordings of the training split
only."""


class OneLiners:
    """1,600 training and 400 test tasks, the same on every machine."""

    name = "one_liners"

    def tasks(self, split: Split) -> Sequence[Task]:
        """All tasks of a split in a fixed order. The kinds take turns."""
        return [_task(split, index) for index in range(_SIZES[split])]


def words(split: Split) -> tuple[str, ...]:
    """The words of a split, also used for file names. A third is reserved for the test split."""
    shuffled = _WORDS.split()
    Random("one-liner words").shuffle(shuffled)
    third = len(shuffled) // 3
    return tuple(shuffled[:third] if split == "test" else shuffled[third:])


def _task(split: Split, index: int) -> Task:
    random = Random(f"one-liner {split} {index}")
    name = list(KINDS)[index % len(KINDS)]
    kind = KINDS[name]
    one, other, word, *lines = random.sample(words(split), random.randint(5, 9))
    draw = TaskDraw(f"{one}.txt", f"{other}.txt", word, tuple(lines))
    return Task(
        id=f"one_liners/{split}/{index:04d}",
        instruction=draw.fill(random.choice(kind.wordings[split])),
        split=split,
        seed=index,
        files=kind.files(draw),
        limits=Limits(wall_s=60.0, turns=4),
        grader="environments.one_liners:grade",
        solution=Solution(run=(("sh", "-c", draw.fill(kind.command)),)),
        metadata={"kind": name, "expect": kind.expect(draw)},
    )
