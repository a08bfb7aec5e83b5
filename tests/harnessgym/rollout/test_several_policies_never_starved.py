"""The rule of `test_never_starved`, where several policies are trained on the same groups.

The same random walks, over a real store with the real plan, admission, settling of batches and ledger.
Engines of each policy lag by themselves, and each policy's trainer steps, and goes back, on its own.
"""

import tempfile

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from harnessgym.run_config.run import FurtherPolicySection
from harnessgym.scheduling.admission import SERVING
from harnessgym.scheduling.consumption import Candidate, choose
from harnessgym.scheduling.staleness import VersionChain
from harnessgym.store import backlog, ledger, policies, rollouts, workers
from harnessgym.store.ledger import StepRecord, TrainedRollout
from harnessgym.store.tables import groups
from harnessgym.store.tables import rollouts as rollout_table
from harnessgym.store.workers import WorkerRow
from tests.harnessgym.rollout.test_never_starved import Walk, walk_to_the_end

ENGINES = 2
"""Of each policy."""


class SharedWalk(Walk):
    """A walk of two policies."""

    def __init__(self, folder, config, seed):
        super().__init__(folder, config, seed)
        trainer = self.config.trainer
        if trainer.when_stale != "wait" and trainer.max_staleness:
            trainer = trainer.model_copy(update={"over_launch": self.draw.choice((None, 1.0, 1.5, 4.0))})
        further = FurtherPolicySection(name="helper", path=config.policy.path)
        self.config = self.config.model_copy(update={"policies": (further,), "trainer": trainer})
        self.plan.config = self.config
        helper = self.do(lambda conn: policies.register(conn, self.run_id, "helper"))
        self.do(lambda conn: policies.publish(conn, helper, self.version(0, None, 0)))
        self.ids = (self.policy_id, helper)

    def newest_of(self, policy_id):
        return self.store.read(lambda conn: policies.latest(conn, policy_id))

    def chain_of(self, policy_id):
        return VersionChain(self.store.read(lambda conn: policies.versions(conn, policy_id)))

    @property
    def done(self):
        return all(self.newest_of(each).step >= self.config.trainer.steps for each in self.ids)

    def serve(self, *, well=False):
        for policy_id in self.ids:
            for name in [f"{policy_id}-{number}" for number in range(ENGINES)]:
                if well or self.draw.random() < 0.3:
                    state = (
                        "ready"
                        if well
                        else self.draw.choice(("ready", "ready", "draining", "updating", "dead"))
                    )
                    newest, known = (
                        self.newest_of(policy_id).version,
                        {row.id: row.version for row in self.engines()},
                    )
                    target = newest if well or self.draw.random() < 0.5 else known.get(name, newest)
                    row = WorkerRow(name, self.run_id, "embedded", name, target, state, policy_id)
                    self.do(lambda conn, row=row: workers.upsert(conn, row))

    def ages(self, step):
        """By group: how old the oldest token of any policy would be if all were sampled when the group was
        submitted.
        """
        chains = {policy_id: self.chain_of(policy_id) for policy_id in self.ids}
        columns = (groups.c.id, groups.c.submitted_version, groups.c.submitted_versions)
        return {
            row.id: max(
                step - chains[each].depth(version)
                for each, version in {self.policy_id: row.submitted_version, **row.submitted_versions}.items()
            )
            for row in self.store.read(lambda conn: conn.execute(select(*columns)).all())
        }

    def look(self, policy_id):
        """The step that a trainer gathers for, what is settled of its batch, and what it would do about
        the rest.
        """
        step, trainer = self.newest_of(policy_id).step, self.config.trainer
        settled = self.store.read(lambda conn: backlog.batch(conn, self.run_id, step + 1))
        ages, standing = self.ages(step), self.store.read(lambda conn: backlog.free(conn, self.run_id))
        candidates = [Candidate(item.id, item.ordinal, item.complete, ages[item.id]) for item in standing]
        open_places = trainer.groups_per_step - len(settled)
        found = (
            choose(candidates, open_places, trainer.max_staleness, trainer.when_stale)
            if open_places
            else None
        )
        return step, settled, found

    def train(self):
        """Every trainer settles what it can, and takes a step if its batch is whole."""
        for policy_id in self.ids:
            if self.newest_of(policy_id).step < self.config.trainer.steps:
                self.train_one(policy_id)

    def train_one(self, policy_id):
        step, settled, found = self.look(policy_id)
        if found is not None:
            leave = {"too_stale": found.drop, "requeued": found.requeue}
            args = (self.run_id, step + 1, len(settled), found.take, leave)
            assert self.do(lambda conn: backlog.settle_batch(conn, *args))
            settled = self.store.read(lambda conn: backlog.batch(conn, self.run_id, step + 1))
        if len(settled) == self.config.trainer.groups_per_step:
            number = self.store.read(lambda conn: policies.next_version(conn, policy_id))
            of_batch = rollout_table.c.group_id.in_(settled) & (rollout_table.c.status == "finished")
            members = self.store.read(
                lambda conn: conn.execute(select(rollout_table.c.id).where(of_batch)).scalars().all()
            )
            version = self.version(number, self.newest_of(policy_id).version, step + 1)
            record = StepRecord(
                version, tuple(settled), tuple(TrainedRollout(each, 1, 0) for each in members), ()
            )
            self.do(lambda conn: ledger.commit_step(conn, policy_id, record))

    def mishap(self):
        helper = self.ids[1]
        parent = self.newest_of(helper).parent_version
        if parent is not None and self.draw.random() < 0.3:
            self.do(lambda conn: ledger.abandon_after(conn, helper, parent))
        else:
            super().mishap()

    def somebody_has_a_next_move(self):
        if self.done or self.store.read(lambda conn: rollouts.unfinished(conn, self.run_id, "train")):
            return True
        for policy_id in self.ids:
            newest = self.newest_of(policy_id)
            if newest.step < self.config.trainer.steps:
                _, _, found = self.look(policy_id)
                if found is None or found.take or found.drop or found.requeue:
                    return True
            serving = [
                row.version for row in self.engines() if row.state in SERVING and row.follows(policy_id)
            ]
            if not serving or min(serving) != newest.version:
                return True
        return self.submit() > 0


@settings(
    max_examples=8,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.integers(0, 2**32))
def test_somebody_always_has_a_next_move_and_the_run_ends(make_config, seed):
    with tempfile.TemporaryDirectory() as folder:
        walk = SharedWalk(folder, make_config("good"), seed)
        with walk.store:
            walk_to_the_end(walk, seed)
            batches = [
                walk.store.read(lambda conn, step=step: backlog.batch(conn, walk.run_id, step))
                for step in range(1, walk.config.trainer.steps + 1)
            ]
            assert {len(batch) for batch in batches} == {walk.config.trainer.groups_per_step}
