"""The rule that no run may break: there is never no capacity and nothing that runs.

Random walks through the states of a run, over a real store with the real plan, admission, consumption and
ledger: engines that lag, die and come back, nodes that come and go, attempts that fail, groups that are
cancelled, dropped or requeued, a trainer that goes on from an earlier version. After every move somebody must
have a next one; and once everything works, the run comes to its end. The simulator holds to the same rule:
`tests/trainers/simulation`.
"""

import random
import tempfile
from functools import partial

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from harnessgym.outcome.failure import Cause, StopReason
from harnessgym.rollout.plan import GroupPlan
from harnessgym.scheduling.admission import SERVING
from harnessgym.scheduling.consumption import Candidate, choose
from harnessgym.scheduling.staleness import VersionChain
from harnessgym.store import TraceStore, backlog, leases, ledger, policies, rollouts, runs, workers
from harnessgym.store.ledger import StepRecord, TrainedRollout
from harnessgym.store.policies import PolicyVersion
from harnessgym.store.rollouts import RolloutOutcome
from harnessgym.store.tables import groups
from harnessgym.store.tables import rollouts as rollout_table
from harnessgym.store.workers import WorkerRow

MOVES = 40
NAMES = ("w0", "w1", "w2")


class Walk:
    """A run whose every process is played by random numbers."""

    def __init__(self, folder, config, seed):
        self.draw = draw = random.Random(seed)
        trainer = config.trainer.model_copy(
            update={
                "steps": draw.randint(1, 5),
                "groups_per_step": draw.randint(1, 3),
                "group_size": draw.randint(2, 3),
                "max_staleness": draw.randint(0, 3),
                "when_stale": draw.choice(("wait", "drop", "requeue")),
            }
        )
        node = config.node.model_copy(
            update={"max_running": draw.randint(1, 9), "evaluate_waiting": draw.randint(0, 3)}
        )
        self.config = config.model_copy(update={"trainer": trainer, "node": node})
        self.store = TraceStore.create(f"sqlite:///{folder}/traces.db", synchronous="NORMAL")
        self.run_id = self.do(lambda conn: runs.add(conn, "walk", {}, "0", "training"))
        self.policy_id = self.do(lambda conn: policies.register(conn, self.run_id, "policy"))
        self.plan = GroupPlan(self.run_id, self.policy_id, self.config, "process")
        self.do(lambda conn: policies.publish(conn, self.policy_id, self.version(0, None, 0)))

    def do(self, work):
        return self.store.write(work)

    def version(self, number, parent, step):
        return PolicyVersion(number, parent, "full", "", step, "", 0, committed=True, orphaned=False)

    @property
    def newest(self):
        return self.store.read(lambda conn: policies.latest(conn, self.policy_id))

    @property
    def done(self):
        return self.newest.step >= self.config.trainer.steps

    def submit(self):
        return self.do(lambda conn: self.plan.submit(conn, "training"))

    def move(self):
        moves = (
            self.submit,
            self.work,
            self.work,
            self.serve,
            self.serve,
            self.train,
            self.train,
            self.mishap,
        )
        self.draw.choice(moves)()

    def work(self, *, well=False):
        """A node claims some rollouts, and some of those that run end."""
        limit = 99 if well else self.draw.randint(0, 4)
        self.do(lambda conn: rollouts.claim(conn, self.run_id, "node@1", 60.0, limit))
        for rollout_id in self.running():
            if well or self.draw.random() < 0.6:
                self.end(
                    rollout_id,
                    "finished" if well else self.draw.choice(("finished", "finished", "failed", "cancelled")),
                )

    def end(self, rollout_id, how):
        if how == "finished":
            outcome = RolloutOutcome(rollout_id, StopReason.FINISHED, "valid", {"reward": 1.0})
            self.do(lambda conn: rollouts.finish(conn, outcome))
        elif how == "failed":
            outcome = RolloutOutcome(
                rollout_id, StopReason.SANDBOX_ERROR, "infrastructure_error", cause=Cause.SANDBOX_DIED
            )
            self.do(lambda conn: rollouts.fail(conn, outcome, 2))
        else:
            self.do(lambda conn: rollouts.cancel(conn, [rollout_id]))

    def running(self):
        query = (
            select(rollout_table.c.id).where(rollout_table.c.status == "running").order_by(rollout_table.c.id)
        )
        return self.store.read(lambda conn: list(conn.execute(query).scalars()))

    def serve(self, *, well=False):
        """An engine takes a version, is on its way to one, dies or starts."""
        for name in NAMES if well else [self.draw.choice(NAMES)]:
            state = (
                "ready"
                if well
                else self.draw.choice(("ready", "ready", "draining", "updating", "starting", "dead"))
            )
            known = {row.id: row.version for row in self.engines()}
            target = (
                self.newest.version
                if well or self.draw.random() < 0.5
                else known.get(name, self.newest.version)
            )
            row = WorkerRow(name, self.run_id, "embedded", name, target, state)
            self.do(lambda conn, row=row: workers.upsert(conn, row))

    def engines(self):
        return self.store.read(lambda conn: workers.engines_of(conn, self.run_id))

    def chain(self):
        return VersionChain(self.store.read(lambda conn: policies.versions(conn, self.policy_id)))

    def choice(self):
        """What the trainer would do now."""
        chain, newest, trainer = self.chain(), self.newest.version, self.config.trainer
        query = select(groups.c.id, groups.c.submitted_version)
        born = dict(self.store.read(lambda conn: conn.execute(query).all()))
        candidates = [
            Candidate(item.id, item.ordinal, item.complete, chain.between(newest, born[item.id]))
            for item in self.store.read(lambda conn: backlog.standing(conn, self.run_id))
        ]
        return choose(candidates, trainer.groups_per_step, trainer.max_staleness, trainer.when_stale)

    def train(self):
        """Give up what is too stale, and take a step if there is a batch."""
        if self.done:
            return
        found, version = self.choice(), self.newest.version
        for reason, ids in (("too_stale", found.drop), ("requeued", found.requeue)):
            for group_id in ids:
                self.do(partial(backlog.give_up, group_id=group_id, reason=reason, version=version))
        if found.take:
            number = self.store.read(lambda conn: policies.next_version(conn, self.policy_id))
            members = [
                TrainedRollout(member.rollout_id, 1, 0)
                for group_id in found.take
                for member in self.store.read(partial(rollouts.group, group_id=group_id)).members
            ]
            record = StepRecord(
                self.version(number, version, self.newest.step + 1), found.take, tuple(members), ()
            )
            self.do(lambda conn: ledger.commit_step(conn, self.policy_id, record))

    def mishap(self):
        """A node comes, goes or dies; or the trainer's last checkpoint is gone."""
        what = self.draw.randrange(4)
        if what == 0:
            self.do(
                lambda conn: leases.announce_node(conn, self.run_id, f"node@{self.draw.randint(1, 3)}", 60.0)
            )
        elif what == 1:
            self.do(lambda conn: leases.withdraw_node(conn, self.run_id, f"node@{self.draw.randint(1, 3)}"))
        elif what == 2:
            self.do(lambda conn: rollouts.expire(conn, self.run_id))
            for rollout_id in self.store.read(lambda conn: rollouts.lost(conn, self.run_id)):
                outcome = RolloutOutcome(
                    rollout_id, StopReason.NODE_LOST, "infrastructure_error", cause=Cause.NODE_LOST
                )
                self.do(partial(rollouts.fail, outcome=outcome, max_attempts=2))
        elif (parent := self.newest.parent_version) is not None:
            self.do(lambda conn: ledger.abandon_after(conn, self.policy_id, parent))

    def somebody_has_a_next_move(self):
        """Whether the run is done, something runs, or it is clear whose turn it is."""
        if self.done or self.store.read(lambda conn: rollouts.unfinished(conn, self.run_id, "train")):
            return True
        found, newest = self.choice(), self.newest.version
        if found.take or found.drop or found.requeue:
            return True
        serving = [row.version for row in self.engines() if row.state in SERVING]
        return not serving or min(serving) != newest or self.submit() > 0

    def finish(self):
        """Everything works from here on. Returns how many rounds it took."""
        for rounds in range(60):
            if self.done:
                return rounds
            self.serve(well=True)
            self.submit()
            self.work(well=True)
            self.train()
        return None


def walk_to_the_end(walk, seed):
    """Somebody has a next move after every move, and in the end the run is done."""
    for move in range(MOVES):
        walk.move()
        assert walk.somebody_has_a_next_move(), (
            f"seed {seed}: nobody moves after move {move} of {walk.config.trainer}"
        )
    assert walk.finish() is not None, f"seed {seed}: the run does not end: {walk.config.trainer}"


@settings(
    max_examples=15,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.integers(0, 2**32))
def test_somebody_always_has_a_next_move_and_the_run_ends(make_config, seed):
    with tempfile.TemporaryDirectory() as folder:
        walk = Walk(folder, make_config("good"), seed)
        with walk.store:
            walk_to_the_end(walk, seed)
