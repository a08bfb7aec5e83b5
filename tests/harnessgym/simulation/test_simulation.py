"""What holds for every simulated run, whatever is drawn and whatever breaks."""

import subprocess
import sys
from collections import Counter
from dataclasses import asdict

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from harnessgym.errors import ConfigError, TrainerError
from harnessgym.simulation.comparison import arm, names
from harnessgym.simulation.simulation import Simulation


class Watched(Simulation):
    """Looks at what must hold whenever a step was taken."""

    def run(self):
        self.seen_at = 0.0
        return super().run(self.look)

    def look(self, _step):
        assert self.clock.now >= self.seen_at
        self.seen_at = self.clock.now
        trained = [group.ordinal for groups in self.learner.ledger.values() for group in groups]
        assert len(trained) == len(set(trained)), "a group was trained twice along the surviving chain"
        assert not set(map(str, trained)) & set(self.planner.outstanding)
        assert max(self.measures.staleness, default=0) <= self.config.trainer.max_staleness
        self.look_at_places()

    def look_at_places(self):
        """Whoever holds a place is open, and whoever gave it up or was stopped holds none."""
        groups = [group for group in self.planner.outstanding.values() if not group.complete]
        stages = Counter(member.stage for group in groups for member in group.members)
        level = {name: found.value for name, found in self.measures.levels().items()}
        assert level["environments"] == stages["calling"] + stages["acting"] <= self.config.work.environments
        assert level["graders"] == stages["grading"] <= self.config.work.graders
        assert level["rollouts queued"] == stages["queued"]
        assert level["rollouts ungraded"] == stages["ungraded"]
        in_flight = sum(worker.load for worker in self.fleet.workers) + len(self.fleet._pending)
        assert in_flight == stages["calling"]
        assert self.node.open == len(groups)
        assert self.node.unfinished == sum(stages.values()) - stages["graded"]
        assert not any(group.stopped for group in groups)


RUNS = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 10**6),
        "work": st.fixed_dictionaries({"sampling": st.sampled_from(["batch", "task", "rollout"])}),
        "trainer": st.fixed_dictionaries(
            {
                "max_staleness": st.integers(0, 4),
                "consumption": st.sampled_from(["wait", "drop", "requeue"]),
                "over_launch": st.none() | st.sampled_from([1, 1.5, 2, 4, 6]),
            }
        ),
        "shared": st.sampled_from(
            [{"alone": True}, {"micro_batches": 1}, {"micro_batches": 2}, {"micro_batches": 4}]
        ),
        "updates": st.fixed_dictionaries(
            {
                "mode": st.sampled_from(["rolling", "global", "between"]),
                "drain_s": st.sampled_from([0, 1, 60]),
            }
        ),
        "failures": st.fixed_dictionaries(
            {
                "worker_s": st.sampled_from([0, 5, 40]),
                "worker_restart_s": st.just(7),
                "trainer_s": st.sampled_from([0, 60, 200]),
                "trainer_restart_s": st.just(3),
                "versions_lost": st.integers(0, 1),
                "rollout": st.sampled_from([0, 0.2]),
            }
        ),
    }
)


@settings(max_examples=25, deadline=None)
@given(RUNS)
def test_staleness_is_bounded_and_every_token_accounted_for(make_config, sections):
    shared = sections.pop("shared")
    try:
        config = make_config(**(sections | {"trainer": sections["trainer"] | shared}))
    except ConfigError:  # contradictory, see `test_what_could_never_run_is_refused`
        reject()
    run = Watched(config)
    outcome = run.run()
    account = run.account()
    assert account.sampled == account.trained + account.dropped + account.failed + account.left
    assert account.sampled > 0
    assert run.learner.step == config.trainer.steps
    trained = [
        member for groups in run.learner.ledger.values() for group in groups for member in group.members
    ]
    assert len(trained) == config.trainer.steps * config.batch
    assert all(member.tokens == sum(member.work.tokens) for member in trained), (
        "a trained rollout lacks tokens"
    )
    assert account.trained == sum(member.tokens for member in trained)
    assert outcome.rollouts_per_s > 0
    assert all(-1e-9 <= share <= 1 + 1e-9 for share in outcome.idle.values())


@pytest.mark.parametrize("name", names())
def test_equal_seeds_give_equal_results_and_others_do_not(make_config, name):
    config = arm(make_config(failures={"worker_s": 30, "rollout": 0.1}), name)
    first, again = (Simulation(config).run() for _ in range(2))
    assert asdict(first) == asdict(again)
    other = Simulation(config.model_copy(update={"seed": 1})).run()
    assert first.rollouts_per_s != other.rollouts_per_s


def test_arms_get_the_same_work_whoever_runs_it_first(make_config):
    """The first batch of every arm that takes batches in order is the same rollouts."""

    def lengths(name):
        run = Simulation(arm(make_config(), name))
        run.run()
        return [[member.work.tokens for member in group.members] for group in run.learner.ledger[1]]

    assert lengths("sync") == lengths("one-step") == lengths("eta-3")


def test_synchronous_training_never_trains_a_token_of_another_version(make_config):
    for name in ("sync", "periodic"):
        outcome = Simulation(arm(make_config(), name)).run()
        assert set(outcome.staleness) == {0}, name
        assert set(outcome.versions) == {1}, name
        assert outcome.off_policy == 0


def test_one_step_training_is_one_step_behind_after_the_first(make_config):
    run = Simulation(arm(make_config(trainer={"warmup": 1}), "one-step"))
    assert set(run.run().staleness) == {1}


def test_recycling_continues_what_is_unfinished_under_later_versions(make_config):
    outcome = Simulation(arm(make_config(trainer={"steps": 16}), "recycle")).run()
    assert max(outcome.versions) >= 2
    assert 0 < outcome.off_policy < 1
    assert outcome.counts.get("tokens dropped", 0) == outcome.counts.get("tokens failed", 0) == 0


def test_engines_stand_still_while_a_trainer_on_their_machines_works(make_config):
    config = make_config(
        trainer={"alone": True, "max_staleness": 2, "step_s": 1_000, "steps": 3}, updates={"mode": "global"}
    )
    run = Simulation(config)
    outcome = run.run()
    working = 3 * 1_000
    assert outcome.idle["engines"] >= working / outcome.virtual_s - 1e-9


def test_no_update_loses_a_token_and_a_drain_gives_calls_their_time(make_config):
    for drain_s in (0, 1e6):
        run = Simulation(arm(make_config(updates={"drain_s": drain_s}, trainer={"steps": 16}), "eta-2"))
        outcome = run.run()
        account = run.account()
        assert account.dropped == account.failed == 0
        assert (outcome.counts["calls interrupted"] == 0) == (drain_s > 0)


def test_a_pause_of_all_takes_more_service_than_one_worker_after_another(make_config):
    shares = {}
    for mode in ("global", "rolling"):
        config = arm(make_config(updates={"mode": mode, "transfer_s": 20}, trainer={"steps": 12}), "eta-4")
        shares[mode] = Simulation(config).run()
    per_update = {mode: found.out_of_service * found.virtual_s for mode, found in shares.items()}
    assert per_update["rolling"] < per_update["global"] / 2


def test_at_most_f_workers_are_out_for_an_update(make_config):
    for f in (1, 2):
        run = Simulation(arm(make_config(engines={"workers": 6}, updates={"at_once": f}), "eta-2"))
        run.run()
        assert run.measures.level("workers updating").highest <= f
        assert run.measures.level("workers draining").highest <= f


def test_dropping_what_is_stale_prefers_short_rollouts(make_config):

    def bias(policy):
        trainer = {"max_staleness": 1, "over_launch": 6, "consumption": policy, "steps": 20, "step_s": 1}
        found = [Simulation(make_config(seed=seed, trainer=trainer)).run() for seed in range(4)]
        assert all(
            outcome.counts.get(f"groups {'dropped' if policy == 'drop' else 'requeued'}") for outcome in found
        )
        return sum(outcome.length_bias for outcome in found) / len(found)

    assert bias("drop") < 0.99


def test_what_is_too_old_is_stopped_while_it_runs(make_config):
    """One rollout of 10,000 tokens is hopeless at η = 1, and its environment goes to others at once."""
    trainer = {
        "max_staleness": 1,
        "over_launch": 2,
        "consumption": "drop",
        "steps": 30,
        "group_size": 1,
        "step_s": 1,
    }
    tokens = {"kind": "recorded", "values": [10] * 30 + [50_000]}
    work = {"turns": 1, "tokens": tokens, "read": 0, "environments": 6, "graders": 6, "environment_s": 0}
    config = make_config(work=work, trainer=trainer)
    run = Watched(config)
    outcome = run.run()
    assert 3 <= outcome.counts["groups stopped"] <= outcome.counts["groups dropped"]
    assert outcome.virtual_s < 50_000 / config.engines.tokens_per_s, "somebody waited for one of them"
    account = run.account()
    assert account.dropped < 50_000 * outcome.counts["groups stopped"], "sampled to the end all the same"
    assert account.sampled == account.trained + account.dropped + account.left


def test_a_stopped_task_comes_again(make_config):
    trainer = {"max_staleness": 1, "over_launch": 6, "consumption": "requeue", "steps": 20, "step_s": 1}
    run = Watched(make_config(trainer=trainer))
    outcome = run.run()
    assert 0 < outcome.counts["groups stopped"] <= outcome.counts["groups requeued"]
    trained = [group.draw for groups in run.learner.ledger.values() for group in groups]
    assert len(trained) == len(set(trained)), "a task was trained twice"


def test_lost_versions_are_orphaned_and_their_numbers_never_used_again(make_config):
    config = make_config(
        trainer={"max_staleness": 2, "steps": 12}, failures={"trainer_s": 40, "versions_lost": 2}
    )
    run = Simulation(config)
    outcome = run.run()
    assert outcome.counts["versions orphaned"] > 0
    numbers = [version.version for version in run.learner.versions]
    assert numbers == list(range(len(numbers)))
    orphaned = {version.version for version in run.learner.versions if version.orphaned}
    assert len(orphaned) == outcome.counts["versions orphaned"]
    assert not orphaned & set(run.learner.ledger)
    assert len(run.learner.steps) == len(run.learner.ledger) + len(orphaned)


@pytest.mark.parametrize("warmup", [0, 4])
def test_what_was_trained_into_lost_versions_counts_once(make_config, warmup):
    """The histograms are of the tokens and rollouts that the throughput is of, each once."""
    orphaned = 0
    for seed in range(6):
        trainer = {"max_staleness": 2, "steps": 12, "warmup": warmup}
        run = Simulation(
            make_config(seed=seed, trainer=trainer, failures={"trainer_s": 40, "versions_lost": 1})
        )
        outcome = run.run()
        orphaned += outcome.counts.get("versions orphaned", 0)
        counted = [
            member
            for groups in list(run.learner.ledger.values())[warmup:]
            for group in groups
            for member in group.members
        ]
        assert sum(outcome.staleness.values()) == sum(member.tokens for member in counted)
        assert (
            sum(outcome.versions.values())
            == len(counted)
            == round(outcome.rollouts_per_s * outcome.virtual_s)
        )
        assert all(count > 0 for count in (*outcome.staleness.values(), *outcome.versions.values()))
    assert orphaned >= 4, "nothing was lost that could count twice"


def test_a_run_that_stands_still_says_who_waits_for_whom(make_config):
    run = Simulation(make_config())
    run.planner.capacity = lambda: 0  # the defect that the rule is for: no capacity, and nothing runs
    with pytest.raises(
        TrainerError,
        match=r"is stalled after 0 virtual seconds, at step 0 of 8: .*waits for.* 0 groups are open",
    ):
        run.run()


def test_a_trainer_that_loses_more_than_it_gains_says_so(make_config):
    failures = {"trainer_s": 2, "trainer_restart_s": 1, "versions_lost": 3}
    with pytest.raises(TrainerError, match="loses more than it gains"):
        Simulation(make_config(failures=failures)).run()


def test_a_worker_that_dies_holding_a_lease_does_not_hold_up_the_others(make_config):
    """With one lease, and deaths in the middle of updates: every survivor still gets the newest version."""
    config = make_config(
        trainer={"max_staleness": 1, "steps": 30},
        updates={"at_once": 1, "transfer_s": 4, "install_s": 2},
        failures={"worker_s": 12, "worker_restart_s": 300},
    )
    run = Simulation(config)
    outcome = run.run()
    assert outcome.counts["worker deaths"] >= 10
    assert run.learner.step == 30


def test_the_simulator_needs_no_torch():
    code = "import sys, harnessgym.simulation.comparison; print([name for name in ('torch', 'starlette') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"trainer": {"micro_batches": 3}}, "3 equal micro-batches"),
        ({"trainer": {"micro_batches": 2, "alone": True}}, "never finish the rest"),
        (
            {"trainer": {"over_launch": 3, "max_staleness": 1}, "updates": {"mode": "between"}},
            "never happens",
        ),
        ({"trainer": {"warmup": 8}}, "all 8 steps are warm-up"),
        ({"work": {"sampling": "task", "environments": 1}}, "never fits"),
        ({"engines": {"tokens_per_s": 10, "most_tokens_per_s": 5}}, "slower than one call"),
        ({"trainer": {"stepz": 1}}, "steps"),
    ],
)
def test_what_could_never_run_is_refused(make_config, sections, words):
    with pytest.raises(ConfigError, match=words):
        make_config(**sections)
