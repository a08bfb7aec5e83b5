"""Whole runs that share a database by mistake, are continued, and are lengthened; and the numbers of their
summaries.
"""

import json
import shutil
import signal

import pytest
from sqlalchemy import text

from harnessgym.run_identity import read_identity
from harnessgym.store import TraceStore
from harnessgym.supervisor.progress import read_metrics
from tests.harnessgym.rollout.tiny import HERE
from tests.test_bad_input_runs import Run, none_left
from trainers import checkpoint

_EVALUATED = """
SELECT g.purpose, r.status, w.value, c.version_spans FROM groups g JOIN rollouts r ON r.group_id = g.id
LEFT JOIN rewards w ON w.rollout_id = r.id AND w.channel = 'reward' LEFT JOIN calls c ON c.rollout_id = r.id
WHERE g.purpose LIKE 'after%' ORDER BY g.ordinal
"""


class Numbered(Run):
    """A run whose rewards depend on what was sampled: two evaluations are hardly alike by themselves."""

    def __init__(self, tmp_path, url, steps, folder="run", **sections):
        super().__init__(
            tmp_path, "good", folder=tmp_path / folder, tasks={"set": f"{HERE}:Hashed"}, store={"url": url},
            trainer={"steps": steps, "groups_per_step": 1}, evaluation={"tasks": 2}, **sections,
        )  # fmt: skip

    def evaluated(self):
        """By purpose: rewards, and the versions that sampled."""
        with TraceStore.open(self.paths().store_url()) as store:
            rows = store.read(lambda conn: conn.execute(text(_EVALUATED)).all())
        rewards, versions = {}, {}
        for purpose, status, value, spans in rows:
            assert status == "finished"
            rewards.setdefault(purpose, []).append(value)
            parsed = json.loads(spans) if isinstance(spans, str) else spans
            versions.setdefault(purpose, set()).update(span[2] for span in parsed)
        return rewards, versions

    def summary(self):
        return json.loads(self.paths().summary_path.read_text())


def mean(values):
    return pytest.approx(sum(values) / len(values), abs=1e-4)


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def interrupt(run, extends):
    """Interrupt the start that lengthens the run."""
    run.start("--extend")
    run.wait(lambda: "Extends run" in run.said() and run.running() > 0)
    sockets = run.sockets()
    run.process.send_signal(signal.SIGINT)
    said = run.end(code=130, timeout_s=60)
    assert extends in said
    assert "The same command goes on from here" in said
    assert not run.paths().summary_path.exists()  # it would be that of the shorter run
    run.assert_nothing_is_left()
    assert not sockets.exists()


@pytest.mark.timeout(400)
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def test_a_run_is_continued_lengthened_copied_and_never_mistaken_for_another(tmp_path, kind, request):
    url = request.getfixturevalue("postgres").create_database() if kind == "postgresql" else None
    said = Numbered(tmp_path, url, 1).end()
    run = Numbered(tmp_path, url, 1)
    run_id = read_identity(run.paths()).id
    assert f"Starts run {run_id}: 1 step." in said
    short, (rewards, versions) = run.summary(), run.evaluated()
    assert (short["run"], short["steps"], versions["after_sampled"], versions["after_greedy"]) == (
        run_id,
        1,
        {1},
        {1},
    )
    assert (short["success_after"], short["greedy_after"]) == (
        mean(rewards["after_sampled"]),
        mean(rewards["after_greedy"]),
    )

    other = Numbered(tmp_path, url or f"sqlite:///{run.folder}/traces.db", 2, folder="other")
    said = other.end_here(code=2)
    assert f"holds another run already: run {run_id}" in said
    assert f"of the folder {run.folder}" in said
    assert not other.paths().summary_path.exists()
    assert not other.paths().identity_path.exists()

    if url is None:  # a copied folder goes on by itself
        before = contents(run.folder)
        shutil.copytree(run.folder, tmp_path / "copy")
    longer = Numbered(tmp_path, url, 2, folder="run" if url else "copy")
    assert "Add --extend" in longer.end_here(code=2)
    assert longer.summary() == short
    extends = f"Extends run {run_id} from 1 to 2 steps; it goes on at step 1."
    interrupt(longer, extends)
    assert f"Continues run {run_id} at step " in longer.end("--extend")
    long, (later, versions) = longer.summary(), longer.evaluated()
    assert versions == {
        "after_sampled": {2},
        "after_greedy": {2},
        "after_sampled@1": {1},
        "after_greedy@1": {1},
    }
    assert (later["after_sampled@1"], later["after_greedy@1"]) == (
        rewards["after_sampled"],
        rewards["after_greedy"],
    )
    assert (long["success_after"], long["greedy_after"]) == (
        mean(later["after_sampled"]),
        mean(later["after_greedy"]),
    )
    assert (long["success_before"], long["greedy_before"]) == (
        short["success_before"],
        short["greedy_before"],
    )
    assert (long["run"], long["steps"], long["versions_published"]) == (run_id, 2, 3)
    assert long["rollouts"] == 2 * short["rollouts"] == 8
    assert set(long["evaluation"]["rollouts"].values()) == {2}
    assert long["tokens_sampled"] == long["tokens_trained"] + long["tokens_excluded"]
    assert [line["step"] for line in read_metrics(longer.paths())] == [1, 2]
    state = checkpoint.load_newest(longer.paths().checkpoints).optimizer["state"]
    assert {int(each["step"]) for each in state.values()} == {
        2
    }  # a fresh optimizer would be at its first step
    if url is None:
        longer.assert_verified()
    assert f"Run {run_id} has finished its 2 steps" in longer.end_here(code=0)
    assert longer.summary() == long
    assert not none_left(longer.folder)
    if url is None:  # and leaves the other alone
        assert contents(run.folder) == before
        assert "has finished its 1 step" in Numbered(tmp_path, None, 1).end_here(code=0)
