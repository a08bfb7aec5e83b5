"""Short differences between two texts, and which parts of a text are only dates, ids, counts or paths."""

import re
from difflib import SequenceMatcher
from functools import lru_cache

_CONTEXT = 40
_SIDE = 200
_LINE = 280
"""Maximum characters shown around a difference, of each side of it, and of a line."""
_REMEMBERED = 64
"""Number of texts whose stable form is cached. System texts come with every request."""
_VOLATILE_CHARACTERS = 2_000
"""A longer difference is more than dates and ids."""
_WORD = re.compile(r"\w+|\s+|[^\w\s]")
_VOLATILE = re.compile(
    r"\d|^(?:(?:mon|tues|wednes|thurs|fri|satur|sun)day|mon|tue|wed|thu|fri|sat|sun"
    r"|jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?"
    r"|apr(?:il)?|may|june?|july?|aug(?:ust)?|sep(?:t|tember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?"
    r"|am|pm|[0-9a-f]{6,})$",
    re.IGNORECASE,
)
"""Matches a word that names a date, a time, an id or a count."""
_LETTERS = re.compile(r"\w+")
_UUID = re.compile(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b")
_PATH = re.compile(r"""(?<![\w/\\<.~])~?[/\\][^\s<>"'`),;]*""")
_TEMPORARY = re.compile(r"/(?:private/)?(?:tmp|var/tmp|var/folders)/")
_SAID = 48
_WORKING = re.compile(
    r"(?:\b[cp]wd|directory|directories|workspace|worktree)\b(?:\s+is|\s+at)?[\s:=>\"'`(]{1,4}(?:[a-z]:)?$",
    re.IGNORECASE,
)
"""Matches the text that introduces the path of a working directory, within `_SAID` characters before it."""
_NUMBERS = re.compile(r"0(?:[\s.,:/+-]{0,4}0)+")
"""Matches a date or time after each of its words was replaced by 0."""


def difference(old: str, new: str) -> str:
    """Return a unified diff of characters: one hunk from the first to the last difference.

    It has at most about 600 characters.
    """
    start, tail = common_ends(old, new)
    before, after = (
        old[max(0, start - _CONTEXT) : start],
        old[len(old) - tail : len(old) - tail + _CONTEXT // 2],
    )
    lines = [f"@@ -{start},{len(old) - tail - start} +{start},{len(new) - tail - start} @@"]
    for sign, text in (("-", old), ("+", new)):
        lines.append((sign + _one_line(before + _bounded(text[start : len(text) - tail]) + after))[:_LINE])
    return "\n".join(lines)


def only_volatile(old: str, new: str) -> bool:
    """Return whether two texts differ only in words that name dates, times, ids and counts.

    The texts must also have more in common than differs.
    """
    start, tail = _whole_words(old, *common_ends(old, new))
    one = old[start : len(old) - tail]
    other = new[start : len(new) - tail]
    if max(len(one), len(other)) > _VOLATILE_CHARACTERS:
        return False
    before, after = _WORD.findall(one), _WORD.findall(other)
    kept = start + tail
    changed = 0
    named = False
    for tag, i, j, k, m in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if tag == "equal":
            kept += sum(map(len, before[i:j]))
            continue
        words = [word for word in (*before[i:j], *after[k:m]) if word[0].isalnum() or word[0] == "_"]
        if not all(_VOLATILE.search(word) for word in words):
            return False
        named = named or bool(words)
        changed += max(sum(map(len, before[i:j])), sum(map(len, after[k:m])))
    return named and kept > changed


@lru_cache(maxsize=_REMEMBERED)
def without_volatile(text: str) -> str:
    """Return the stable form of a text, without dates, ids, counts, temporary and working directories.

    Two texts that differ only in these, or in whitespace, have the same stable form.
    """
    # UUIDs and paths go first: they consist of several words, and single words would not be recognised.
    text = _UUID.sub("0", _PATH.sub(_placeless, text))
    volatile = {word for word in set(_LETTERS.findall(text)) if _VOLATILE.search(word)}
    text = _LETTERS.sub(lambda word: "0" if word[0] in volatile else word[0], text)
    return _NUMBERS.sub("0", " ".join(text.split()))


def common_ends(old: str, new: str) -> tuple[int, int]:
    """Return the lengths of the common beginning and of the common end of the rest."""
    start = common_start(old, new)
    return start, common_start(old[start:][::-1], new[start:][::-1])


def common_start(one: str, other: str) -> int:
    """Return the length of the common beginning."""
    # Binary search over slices: comparing them runs in C, while a loop over characters would not.
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _placeless(path: re.Match[str]) -> str:
    """Return a path, or 0 if the text calls it the working directory or it is in a temporary folder."""
    before = path.string[max(0, path.start() - _SAID) : path.start()]
    return "0" if _TEMPORARY.match(path[0]) or _WORKING.search(before) else path[0]


def _whole_words(text: str, start: int, tail: int) -> tuple[int, int]:
    """Shorten a common beginning and end so that they do not cut words."""
    while start > 0 and (text[start - 1].isalnum() or text[start - 1] == "_"):
        start -= 1
    while tail > 0 and (text[len(text) - tail].isalnum() or text[len(text) - tail] == "_"):
        tail -= 1
    return start, tail


def _bounded(text: str) -> str:
    return text if len(text) <= _SIDE else f"{text[: _SIDE // 2]} … {text[-_SIDE // 2 :]}"


def _one_line(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\r", "\\r").replace("\n", "\\n")
