import time

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select, update

from harnessgym.rollout.plan import GroupPlan
from harnessgym.run_config.run import FurtherPolicySection
from harnessgym.store import backlog, policies, rollouts, workers
from harnessgym.store.policies import PolicyVersion
from harnessgym.store.tables import groups, tasks
from harnessgym.store.tables import rollouts as rollout_table
from harnessgym.store.workers import WorkerRow
from tests.harnessgym.rollout.planning import move, publish, serving, submit, submitted


def test_an_evaluation_is_submitted_once_and_waits_for_every_worker(make_plan):
    store, plan = make_plan()
    assert submit(store, plan, "evaluating_before") == 0
    publish(store, plan, 0, serve=False)
    assert submit(store, plan, "evaluating_before") == 0
    serving(store, plan, 0)
    assert submit(store, plan, "evaluating_before") == 4
    assert submit(store, plan, "evaluating_before") == 0
    publish(store, plan, 1)
    serving(store, plan, 0, name="w1")
    assert submit(store, plan, "evaluating_after") == 0
    serving(store, plan, 1, name="w1")
    assert submit(store, plan, "evaluating_after") == 4
    assert submit(store, plan, "evaluating_after") == 0
    kept = [(purpose, key) for purpose, _, key, *_ in submitted(store)]
    for purpose in ("before_sampled", "before_greedy", "after_sampled", "after_greedy"):
        assert [key for each, key in kept if each == purpose] == ["tiny/test/0", "tiny/test/1"]


def test_a_dead_worker_does_not_hold_an_evaluation_up(make_plan):
    store, plan = make_plan()
    publish(store, plan, 0)
    serving(store, plan, -1, name="w1", state="dead")
    assert submit(store, plan, "evaluating_before") == 4


def test_an_outside_engine_whose_agent_fell_silent_does_not_hold_training_up(make_plan):
    store, plan = make_plan(steps=9, groups_per_step=2)
    trainer = plan.config.trainer.model_copy(update={"max_staleness": 0})
    plan.config = plan.config.model_copy(update={"trainer": trainer})
    publish(store, plan, 0)
    row = WorkerRow("v0", plan.run_id, "vllm", "v0", 0, "ready")
    store.write(lambda conn: workers.upsert(conn, row))
    store.write(lambda conn: workers.show(conn, "v0", 60.0))
    assert submit(store, plan) == 2
    move(store, plan, "open", "consumed", 2)
    publish(store, plan, 1)
    assert submit(store, plan) == 0
    store.write(lambda conn: workers.show(conn, "v0", 0.01))
    time.sleep(0.05)
    assert submit(store, plan) == 2


def two_policies(make_plan, **options):
    """A plan for two policies, and the id of the second."""
    store, plan = make_plan(**options)
    further = FurtherPolicySection(name="helper", path=plan.config.policy.path)
    plan.config = plan.config.model_copy(update={"policies": (further,)})
    return store, plan, store.write(lambda conn: policies.register(conn, plan.run_id, "helper"))


def advance(store, plan, policy_id, version, name):
    """A policy's next version, served by a worker."""
    row = PolicyVersion(
        version, version - 1 if version else None, "full", "", version, "", 0, committed=True, orphaned=False
    )
    worker = WorkerRow(name, plan.run_id, "embedded", name, version, "ready", policy_id)
    store.write(lambda conn: policies.publish(conn, policy_id, row))
    store.write(lambda conn: workers.upsert(conn, worker))


def test_the_policy_that_is_furthest_behind_says_how_much_may_be_submitted(make_plan):
    store, plan, helper = two_policies(make_plan, steps=9, groups_per_step=2)
    trainer = plan.config.trainer.model_copy(update={"max_staleness": 0})
    plan.config = plan.config.model_copy(update={"trainer": trainer})
    advance(store, plan, plan.policy_id, 0, "w0")
    assert submit(store, plan) == 0
    advance(store, plan, helper, 0, "w1")
    assert submit(store, plan) == 2
    advance(store, plan, plan.policy_id, 1, "w0")
    assert submit(store, plan) == 0
    advance(store, plan, helper, 1, "w1")
    assert submit(store, plan) == 2
    query = select(groups.c.submitted_version, groups.c.submitted_versions).order_by(groups.c.ordinal)
    found = store.read(lambda conn: [tuple(row) for row in conn.execute(query)])
    assert found == [(0, {helper: 0})] * 2 + [(1, {helper: 1})] * 2


def test_an_evaluation_waits_until_the_workers_of_all_policies_serve_the_newest(make_plan):
    store, plan, helper = two_policies(make_plan)
    advance(store, plan, plan.policy_id, 0, "w0")
    assert submit(store, plan, "evaluating_before") == 0
    advance(store, plan, helper, 1, "w1")
    store.write(
        lambda conn: workers.upsert(conn, WorkerRow("w1", plan.run_id, "embedded", "w1", 0, "ready", helper))
    )
    assert submit(store, plan, "evaluating_before") == 0
    store.write(
        lambda conn: workers.upsert(conn, WorkerRow("w1", plan.run_id, "embedded", "w1", 1, "ready", helper))
    )
    assert submit(store, plan, "evaluating_before") == 4


def test_greedy_evaluation_samples_at_temperature_zero_and_the_rest_does_not(make_plan):
    store, plan = make_plan()
    publish(store, plan, 0)
    submit(store, plan, "evaluating_before")
    submit(store, plan)
    for purpose, *_, sampling in submitted(store):
        assert sampling["temperature"] == (0.0 if purpose == "before_greedy" else 1.0)


def test_nothing_is_submitted_without_a_worker_or_outside_the_phases(make_plan):
    store, plan = make_plan()
    assert submit(store, plan) == 0
    publish(store, plan, 0)
    assert [submit(store, plan, status) for status in ("done", "failed")] == [0, 0]


def test_two_processes_plan_the_same_and_another_seed_another(make_plan):
    def plan_all(seed):
        store, plan = make_plan("good", "talks", steps=5, groups_per_step=2, group_size=3)
        plan.config = plan.config.model_copy(update={"seed": seed})
        for version in range(5):
            publish(store, plan, version)
            submit(store, plan)
            move(store, plan, "open", "consumed", 2)
        submit(store, plan, "evaluating_after")
        return submitted(store)

    first = plan_all(0)
    assert first == plan_all(0)
    assert first != plan_all(1)
    seeds = [seed for _, _, _, _, _, seed, _ in first]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_every_epoch_has_every_task_once_and_slots_take_harnesses_in_turn(make_plan):
    store, plan = make_plan("good", "talks", steps=5, groups_per_step=2)
    for version in range(5):
        publish(store, plan, version)
        submit(store, plan)
        move(store, plan, "open", "consumed", 2)
    rows = submitted(store)
    order = [key for _, _, key, slot, *_ in rows if slot == 0]
    assert len(order) == 10
    assert sorted(order[:5]) == sorted(order[5:]) == [f"tiny/train/{i}" for i in range(5)]
    for _, ordinal, _, slot, harness, *_ in rows:
        assert harness == ("good", "talks")[(ordinal + slot) % 2]


def test_a_dropped_group_is_replaced_by_one_of_a_new_ordinal(make_plan):
    store, plan = make_plan(steps=1, groups_per_step=2)
    publish(store, plan, 0)
    assert submit(store, plan) == 2
    move(store, plan, "open", "dropped", 1)
    assert submit(store, plan) == 1
    assert submit(store, plan) == 0
    assert sorted({ordinal for _, ordinal, *_ in submitted(store)}) == [0, 1, 2]


def tasks_in_order(store, first=0):
    return [
        key
        for purpose, ordinal, key, slot, *_ in submitted(store)
        if (purpose, slot) == ("train", 0) and ordinal >= first
    ]


def requeue(store, plan, number, version=0):
    """Give up the first complete groups, as the trainer does; their tasks."""
    names = [item for item in store.read(lambda conn: backlog.standing(conn, plan.run_id)) if item.complete][
        :number
    ]
    keys = tasks_in_order(store)
    for item in names:
        assert store.write(lambda conn, name=item.id: backlog.give_up(conn, name, "requeued", version))
    return [keys[item.ordinal] for item in names]


def test_requeued_tasks_come_again_first_and_once_also_from_another_process(make_plan):
    store, plan = make_plan(steps=5, groups_per_step=2)
    publish(store, plan, 0)
    submit(store, plan)
    move(store, plan, "open", "complete", 2)
    again = requeue(store, plan, 2)
    first = len(tasks_in_order(store))
    assert store.read(lambda conn: len(backlog.requeued(conn, plan.run_id, 9))) == 2
    assert store.write(lambda conn: plan.submit(conn, "training")) >= 2
    other = GroupPlan(plan.run_id, plan.policy_id, plan.config, "process")
    publish(store, plan, 1)
    store.write(lambda conn: other.submit(conn, "training"))
    assert tasks_in_order(store, first)[:2] == again
    assert store.read(lambda conn: backlog.requeued(conn, plan.run_id, 9)) == []
    replaced = store.read(
        lambda conn: conn.execute(select(groups.c.replaces).order_by(groups.c.ordinal)).scalars().all()
    )
    assert [ordinal for ordinal in replaced if ordinal is not None] == [0, 1]


def test_tasks_that_come_again_take_no_other_tasks_turn(make_plan):
    (store, plan), (plain, untouched) = (make_plan(steps=5, groups_per_step=2) for _ in range(2))
    for version in range(5):
        for each, run in ((store, plan), (plain, untouched)):
            publish(each, run, version)
            submit(each, run)
            move(each, run, "open", "complete", 2)
        if version == 1:
            requeue(store, plan, 1, version)
            submit(store, plan)
            move(store, plan, "open", "complete", 1)
        for each, run in ((store, plan), (plain, untouched)):
            move(each, run, "complete", "consumed", 2)
    query = (
        select(tasks.c.key).join(groups, groups.c.task_id == tasks.c.id).where(groups.c.replaces.is_(None))
    )
    turns = [
        each.read(lambda conn: conn.execute(query.order_by(groups.c.ordinal)).scalars().all())
        for each in (store, plain)
    ]
    shorter = min(map(len, turns))
    assert shorter >= 9
    assert turns[0][:shorter] == turns[1][:shorter]


def test_a_version_that_was_orphaned_counts_as_the_one_it_forked_from(make_plan):
    store, plan = make_plan(steps=9, groups_per_step=2)
    for version in range(3):
        publish(store, plan, version)
        submit(store, plan)
        move(store, plan, "open", "consumed", 2)
    store.write(lambda conn: policies.orphan_after(conn, plan.policy_id, 1))
    move(
        store, plan, "consumed", "complete", 2
    )  # two of the three steps survive: six groups stand, of eight at η = 2
    trainer = plan.config.trainer.model_copy(update={"max_staleness": 2})
    plan.config = plan.config.model_copy(update={"trainer": trainer})
    kept = sum(store.read(lambda conn: rollouts.group_states(conn, plan.run_id, "train")).values())
    assert submit(store, plan) == (2 + 1 + 1) * 2 - kept


def test_with_replays_fewer_groups_are_submitted_ahead(make_plan):
    """η = 3 and half of every batch of four: what stands fills four batches of two new groups, and at
    least one of four.
    """
    store, plan = make_plan(steps=9, groups_per_step=4, max_running=99)
    trainer = plan.config.trainer.model_copy(update={"max_staleness": 3})
    replay = plan.config.replay.model_copy(update={"reuse": 1})
    plan.config = plan.config.model_copy(update={"trainer": trainer, "replay": replay})
    publish(store, plan, 0)
    assert submit(store, plan) == 8
    for version, new in ((1, 4), (2, 2), (3, 2)):
        move(store, plan, "open", "consumed", new)
        publish(store, plan, version, serve=False)
        assert submit(store, plan) == max(0, new - 2), "what is left of the window while engines lag"
        serving(store, plan, version)
        assert submit(store, plan) == min(2, new)


def test_groups_are_told_how_few_graded_members_are_enough(make_plan):
    store, plan = make_plan(steps=2, group_size=4)
    trainer = plan.config.trainer.model_copy(update={"min_group": 3})
    plan.config = plan.config.model_copy(update={"trainer": trainer})
    publish(store, plan, 0)
    submit(store, plan)
    assert set(store.read(lambda conn: conn.execute(select(groups.c.min_members)).scalars())) == {3}


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    eta=st.integers(0, 2),
    over_launch=st.sampled_from([None, 1, 1.5, 3]),
    per_step=st.integers(1, 3),
    steps=st.integers(1, 4),
    max_running=st.integers(1, 6),
    moves=st.lists(
        st.tuples(st.sampled_from(["complete", "drop", "step", "serve"]), st.integers(1, 3)), max_size=25
    ),
)
def test_admission_never_exceeds_staleness_nor_the_total(
    make_plan, eta, over_launch, per_step, steps, max_running, moves
):
    """Whatever happens in between: what is not consumed fits into the batches up to `eta` after the served
    version.
    """
    store, plan = make_plan(steps=steps, groups_per_step=per_step, max_running=max_running)
    trainer = plan.config.trainer.model_copy(update={"max_staleness": eta, "over_launch": over_launch})
    plan.config = plan.config.model_copy(update={"trainer": trainer})
    publish(store, plan, 0)
    step = served = 0
    for what, number in moves:
        submit(store, plan)
        states = store.read(lambda conn: rollouts.group_states(conn, plan.run_id, "train"))
        kept = sum(states.values()) - states.get("dropped", 0)
        ahead = eta + 1 if over_launch is None else over_launch
        assert kept <= min((ahead + served) * per_step, steps * per_step)
        if what == "complete":
            move(store, plan, "open", "complete", number)
        elif what == "drop":
            move(store, plan, "open", "dropped", number)
        elif what == "step" and states.get("complete", 0) >= per_step and step < steps:
            move(store, plan, "complete", "consumed", per_step)
            step += 1
            publish(store, plan, step, serve=False)
        elif what == "serve":
            served = step
            serving(store, plan, served)


def test_groups_are_stamped_with_the_oldest_version_served(make_plan):
    store, plan = make_plan(steps=4)
    publish(store, plan, 0)
    publish(store, plan, 1)
    serving(store, plan, 0, name="w1")
    submit(store, plan)
    rows = store.write(lambda conn: rollouts.claim(conn, plan.run_id, "node", 60.0, 99))
    assert {row.submitted_version for row in rows} == {0}


def test_open_groups_count_for_the_rollouts_that_are_left_of_them(make_plan):
    """A group of which one straggler is left must not keep the places of its other members empty."""
    store, plan = make_plan(steps=99, groups_per_step=99, group_size=2, max_running=1)
    publish(store, plan, 0)
    first = submit(store, plan)
    assert first == 1 + -(-plan.config.node.in_flight // 2)
    assert submit(store, plan) == 0
    ended = update(rollout_table).where(rollout_table.c.slot == 0).values(status="finished")
    store.write(lambda conn: conn.execute(ended))
    assert submit(store, plan) == first // 2
