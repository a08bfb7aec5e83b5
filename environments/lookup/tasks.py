"""Lookup tasks: find an item's id with one tool, read one attribute with another, and answer with the value.

The splits share no item and no wording. Item names are pairs of syllables ("zor-min") from a list that both
splits use, so a policy that can copy also copies names it never saw. The words "price", "stock" and "weight"
occur in both splits. Ids and values are random for each task, and all values of a task differ. So only the
right tool on the right item gives the answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import permutations, product
from pathlib import Path
from random import Random

from environments.lookup.protocol import ANSWER_FILE, CATALOG_FILE, KINDS, Catalog
from environments.small_file import read_small_text
from harnessgym.task import Grade, Limits, Split, Task

_MAX_BYTES = 256


def grade(task: Task, workspace: Path) -> Grade:
    """Reward 1.0 if the stripped text of `answer.txt` is the task's answer, else 0.0. Never raises."""
    answer = read_small_text(workspace / ANSWER_FILE, _MAX_BYTES)
    return Grade({"reward": float(answer is not None and answer.strip() == task.metadata["answer"])})


SYLLABLES = (
    "bam", "bel", "bor", "cal", "cor", "cus", "dan", "den", "dor", "fal", "fen", "gar",
    "gol", "han", "hul", "jas", "kel", "kir", "lan", "lom", "mar", "mil", "nar", "nol",
    "pel", "pim", "rad", "ros", "sal", "sin", "tam", "tor", "ven", "vol", "wen", "zor",
)  # fmt: skip
_OPENINGS = ("", "Hello. ", "Please help me. ", "A question: ", "Now this one. ")
_REQUESTS = (
    'What is the {kind} of "{name}"?',
    'Tell me the {kind} of "{name}".',
    'Please look up "{name}" and give its {kind}.',
    'I need the {kind} for "{name}" now.',
    'For the item "{name}", what is its {kind}?',
    'Item "{name}": what {kind} do we have?',
    'Do you know the {kind} that "{name}" has?',
    'Look at "{name}" and tell me its {kind}, please.',
    'Give me "{name}", I want the {kind} of it.',
    'We want to know what {kind} is listed for "{name}".',
    'Find "{name}" for me. Which {kind} is it?',
    'A customer asks about "{name}": its {kind}, please.',
    'The {kind} is what I need to know about "{name}".',
    'Is the {kind} of the item "{name}" in the list?',
)
_CLOSINGS = ("", " Thanks.", " The customer is here.")
TEMPLATES: dict[Split, tuple[str, ...]] = {
    "train": tuple("".join(parts) for parts in product(_OPENINGS, _REQUESTS, _CLOSINGS)),
    "test": (
        'Please tell me what the {kind} of the item "{name}" is.',
        'What {kind} is listed for the item "{name}"?',
        'I want to know the {kind} of "{name}", please.',
        'Look up the {kind} for "{name}" now.',
        'The customer wants "{name}". Give me its {kind}.',
        'About "{name}": do you have the {kind}?',
        'Which {kind} has the item "{name}"? Please look.',
        'Here is an item, "{name}". I need its {kind}.',
    ),
}
"""Question wordings with placeholders for the attribute and the item. The splits share none."""
_SIZES: dict[Split, int] = {"train": 480, "test": 300}
_TEST_NAMES = 420
_ITEMS_PER_CATALOG = 4
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True, slots=True)
class LookupQuestion:
    """A drawn question: its text, the attribute, the item, and the catalog for the tools."""

    text: str
    kind: str
    name: str
    catalog: Catalog

    @property
    def answer(self) -> str:
        """The value that the right tool returns for the item."""
        return self.catalog.attributes[self.catalog.ids[self.name]][self.kind]


class LookupTasks:
    """480 training and 300 test tasks, the same on every machine."""

    name = "lookup"

    def tasks(self, split: Split) -> Sequence[Task]:
        """All tasks of a split in a fixed order."""
        return _tasks(split)


@cache
def _tasks(split: Split) -> tuple[Task, ...]:
    return tuple(_task(split, index) for index in range(_SIZES[split]))


@cache
def item_names(split: Split) -> tuple[str, ...]:
    """The item names of a split, in a fixed shuffled order."""
    names = [f"{first}-{second}" for first, second in permutations(SYLLABLES, 2)]
    Random("lookup names").shuffle(names)
    return tuple(names[:_TEST_NAMES] if split == "test" else names[_TEST_NAMES:])


def draw_question(
    random: Random, kind: str, template: str, name: str, others: Sequence[str]
) -> LookupQuestion:
    """A question about `name` with random ids and values. `others` are the other names in its catalog."""
    names = random.sample([name, *others], 1 + len(others))
    ids = random.sample([letter + digit for letter in _LETTERS for digit in "0123456789"], len(names))
    values = [str(value) for value in random.sample(range(10, 100), len(names) * len(KINDS))]
    attributes = {id_: dict(zip(KINDS, values[len(KINDS) * i :], strict=False)) for i, id_ in enumerate(ids)}
    catalog = Catalog(dict(zip(names, ids, strict=True)), attributes)
    return LookupQuestion(template.format(kind=kind, name=name), kind, name, catalog)


def _task(split: Split, index: int) -> Task:
    random = Random(f"lookup {split} {index}")
    names = item_names(split)
    templates = TEMPLATES[split]
    others = random.sample([name for name in names if name != names[index]], _ITEMS_PER_CATALOG - 1)
    kind = KINDS[index % len(KINDS)]
    question = draw_question(random, kind, random.choice(templates), names[index], others)
    return Task(
        id=f"lookup/{split}/{index:04d}",
        instruction=question.text,
        split=split,
        seed=index,
        files={CATALOG_FILE: question.catalog.to_json()},
        limits=Limits(wall_s=30.0, turns=8),
        grader="environments.lookup:grade",
        metadata={"answer": question.answer, "kind": kind, "item": names[index]},
    )
