"""The views give people the numbers that are in the tables, on each kind of database."""

import pytest
from sqlalchemy import insert, text, update

from harnessgym.store import agents, edges, events, ledger, policies, rewards, rollouts, tables
from harnessgym.store.agents import AgentRow
from harnessgym.store.edges import EdgeRow
from harnessgym.store.events import EventRow
from harnessgym.store.ledger import ExcludedTokens
from harnessgym.store.rewards import RewardRow
from harnessgym.store.tables import new_id
from tests.harnessgym.store.recorded_runs import begin_run


@pytest.fixture
def recording(store):
    return begin_run(store)


def ask(store, query, **parameters):
    return store.read(lambda conn: [tuple(row) for row in conn.execute(text(query), parameters)])


def set_call(store, call_id, **values):
    row = update(tables.calls).where(tables.calls.c.id == call_id).values(**values)
    store.write(lambda conn: conn.execute(row))


def test_a_rollout_has_its_task_its_reward_and_its_tokens(store, recording):
    _, (rollout_id, other) = recording.group(2, "before_greedy")
    session = recording.session(rollout_id)
    session.call(prompt=7, after=session.call(prompt=5, versions=(0, 0)), versions=(0, 0, 0))
    session.call(prompt=9, status="intent")
    recording.finish([rollout_id])
    judged = RewardRow(rollout_id, "turn", session.calls[0], "reward", 0.25, "judge")
    store.write(lambda conn: rewards.add(conn, judged))
    times = update(tables.rollouts).where(tables.rollouts.c.id == rollout_id)
    store.write(lambda conn: conn.execute(times.values(created_at=100.0, ended_at=107.5)))
    query = (
        "SELECT purpose, group_ordinal, slot, task_set, task, status, reward, agents, calls, prompt_tokens, "
        "sampled_tokens, torn_calls, seconds FROM v_rollout WHERE id = :id"
    )
    assert ask(store, query, id=rollout_id) == [
        ("before_greedy", 0, 0, "lookup", "t0", "finished", 1.0, 0, 3, 5 + 14 + 9, 5, 1, 7.5)
    ]
    assert ask(store, query, id=other) == [
        ("before_greedy", 0, 1, "lookup", "t0", "running", None, 0, 0, 0, 0, 0, None)
    ]


def test_a_turn_has_what_it_adds_to_its_parent_and_the_versions_that_sampled_it(store, recording):
    _, (rollout_id,) = recording.group(1)
    session = recording.session(rollout_id)
    first = session.call(prompt=5, versions=(0, 0, 2))
    second = session.call(prompt=4, after=first, versions=(3,))
    compacted = session.call(prompt=6, versions=())
    set_call(store, compacted, parent_call_id=second, parent_evidence="header")
    query = (
        "SELECT call_id, ordinal, parent_ordinal, prompt_tokens, new_prompt_tokens, sampled_tokens, "
        "first_version, last_version, policy FROM v_turn WHERE rollout_id = :id ORDER BY ordinal"
    )
    assert ask(store, query, id=rollout_id) == [
        (first, 0, None, 5, 5, 3, 0, 2, "policy"),
        (second, 1, 0, 12, 4, 1, 3, 3, "policy"),
        (compacted, 2, 1, 6, 6, 0, None, None, "policy"),
    ]


def test_a_turn_that_was_not_answered_has_no_versions(store, recording):
    _, (rollout_id,) = recording.group(1)
    call_id = recording.session(rollout_id).call(status="intent")
    query = "SELECT status, sampled_tokens, first_version, last_version FROM v_turn WHERE call_id = :id"
    assert ask(store, query, id=call_id) == [("intent", None, None, None)]
    set_call(store, call_id, version_spans=None)
    assert ask(store, query, id=call_id) == [("intent", None, None, None)]


def test_a_turn_of_another_policy_names_that_policy(store, recording):
    other = store.write(lambda conn: policies.register(conn, recording.run_id, "critic"))
    _, (rollout_id,) = recording.group(1)
    session = recording.session(rollout_id)
    session.call()
    session.call(policy_id=other)
    query = "SELECT policy FROM v_turn WHERE rollout_id = :id ORDER BY ordinal"
    assert ask(store, query, id=rollout_id) == [("policy",), ("critic",)]


def test_agents_stand_in_a_tree_with_their_calls(store, recording):
    _, (rollout_id,) = recording.group(1)
    session = recording.session(rollout_id)
    main, child, grandchild = (new_id() for _ in range(3))
    rows = (
        AgentRow(main, rollout_id, session.id, "m", "main", None, "header"),
        AgentRow(child, rollout_id, session.id, "c", "reviewer", main, "content"),
        AgentRow(grandchild, rollout_id, session.id, "g", "tester", child, "content"),
    )
    for row in rows:
        store.write(lambda conn, row=row: agents.add(conn, row))
    for agent_id, versions in ((main, (0, 0)), (grandchild, (0,)), (grandchild, (0, 0, 0))):
        set_call(store, session.call(versions=versions), agent_id=agent_id)
    query = (
        "SELECT agent_id, depth, path, evidence, calls, sampled_tokens FROM v_agent_tree "
        "WHERE rollout_id = :id ORDER BY depth"
    )
    assert ask(store, query, id=rollout_id) == [
        (main, 0, "main", "header", 1, 2),
        (child, 1, "main > reviewer", "content", 0, 0),
        (grandchild, 2, "main > reviewer > tester", "content", 2, 4),
    ]
    assert ask(store, "SELECT agents FROM v_rollout WHERE id = :id", id=rollout_id) == [(3,)]


ACCOUNT = "SELECT sampled, trained, excluded, untrained, reasons FROM v_token_account WHERE rollout_id = :id"


def test_every_sampled_token_is_trained_excluded_or_untrained(store, recording):
    _, (trained, idle) = recording.group(2)
    session = recording.session(trained)
    first = session.call(versions=(0,) * 6)
    second = session.call(after=first, versions=(0,) * 4)
    recording.finish([trained, idle])
    assert ask(store, ACCOUNT, id=trained) == [(10, 0, 0, 10, None)]
    cut = [
        ExcludedTokens(trained, first, 0, 2, "stale"),
        ExcludedTokens(trained, second, 3, 4, "tampered"),
        ExcludedTokens(trained, second, 0, 1, "stale"),
    ]
    store.write(lambda conn: ledger.exclude_tokens(conn, cut))
    row = {"id": new_id(), "rollout_id": trained, "policy_id": recording.policy_id, "step": 1, "version": 1}
    recording.publish(1, 0)
    store.write(lambda conn: conn.execute(insert(tables.trained).values(**row, tokens=5, max_staleness=0)))
    assert ask(store, ACCOUNT, id=trained) == [(10, 5, 4, 1, "stale 3, tampered 1")]
    assert ask(store, ACCOUNT, id=idle) == [(0, 0, 0, 0, None)]


def test_tokens_that_only_an_orphaned_version_was_trained_on_are_untrained(store, recording):
    group_id, ids = recording.group(1)
    session = recording.session(ids[0])
    session.call(versions=(0,) * 4)
    session.seal()
    recording.finish(ids)
    recording.train(group_id, ids, 1, 0)
    assert ask(store, ACCOUNT, id=ids[0])[0][:2] == (4, 4)
    store.write(lambda conn: ledger.abandon_after(conn, recording.policy_id, 0))
    assert ask(store, ACCOUNT, id=ids[0])[0][:4] == (4, 0, 0, 4)


def test_model_calls_of_one_agent_follow_each_other_and_other_edges_are_stored(store, recording):
    _, (rollout_id,) = recording.group(1)
    session = recording.session(rollout_id)
    agent = AgentRow(new_id(), rollout_id, session.id, "m", "main", None, "header")
    store.write(lambda conn: agents.add(conn, agent))
    first, tool, second, other = (
        EventRow(rollout_id, kind, {}, t, agent_id=agent_id)
        for kind, t, agent_id in (
            ("llm_call", 1.0, agent.id),
            ("tool_call", 2.0, agent.id),
            ("llm_call", 3.0, agent.id),
            ("llm_call", 4.0, None),
        )
    )
    store.write(lambda conn: events.add_many(conn, [second, first, tool, other]))
    stored = EdgeRow(rollout_id, "causal", tool.id, second.id, "order", 0.5)
    store.write(lambda conn: edges.add_many(conn, [stored]))
    query = (
        "SELECT kind, source_event_id, target_event_id, evidence, confidence, stored FROM v_edge "
        "WHERE rollout_id = :id ORDER BY kind"
    )
    assert ask(store, query, id=rollout_id) == [
        ("causal", tool.id, second.id, "order", 0.5, True),
        ("temporal", first.id, second.id, None, None, False),
    ]


def test_a_cancelled_attempt_is_in_the_view_with_its_cause(store, recording):
    _, (rollout_id,) = recording.group(1)
    store.write(lambda conn: rollouts.cancel(conn, [rollout_id], "Not needed."))
    query = "SELECT status, stop_reason, cause, verdict, detail FROM v_rollout"
    assert ask(store, query) == [("cancelled", "cancelled", "cancelled", None, "Not needed.")]
