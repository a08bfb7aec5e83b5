"""Which policies the calls of a step reach, from real steps in a store."""

import pytest

from harnessgym.harness import Endpoint
from harnessgym.store import TraceStore, bodies, ledger, policies
from harnessgym.store.bodies import split_body
from harnessgym.store.ledger import StepRecord, TrainedRollout
from harnessgym.supervisor.policy_calls import PolicyCalls
from tests.harnessgym.store.recorded_runs import begin_run

NAMES = ("policy", "helper")


class TwoPolicies:
    """A run of two policies, whose harness asks for models by name."""

    def __init__(self, store):
        self.store = store
        self.recording = begin_run(store)
        self.ids = {"policy": self.recording.policy_id}
        self.ids["helper"] = store.write(
            lambda conn: policies.register(conn, self.recording.run_id, "helper")
        )

    def checks(self, *names):
        return PolicyCalls(self.store, {name: self.ids[name] for name in names or NAMES})

    def rollout(self, *asked):
        """A finished rollout. Each call is (the policy that answered, the request's body, the call's kind)."""
        _, (rollout_id,) = self.recording.group(1)
        session = self.recording.session(rollout_id)
        for name, body, *kind in asked:
            other = None if name == "policy" else self.ids[name]
            call_id = session.call(policy_id=other, kind=kind[0] if kind else "policy")
            if body is not None:
                self.store.write(
                    lambda conn, c=call_id, b=body: bodies.add(conn, c, "request", split_body(b))
                )
        self.recording.finish([rollout_id])
        return rollout_id

    def step(self, number, *rollout_ids, of=NAMES):
        """One step of each policy on the same rollouts."""
        trained = tuple(TrainedRollout(rollout_id, 1, 0) for rollout_id in rollout_ids)
        for name in of:
            version = self.recording.version(number, number - 1)
            record = StepRecord(version, (), trained, ())
            self.store.write(lambda conn, n=name, r=record: ledger.commit_step(conn, self.ids[n], r))


@pytest.fixture
def run(tmp_path):
    with TraceStore.create(f"sqlite:///{tmp_path}/traces.db") as store:
        yield TwoPolicies(store)


def request(model):
    return f'{{"model": "{model}", "messages": [{{"role": "user", "content": "Hi."}}]}}'.encode()


POLICY, HELPER = ("policy", request("policy")), ("helper", request("helper"))


def test_steps_in_which_every_policy_was_called_have_no_warning(run):
    checks = run.checks()
    assert checks.look() == []
    run.step(1, run.rollout(POLICY, HELPER), run.rollout(POLICY))
    assert checks.look() == []


def test_a_policy_without_calls_is_named_with_what_harnesses_asked_for(run):
    checks = run.checks()
    run.step(1, run.rollout(POLICY, ("policy", request("hepler"))))
    first, unreached = checks.look()
    assert first == (
        "Harnesses asked for the model 'hepler', which is the name of no policy: the first policy, 'policy', answered. "
        "The policies are policy, helper."
    )
    assert unreached.startswith("The policy 'helper' was trained on nothing in step 1: no call reached it.")
    assert "Harnesses asked for 'hepler', 'policy'; a name that no policy has is answered by" in unreached


def test_each_warning_is_given_once(run):
    checks = run.checks()
    for number in (1, 2):
        run.step(number, run.rollout(("policy", request("hepler"))))
        assert len(checks.look()) == (2 if number == 1 else 0)
        assert checks.look() == []


def test_a_policy_that_was_reached_meanwhile_is_named_again(run):
    checks = run.checks()
    run.step(1, run.rollout(POLICY))
    assert len(checks.look()) == 1
    run.step(2, run.rollout(POLICY, HELPER))
    assert checks.look() == []
    run.step(3, run.rollout(POLICY))
    (warning,) = checks.look()
    assert "'helper' was trained on nothing in step 3" in warning


def test_the_first_policy_may_be_the_one_that_is_not_reached(run):
    checks = run.checks()
    run.step(1, run.rollout(HELPER))
    (warning,) = checks.look()
    assert warning.startswith("The policy 'policy' was trained on nothing in step 1")
    assert "Harnesses asked for 'helper';" in warning


@pytest.mark.parametrize("model", ["", Endpoint.__dataclass_fields__["model"].default])
def test_no_name_and_the_default_one_mean_the_first_policy(run, model):
    checks = PolicyCalls(run.store, {"main": run.ids["policy"], "helper": run.ids["helper"]})
    run.step(1, run.rollout(("policy", request(model)), HELPER))
    assert checks.look() == []


@pytest.mark.parametrize(
    "body", [None, b"", b"no json", b"[1]", b'{"messages": []}', b'{"model": 7, "messages": []}']
)
def test_a_request_may_name_no_model(run, body):
    checks = run.checks()
    run.step(1, run.rollout(("policy", body)))
    (warning,) = checks.look()
    assert "Harnesses asked for no model by name;" in warning


def test_side_calls_reach_no_policy(run):
    checks = run.checks()
    run.step(1, run.rollout(POLICY, ("helper", request("helper"), "side")))
    (warning,) = checks.look()
    assert "'helper' was trained on nothing" in warning
    assert "Harnesses asked for 'policy';" in warning


def test_a_step_without_any_call_says_nothing_about_policies(run):
    checks = run.checks()
    run.step(1, run.rollout())
    assert checks.look() == []


def test_a_run_of_one_policy_is_not_checked(run):
    checks = run.checks("policy")
    run.step(1, run.rollout(("policy", request("hepler"))))
    assert checks.look() == []


def test_steps_from_before_the_start_are_not_checked(run):
    run.step(1, run.rollout(POLICY))
    checks = run.checks()
    assert checks.look() == []
    run.step(2, run.rollout(POLICY), of=("policy",))
    assert checks.look() == [], "the first policy was reached, and the other has taken no step"
    run.step(2, of=("helper",))
    assert checks.look() == []


def test_steps_that_a_trainer_gave_up_are_checked_when_they_are_taken_again(run):
    checks = run.checks()
    run.step(1, run.rollout(POLICY, HELPER))
    assert checks.look() == []
    run.store.write(lambda conn: ledger.abandon_after(conn, run.ids["helper"], 0))
    assert checks.look() == []


def test_only_some_rollouts_of_a_step_are_searched_for_names(run):
    checks = run.checks()
    ids = sorted(run.rollout(POLICY, HELPER) for _ in range(8))
    late = run.rollout(HELPER, ("policy", request("hepler")))
    assert late > ids[-1]
    run.step(1, *ids, late)
    assert checks.look() == []
