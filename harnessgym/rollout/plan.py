"""Decides which groups a run submits: evaluation before and after, training as admission allows."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection

from harnessgym.errors import ConfigError, TaskError
from harnessgym.run_config.run import RunConfig
from harnessgym.scheduling.admission import SERVING, Admission, groups_holding, serving_step
from harnessgym.scheduling.selection import SelectionPool, Selector, make_selector
from harnessgym.scheduling.staleness import VersionChain
from harnessgym.store import backlog, leases, policies, rollouts, runs, task_history, workers
from harnessgym.store.rollouts import GroupSpec
from harnessgym.store.task_history import Visits
from harnessgym.store.workers import WorkerRow
from harnessgym.task import Split, Task
from harnessgym.tasks.source import task_set

EVALUATIONS = {
    "evaluating_before": ("before_sampled", "before_greedy"),
    "evaluating_after": ("after_sampled", "after_greedy"),
}
"""Purposes of the evaluation groups by run status. Greedy ones sample at temperature 0."""


@dataclass
class GroupPlan:
    """Turns a run's configuration into groups. The next group depends only on the seed and the store.

    Raises `TaskError` for a set without training tasks, `ConfigError` for a selector that cannot be made.
    """

    run_id: str
    policy_id: str
    config: RunConfig
    sandbox: str
    _tasks: dict[Split, Sequence[Task]] = field(default_factory=dict)
    _by_key: dict[str, Task] = field(default_factory=dict)

    def __post_init__(self) -> None:
        tasks = task_set(self.config.tasks.set)
        for split in ("train", "test"):
            self._tasks[split] = tasks.tasks(split)
            self._by_key |= {task.id: task for task in self._tasks[split]}
        if not self._tasks["train"]:
            raise TaskError(f"The task set {self.config.tasks.set!r} has no training tasks.")
        self._visits = Visits(self.run_id)
        self._selector()

    def task(self, key: str) -> Task:
        """A task by its id. Raises `TaskError` if the set has no such task."""
        if key not in self._by_key:
            raise TaskError(
                f"The task set {self.config.tasks.set!r} has no task {key!r}. Has the set changed?"
            )
        return self._by_key[key]

    def submit(self, conn: Connection, status: str) -> int:
        """Submit what the run's status calls for and admission allows. Returns the number of groups."""
        if status in EVALUATIONS or status == "training":
            runs.lock(conn, self.run_id)  # several nodes submit, and no group twice
        if status in EVALUATIONS:
            return sum(self._submit_evaluation(conn, purpose) for purpose in EVALUATIONS[status])
        if status == "training":
            return self._submit_training(conn)
        return 0

    def _submit_evaluation(self, conn: Connection, purpose: str) -> int:
        """Submit all groups of an evaluation once every worker serves the newest version."""
        if rollouts.group_states(conn, self.run_id, purpose):
            return 0
        versions = {}
        for policy_id, engines in self._engines(conn).items():
            latest = policies.latest(conn, policy_id)
            serving = [worker.version for worker in engines if worker.state in SERVING]
            if latest is None or not serving or min(serving) < latest.version:
                return 0
            versions[policy_id] = latest.version
        wanted = min(self.config.evaluation.tasks, len(self._tasks["test"]))
        for ordinal in range(wanted):
            self._add(conn, purpose, ordinal, self._tasks["test"][ordinal], 1, versions)
        return wanted

    def _submit_training(self, conn: Connection) -> int:
        options = self.config.trainer
        standing = self._standing(conn)
        if standing is None:
            return 0
        served, versions = standing
        states = rollouts.group_states(conn, self.run_id, "train")
        submitted = sum(count for state, count in states.items() if state != "dropped")
        places = self.config.node.in_flight * max(1, leases.nodes(conn, self.run_id))
        admission = Admission(
            max_staleness=options.max_staleness,
            groups_per_batch=options.groups_per_step,
            serving_step=served,
            submitted=submitted,
            running=groups_holding(rollouts.unfinished(conn, self.run_id, "train"), options.group_size),
            max_running=1 + groups_holding(places, options.group_size),
            total=options.steps * options.groups_per_step,
            over_launch=options.over_launch,
            replayed=self.config.replayed,
            consumed=states.get("consumed", 0) if self.config.replay.reuse else 0,
            trained_step=self._trained_step(conn) if self.config.replay.reuse else 0,
        )
        capacity = admission.capacity()
        if capacity:
            self._submit_groups(conn, sum(states.values()), capacity, versions)
        return capacity

    def _submit_groups(self, conn: Connection, first: int, wanted: int, versions: Mapping[str, int]) -> None:
        """Submit `wanted` training groups from ordinal `first` on: first requeued, then selected ones."""
        # A requeued group takes an ordinal, but the selector did not choose it. The selector's count leaves
        # it out, so that the same seed chooses the same tasks whatever was requeued.
        chosen = first - backlog.replacements(conn, self.run_id)
        again = backlog.requeued(conn, self.run_id, wanted)
        for ordinal, item in enumerate(again, first):
            self._add(conn, "train", ordinal, self.task(item.task_key), item.size, versions, item.ordinal)
        picks = self._selector().choose(chosen, wanted - len(again), self._visits.read(conn))
        for ordinal, pick in enumerate(picks, first + len(again)):
            if pick.rollouts < 2 and self.config.trainer.algorithm == "grpo":
                raise ConfigError(
                    f"The selector {self.config.generate.selector!r} wants a group of one rollout of "
                    f"{pick.task!r}, and grpo compares the rollouts of a group with each other: let it "
                    "choose two at least."
                )
            self._add(conn, "train", ordinal, self.task(pick.task), pick.rollouts, versions)

    def _selector(self) -> Selector:
        keys = tuple(task.id for task in self._tasks["train"])
        options = self.config.trainer
        generate = self.config.generate
        pool = SelectionPool(keys, options.group_size, options.groups_per_step, self.config.seed)
        return make_selector(generate.selector, generate.settings, pool)

    def _standing(self, conn: Connection) -> tuple[int, dict[str, int]] | None:
        """The serving step of the policy furthest behind, and the oldest version served of each policy.

        None while no worker serves some policy. η bounds the staleness of every policy's tokens, each along
        its own chain.
        """
        steps = []
        oldest = {}
        for policy_id, engines in self._engines(conn).items():
            chain = VersionChain(policies.versions(conn, policy_id))
            serving = [(worker.state, worker.version) for worker in engines]
            step = serving_step(serving, chain.depth)
            if step is None:
                return None
            steps.append(step)
            oldest[policy_id] = min(version for state, version in serving if state in SERVING)
        return min(steps), oldest

    def _trained_step(self, conn: Connection) -> int:
        """Number of batches that led to the newest version."""
        chain = VersionChain(policies.versions(conn, self.policy_id))
        return chain.depth(max(chain.surviving, default=0))

    def _engines(self, conn: Connection) -> dict[str, list[WorkerRow]]:
        """Workers by policy, the first one first."""
        engines = workers.engines_of(conn, self.run_id)
        if not self.config.policies:
            return {self.policy_id: engines}
        ids = [
            self.policy_id,
            *(policies.register(conn, self.run_id, policy.name) for policy in self.config.policies),
        ]
        return {policy_id: [worker for worker in engines if worker.follows(policy_id)] for policy_id in ids}

    def _add(
        self,
        conn: Connection,
        purpose: str,
        ordinal: int,
        task: Task,
        size: int,
        versions: Mapping[str, int],
        replaces: int | None = None,
    ) -> None:
        """Submit one group. `versions` holds the oldest version of each policy that may answer."""
        sampling: dict[str, Any] = {
            "temperature": 0.0 if purpose.endswith("greedy") else self.config.sampling.temperature,
            "max_tokens": self.config.sampling.max_tokens,
        }
        task_id = runs.add_task(conn, self.config.tasks.set, task)
        if purpose == "train" and self.config.control.length_cap:
            longest = task_history.longest_success(conn, self.run_id, task_id)
            sampling |= {} if longest is None else {"turns": longest}
        names = [harness.name for harness in self.config.harnesses]
        spec = GroupSpec(
            run_id=self.run_id,
            task_id=task_id,
            policy_id=self.policy_id,
            purpose=purpose,
            ordinal=ordinal,
            submitted_version=versions[self.policy_id],
            sampling=sampling,
            harnesses=tuple(names[(ordinal + slot) % len(names)] for slot in range(size)),
            sandbox=self.sandbox,
            seeds=tuple(self._seed(purpose, ordinal, slot) for slot in range(size)),
            min_members=self.config.trainer.min_group,
            replaces=replaces,
            submitted_versions={each: versions[each] for each in versions if each != self.policy_id} or None,
        )
        rollouts.submit(conn, spec)

    def _seed(self, purpose: str, ordinal: int, slot: int) -> int:
        """31 bits that depend only on the run's seed and the rollout's purpose, ordinal and slot."""
        text = f"{self.config.seed} {purpose} {ordinal} {slot}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest()) >> 1
