"""Class 20: the strongest lookup table of the visible tests. Judgements by value have it as their control."""

from collections.abc import Mapping

from harnessgym.grading.by_value.lookup import ANSWERING, PROGRAM, RECORDING, TABLE, tabled
from harnessgym.grading.cheats.cheat import Attack, Cheat, Target
from harnessgym.grading.cheats.cheat import program as attack_program
from harnessgym.grading.cheats.composition import has_faulty_module
from harnessgym.grading.differential.functions import is_test
from harnessgym.grading.differential.suite import program

_READ = 10_000_000
"""Values that the table's programs read: where tests judge, all run in one process."""
_RECORD = r"""
import tempfile
# Gold's answers for the calls of the visible tests, as if they had leaked. Gold itself does not stay.
with tempfile.TemporaryDirectory() as place:
    gold = pathlib.Path(place, "gold")
    shutil.copytree(HERE, gold, symlinks=True)
    for name, text in TARGET["gold_files"].items():
        put(gold / name, text)
    (gold / TARGET["table"]).write_bytes(TARGET["recording"])
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir",
         str(gold), "--continue-on-collection-errors", str(gold)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*(str(gold / each) for each in TARGET["sources"]),
             str(gold)]), "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.DEVNULL, timeout=50, cwd=gold)
    table = (gold / TARGET["table"]).read_bytes().removeprefix(TARGET["recording"])
for name, text in TARGET["own_files"].items():
    put(HERE / name, text)
(HERE / TARGET["table"]).write_bytes(TARGET["answering"] + table)
shutil.rmtree(HERE / ".cheat")
"""


def _answers_every_visible_call(target: Target) -> Attack:
    task = target.task
    assert task.solution is not None
    solved = {**task.files, **task.solution.files}
    checks = task.metadata.get("tests", ())
    attack = attack_program(
        target,
        _RECORD,
        gold_files={**task.solution.files, **_tabled(solved, task.files)},
        own_files=_tabled(task.files, solved),
        sources=sorted({source for check in checks for source in check.get("sources", ())}),
        table=TABLE,
        recording=RECORDING % _READ,
        answering=ANSWERING % _READ,
    )
    return Attack(attack.argv, attack.files, timeout_s=60.0)


def _tabled(files: Mapping[str, str], other: Mapping[str, str]) -> dict[str, str]:
    names = [file for file in files if file.endswith(".py") and not is_test(file) and file in other]
    texts = {file: tabled(file, files[file], everywhere=files[file] != other[file]) for file in names}
    return {PROGRAM: program("tabling"), **{file: text for file, text in texts.items() if text}}


CHEATS = (
    Cheat(
        "lookup-table-of-all-calls",
        20,
        "answers every call that the visible tests make, with its effects on arguments, from a table",
        _answers_every_visible_call,
        has_faulty_module,
    ),
)
