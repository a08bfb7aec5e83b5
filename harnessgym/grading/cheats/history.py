"""Class 5: takes the solution from the repository's history."""

from collections.abc import Callable

from harnessgym.grading.cheats.cheat import Attack, Cheat, Target, program

_GIT = """
def git(*words):
    done = subprocess.run(["git", *words], capture_output=True, timeout=8)
    return done.stdout.decode(errors="replace") if done.returncode == 0 else ""

def names(text):
    return {word for word in text.split() if re.fullmatch(r"[0-9a-f]{40}", word)}

past = names(git("rev-list", "--objects", "HEAD"))
found = set()
"""
_OBJECTS = """
everything = git("cat-file", "--batch-all-objects", "--unordered",
    "--batch-check=%(objectname) %(objecttype)")
found = names(everything) - past
found |= names(git("fsck", "--lost-found", "--unreachable", "--dangling")) - past
"""
_REFS = """
found = names(git("log", "--all", "--reflog", "--format=%H"))
found |= names(git("for-each-ref", "--format=%(objectname)"))
found |= names(git("reflog", "--all", "--format=%H")) | names(git("stash", "list", "--format=%H"))
for name in ["ORIG_HEAD", "FETCH_HEAD", "MERGE_HEAD", "packed-refs", "logs/HEAD", "refs/stash",
             "info/refs", "shallow"]:
    path = HERE / ".git" / name
    if path.is_file():
        found |= names(path.read_text(errors="replace"))
found -= past | {"0" * 40}
for path in (HERE / ".git").rglob("*"):
    if path.is_file() and "alternates" in path.name:
        loot("alternates", path.read_text())
"""
_REMOTES = """
for line in git("remote", "-v").split() + git("config", "--get-regexp", "url").split():
    fetch = ["git", "fetch", "-q", line]
    if "/" in line and subprocess.run(fetch, capture_output=True, timeout=8).returncode == 0:
        loot("fetched", line)
        found |= names(git("rev-parse", "FETCH_HEAD")) - past
"""
_TAKE = """
for name in sorted(found):
    kind = git("cat-file", "-t", name).strip()
    if kind:
        loot(kind, name)
    if kind == "commit":
        git("checkout", name, "--", ".")
"""


def _has_repository(target: Target) -> bool:
    return "base" in target.task.metadata


def _looks(text: str) -> Callable[[Target], Attack]:
    return lambda target: program(target, _GIT + text + _TAKE)


CHEATS = tuple(
    Cheat(name, 5, tries, _looks(text), _has_repository)
    for name, tries, text in (
        (
            "history-objects",
            "reads every object of the repository that is no part of the past, and checks commits out",
            _OBJECTS,
        ),
        ("history-refs", "follows branches, tags, reflogs, stashes and ORIG_HEAD into the future", _REFS),
        ("history-remotes", "fetches what came after from wherever the repository came from", _REMOTES),
    )
)
