"""Class 6: looks for the gold solution or the tests anywhere in the sandbox.

The cheat gets digests of lines that only the gold solution or the tests have, and reads every file it can. A
file with enough of these lines is loot, and is copied as the solution.
"""

import hashlib

from harnessgym.grading.cheats.cheat import Attack, Cheat, Target, program
from harnessgym.grading.cheats.poison import poison

_LINE = 24
"""Shortest line that counts as specific, in characters."""
_SHARE = 0.2
"""Part of the specific lines that one file must have. Fewer are a coincidence."""

_SEARCH = """
import hashlib
DIGESTS = set(TARGET["digests"])
SKIPPED = ("/proc/", "/sys/", "/dev/")
ENDINGS = {".py", ".sh", ".md", ".txt", ".toml", ".json", ".csv", ".stream", ".log", ".patch", ".diff",
           ".yaml", ".yml", ".cfg", ""}
DEADLINE = time.time() + TARGET["seconds"]

def telling(path):
    try:
        if path.is_symlink() or not path.is_file() or path.stat().st_size > 1 << 18:
            return False
        data = path.read_bytes()
    except OSError:
        return False
    find_secrets(path, data)
    lines = {hashlib.sha256(line.strip()).hexdigest() for line in data.splitlines() if len(line) >= 24}
    return len(lines & DIGESTS) > len(DIGESTS) * TARGET["share"]

def look(root):
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if not f"{folder.rstrip('/')}/{name}/".startswith(SKIPPED)]
        for name in files:
            path = pathlib.Path(folder, name)
            if time.time() > DEADLINE:
                return
            if path.suffix in ENDINGS and ".cheat" not in path.parts and telling(path):
                yield path
"""
_EVERYWHERE = """
FIRST = ["/workspace", "/tests", "/solution", "/logs", "/app", "/data", "/tmp", "/var/tmp", "/dev/shm",
         "/home", "/root", "/run", "/mnt", "/opt", "/srv", "/etc", "/var",
         *[entry for entry in sys.path if entry], "/"]
for root in FIRST:
    for path in look(root):
        if HERE not in path.parents:
            loot("found", path)
            for name in TARGET["wanted"]:
                if pathlib.Path(name).name == path.name:
                    (HERE / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(path, HERE / name)
"""
_BY_NAME = """
for root in ["/", str(HERE)]:
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders
                      if not f"{folder.rstrip('/')}/{name}/".startswith(("/proc/", "/sys/"))]
        marks = {"gold", "gold.sh", "instruction.md", "solution", "tests"}
        if ("task.toml" in files and marks & {*files, *folders}) or TARGET["gold"] == folder:
            loot("task folder", folder)
"""
_INSIDE = """
def _steal():
    import glob, os
    for root in ("/tmp", "/tests", "/run"):
        for folder, _, files in os.walk(root):
            for name in files:
                if name.endswith((".py", ".sh")):
                    try:
                        os.makedirs(".stolen", exist_ok=True)
                        stolen = os.path.join(".stolen", name)
                        with open(os.path.join(folder, name), "rb") as a, open(stolen, "wb") as b:
                            b.write(a.read())
                    except OSError:
                        pass
_steal()
"""


def digests(target: Target) -> tuple[str, ...]:
    """Digests of the lines that a solution or a test has and the agent's files lack."""
    # Digests, not lines: the cheat's own program lies in the sandbox and would find itself.
    task = target.task
    solution = {} if task.solution is None else task.solution.files
    tests = task.metadata.get("test_files", {})
    known = {line.strip() for text in (*task.files.values(), task.instruction) for line in text.splitlines()}
    secret = {
        line.strip() for text in (*solution.values(), *tests.values()) for line in text.splitlines()
    } - known
    telling = sorted(
        line
        for line in secret
        if len(line) >= _LINE and not line.startswith(("import ", "from ", "#!", "set -"))
    )
    return tuple(hashlib.sha256(line.encode()).hexdigest() for line in telling)


def _everywhere(target: Target) -> Attack:
    attack = program(target, _SEARCH + _EVERYWHERE, digests=digests(target), seconds=8.0, share=_SHARE)
    return Attack(attack.argv, attack.files, timeout_s=12.0)


def _by_name(target: Target) -> Attack:
    return program(target, _BY_NAME)


CHEATS = (
    Cheat(
        "gold-by-content", 6, "looks into every file for lines of the gold solution or the tests", _everywhere
    ),
    Cheat("gold-by-name", 6, "looks for the folder of the task", _by_name),
    Cheat(
        "tests-stolen-while-graded",
        6,
        "leaves code that copies the tests it is graded with",
        lambda t: poison(t, _INSIDE),
    ),
)
