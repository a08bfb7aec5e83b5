"""Groups that are trained again in simulated runs."""

from collections import Counter

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from harnessgym.errors import ConfigError
from harnessgym.simulation.bound import bound_of
from harnessgym.simulation.simulation import Simulation


class Watched(Simulation):
    """Looks at every step's batch."""

    def run(self):
        self.seen = []
        return super().run(self.look)

    def look(self, _step):
        version = self.learner.version
        if version not in self.learner.ledger:  # back at the beginning
            return
        fresh, again = self.learner.ledger[version], self.learner.replays.into[version]
        trainer = self.config.trainer
        assert len(fresh) + len(again) == trainer.groups_per_step
        assert len(again) <= trainer.replayed
        known = {
            group.id for into, groups in self.learner.ledger.items() if into != version for group in groups
        }
        assert {group.id for group in again} <= known, "trained again before it was trained"
        assert max(self.measures.staleness, default=0) <= trainer.max_staleness
        self.seen.append(len(again))


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    reuse=st.integers(1, 3),
    share=st.sampled_from([0.25, 0.5, 0.9]),
    eta=st.integers(1, 5),
    consumption=st.sampled_from(["wait", "drop", "requeue"]),
    over_launch=st.none() | st.sampled_from([1, 2, 6]),
    failures=st.sampled_from(
        [{}, {"trainer_s": 60, "trainer_restart_s": 3, "versions_lost": 1}, {"worker_s": 20, "rollout": 0.1}]
    ),
)
def test_no_group_is_trained_too_often_or_too_late(
    make_config, seed, reuse, share, eta, consumption, over_launch, failures
):
    trainer = {"reuse": reuse, "reuse_share": share, "max_staleness": eta, "consumption": consumption}
    try:
        config = make_config(
            seed=seed, trainer=trainer | {"over_launch": over_launch, "steps": 12}, failures=failures
        )
    except ConfigError:
        reject()
    run = Watched(config)
    run.run()
    account, into = run.account(), run.learner.replays.into
    assert account.sampled == account.trained + account.dropped + account.failed + account.left
    fresh = Counter(group.id for groups in run.learner.ledger.values() for group in groups)
    again = Counter(group.id for groups in into.values() for group in groups)
    assert max(fresh.values()) == 1
    assert max(again.values(), default=0) <= reuse
    assert set(into) == set(run.learner.ledger), "a lost version's replays are lost with it"
    replayed = sum(member.tokens for groups in into.values() for group in groups for member in group.members)
    assert run.measures.counts["tokens replayed"] == replayed


def test_replays_make_steps_faster_where_sampling_is_slow(make_config):
    rates, bounds = {}, {}
    for reuse in (0, 1):
        trainer = {
            "max_staleness": 4,
            "reuse": reuse,
            "steps": 40,
            "warmup": 10,
            "step_s": 0.1,
            "group_size": 1,
            "groups_per_step": 8,
        }
        run = Watched(make_config(trainer=trainer))
        rates[reuse], bounds[reuse] = run.run().rollouts_per_s, bound_of(run.config)
    assert sum(run.seen) > 0.3 * 40 * 8
    assert rates[1] > 1.1 * rates[0]
    assert bounds[1].engines == pytest.approx(2 * bounds[0].engines)
    assert rates[1] <= bounds[1].rollouts_per_s


@pytest.mark.parametrize(
    ("trainer", "words"),
    [
        ({"reuse": 1, "max_staleness": 0}, "raise max_staleness"),
        ({"reuse": 1, "reuse_share": 0.1}, "is less than one"),
        ({"reuse": 1, "micro_batches": 2}, "micro_batches = 1"),
    ],
)
def test_what_cannot_be_trained_again_is_refused(make_config, trainer, words):
    with pytest.raises(ConfigError, match=words):
        make_config(trainer=trainer)
