"""Admission, consumption and the version chain together, under random completions, lags, kills and resumes.

The machine keeps what the store would hold, what the trainer holds in memory, and the checkpoints on disk.
The decisions are the package's own.
"""

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from harnessgym.scheduling.admission import Admission
from harnessgym.scheduling.consumption import Candidate, Replayable, choose, places_for_replays, replay
from harnessgym.scheduling.staleness import VersionChain
from harnessgym.store.policies import PolicyVersion

STEPS = 8
REFILLS = 2
"""Groups without a signal that one step gives up at most."""


@dataclass
class Group:
    ordinal: int
    task: int
    submitted: int
    """Version that it was submitted under."""
    born: int
    """Version of its oldest token."""
    replaces: int | None = None
    state: str = "open"
    given_up: str | None = None
    given_up_for: int | None = None
    signal: bool = True


@dataclass(frozen=True)
class Step:
    step: int
    version: int
    parent: int | None
    took: tuple[int, ...]


class Flow(RuleBasedStateMachine):
    @initialize(
        eta=st.integers(0, 3),
        batch=st.integers(1, 3),
        policy=st.sampled_from(["wait", "drop", "requeue"]),
        refill=st.booleans(),
        max_running=st.integers(1, 8),
        over_launch=st.sampled_from([None, 1, 1.5, 2, 3]),
        reuse=st.integers(0, 2),
        replayed=st.integers(1, 2),
    )
    def begin(self, eta, batch, policy, refill, max_running, over_launch, reuse, replayed):
        self.over_launch = over_launch if eta and policy != "wait" else None
        self.replayed = min(replayed, batch - 1) if eta and reuse else 0
        self.reuse = reuse if self.replayed else 0
        self.eta, self.batch, self.policy, self.refill, self.max_running = (
            eta,
            batch,
            policy,
            refill,
            max_running,
        )
        self.groups: list[Group] = []
        self.ledger: list[Step] = []
        self.published: dict[int, PolicyVersion] = {}
        self.saved: list[Step] = [Step(0, 0, None, ())]
        self.pending: Step | None = None
        self.serving = 0
        self.went_back = False
        self.numbers = {0}
        self.record(self.saved[0])
        self.last = self.saved[0]

    # --- the node

    @rule()
    def submit(self):
        for _ in range(self.capacity()):
            due = [
                group for group in self.groups if group.given_up == "requeued" and not self.replaced(group)
            ]
            if due:
                task, replaces = due[0].task, due[0].ordinal
            else:
                task, replaces = sum(group.replaces is None for group in self.groups), None
            self.groups.append(Group(len(self.groups), task, self.serving, self.serving, replaces))

    @precondition(lambda self: self.state("open"))
    @rule(data=st.data(), signal=st.booleans())
    def complete(self, data, signal):
        group = data.draw(st.sampled_from(self.state("open")))
        group.state, group.signal = "complete", signal

    @rule(slow=st.sets(st.integers(0, 5), max_size=3))
    def go_on(self, slow):
        """A whole round, in which some groups stay open."""
        self.submit()
        for place, group in enumerate(self.state("open")):
            if place not in slow:
                group.state = "complete"
        if self.last.step < STEPS:
            self.step()
        self.serve_the_newest()

    @precondition(lambda self: self.state("open"))
    @rule(data=st.data())
    def run_again_after_the_node_was_killed(self, data):
        data.draw(st.sampled_from(self.state("open"))).born = self.serving

    @rule()
    def serve_the_newest(self):
        self.serving = self.newest()

    # --- the trainer

    @precondition(lambda self: self.last.step < STEPS)
    @rule()
    def step(self):
        taken = self.replays()
        assert len(taken) <= self.replayed
        while len(taken) < self.batch:
            candidates = self.candidates(taken)
            found = choose(candidates, self.batch - len(taken), self.eta, self.policy)
            for name in (*found.drop, *found.requeue):
                self.give_up(name, "too_stale" if name in found.drop else "requeued")
            if not found.take:
                return  # waits; what it holds in memory is gathered again, as after a kill
            for name in found.take:
                group = self.groups[int(name)]
                spent = sum(
                    each.given_up == "no_signal" and each.given_up_for == self.last.version
                    for each in self.groups
                )
                if self.refill and not group.signal and spent < REFILLS:
                    self.give_up(name, "no_signal")
                else:
                    assert 0 <= self.chain().between(self.last.version, group.born) <= self.eta
                    taken.append(group.ordinal)
        self.write()  # the next copy is taken only when the last one is committed
        self.publish()
        version = max(self.numbers) + 1
        self.pending = Step(self.last.step + 1, version, self.last.version, tuple(taken))
        self.last = self.pending

    @rule()
    def write(self):
        """The checkpoint of the last step reaches the disk."""
        if self.pending is not None and self.pending not in self.saved:
            self.saved = [*self.saved, self.pending][-2:]

    @rule()
    def publish(self):
        """Its version is published, and its record stored: never before the checkpoint."""
        if self.pending is not None and self.pending in self.saved:
            self.record(self.pending)
            self.pending = None

    @rule(lose=st.booleans())
    def kill_and_resume(self, lose):
        """All that was in memory is gone; sometimes the newest checkpoint too."""
        self.pending = None
        if lose and len(self.saved) > 1:
            self.saved.pop()
            self.went_back = True
        self.last = self.saved[-1]
        orphaned = [number for number in self.published if number > self.last.version]
        for number in orphaned:
            self.published[number] = self.version_row(self.entry(number), orphaned=True)
        for group in self.state("consumed"):
            if group.ordinal not in self.alive():
                group.state = "complete"
        self.record(self.last)

    # --- what must hold

    @invariant()
    def nobody_is_trained_more_often_than_allowed_on_the_surviving_chain(self):
        alive = self.alive()
        assert all(alive.count(ordinal) <= 1 + self.reuse for ordinal in alive)
        assert all(len(step.took) == len(set(step.took)) for step in self.ledger)
        assert sorted(set(alive)) == [group.ordinal for group in self.groups if group.state == "consumed"]

    @invariant()
    def a_requeued_task_comes_again_once_and_every_other_in_turn(self):
        replaced = [group.replaces for group in self.groups if group.replaces is not None]
        assert len(replaced) == len(set(replaced))
        assert all(
            self.groups[group.replaces].task == group.task
            for group in self.groups
            if group.replaces is not None
        )
        fresh = [group.task for group in self.groups if group.replaces is None]
        assert fresh == list(range(len(fresh)))

    @invariant()
    def waiting_gives_nothing_up_for_its_age(self):
        if self.policy == "wait" and not self.went_back:
            assert not any(group.given_up in ("too_stale", "requeued") for group in self.groups)

    @invariant()
    def never_zero_capacity_with_nothing_running(self):
        """Once what was trained is published and served: work runs, may be submitted, or makes a batch."""
        settled = self.pending is None and self.serving == self.newest()
        if settled and self.last.step < STEPS and not self.state("open") and self.capacity() == 0:
            found = choose(self.candidates([]), self.batch - len(self.replays()), self.eta, self.policy)
            assert found.take or found.drop or found.requeue

    # --- what the store would answer

    def state(self, name):
        return [group for group in self.groups if group.state == name]

    def capacity(self):
        standing = [group for group in self.groups if group.state != "dropped"]
        serving = self.chain().between(self.serving, 0)
        total = STEPS * self.batch
        running = len(self.state("open"))
        counts = {"consumed": len(self.state("consumed")), "trained_step": self.chain().depth(self.newest())}
        admission = Admission(
            self.eta, self.batch, serving, len(standing), running, self.max_running, total, self.over_launch, self.replayed,
            **(counts if self.reuse else {}),
        )  # fmt: skip
        return admission.capacity()

    def replays(self):
        """Groups that the next step trains again."""
        chain, start = self.chain(), self.last.version
        alive = self.alive() + list(self.last.took if self.pending is not None else ())
        trained = [
            Replayable(
                str(ordinal), ordinal, alive.count(ordinal), chain.between(start, self.groups[ordinal].born)
            )
            for ordinal in sorted(set(alive))
        ]
        stands = [
            group
            for group in self.groups
            if group.state in ("open", "complete") and group.ordinal not in alive
        ]
        ages = [
            chain.between(start, group.submitted)
            for group in stands
            if self.policy == "wait" or group.state == "complete"
        ]
        if self.policy != "wait":
            ages = [age for age in ages if age <= self.eta]
        places = places_for_replays(ages, self.batch, self.replayed, self.eta, STEPS - self.last.step)
        found = [int(name) for name in replay(trained, self.reuse, self.eta)]
        assert all(item.staleness >= 0 for item in trained)
        assert all(chain.between(start, self.groups[ordinal].born) <= self.eta for ordinal in found)
        return found[:places]

    def alive(self):
        return [
            ordinal
            for step in self.ledger
            if not self.published[step.version].orphaned
            for ordinal in step.took
        ]

    def candidates(self, taken):
        free = [
            group
            for group in self.groups
            if group.state in ("open", "complete") and group.ordinal not in taken
        ]
        busy = self.last.took
        chain = self.chain()
        return [
            Candidate(
                str(group.ordinal),
                group.ordinal,
                group.state == "complete",
                chain.between(self.last.version, group.born)
                if group.state == "complete" or self.policy != "wait"
                else 0,
            )
            for group in free
            if group.ordinal not in busy or self.last.version in self.published
        ]

    def give_up(self, name, reason):
        group = self.groups[int(name)]
        group.state, group.given_up, group.given_up_for = "dropped", reason, self.last.version

    def replaced(self, group):
        return any(each.replaces == group.ordinal for each in self.groups)

    def newest(self):
        return max(number for number, row in self.published.items() if not row.orphaned)

    def chain(self):
        rows = list(self.published.values())
        if self.pending is not None:
            rows.append(self.version_row(self.pending))
        return VersionChain(rows)

    def entry(self, number):
        return next(step for step in self.ledger if step.version == number)

    def version_row(self, step, *, orphaned=False):
        return PolicyVersion(
            step.version, step.parent, "full", "", step.step, "", 0, committed=True, orphaned=orphaned
        )

    def record(self, step):
        """The transaction that makes a step count; again it changes nothing."""
        if step.version not in self.published:
            self.numbers.add(step.version)
            self.published[step.version] = self.version_row(step)
            self.ledger.append(step)
            for ordinal in step.took:
                self.groups[ordinal].state = "consumed"


Flow.TestCase.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
test_flow = Flow.TestCase
