"""Views for people who query the database in plain SQL, and triggers that refuse writes.

Views: one row per rollout (`v_rollout`), per call (`v_turn`), and per agent with its place in the tree
(`v_agent_tree`); what became of a rollout's sampled tokens (`v_token_account`); and the edges of the trace
graph, including those that are never stored (`v_edge`). Triggers: a frozen rollout's trace refuses every
write, and a stored text refuses every change. On PostgreSQL, triggers also notify of changes.

Tables cannot be altered while views and triggers depend on them. So `schema.upgrade` drops these and creates
them again after the last migration: a database always has exactly those declared here.
"""

from sqlalchemy import Connection, PrimaryKeyConstraint, UniqueConstraint

from harnessgym.store.backend import CHANNEL
from harnessgym.store.tables import metadata

_ROLLOUT = """
SELECT r.id, r.run_id, r.group_id, g.purpose, g.ordinal AS group_ordinal, r.slot, r.attempt,
       t."set" AS task_set,
       t."key" AS task, r.harness, r.sandbox, r.seed, r.status, r.stop_reason, r.cause, r.verdict,
       (SELECT w.value FROM rewards w
         WHERE w.rollout_id = r.id AND w.unit = 'rollout' AND w.target = r.id
           AND w.channel = 'reward') AS reward,
       (SELECT count(*) FROM agents a WHERE a.rollout_id = r.id) AS agents,
       (SELECT count(*) FROM calls c WHERE c.rollout_id = r.id) AS calls,
       (SELECT coalesce(sum(c.prompt_len), 0) FROM calls c WHERE c.rollout_id = r.id) AS prompt_tokens,
       (SELECT coalesce(sum(c.completion_len), 0) FROM calls c WHERE c.rollout_id = r.id) AS sampled_tokens,
       (SELECT count(*) FROM calls c WHERE c.rollout_id = r.id AND c.status = 'intent') AS torn_calls,
       r.frozen, r.detail, r.created_at, r.started_at, r.ended_at, r.ended_at - r.created_at AS seconds
  FROM rollouts r JOIN groups g ON g.id = r.group_id JOIN tasks t ON t.id = r.task_id
"""

_TURN = """
SELECT c.id AS call_id, c.rollout_id, c.session_id, c.ordinal, c.agent_id, a.name AS agent, c.parent_call_id,
       p.ordinal AS parent_ordinal, c.parent_evidence, c.kind, c.side_call, c.status, c.protocol,
       c.prompt_len AS prompt_tokens,
       CASE WHEN c.parent_evidence = 'token_prefix'
            THEN c.prompt_len - p.prompt_len - coalesce(p.completion_len, 0)
            ELSE c.prompt_len END AS new_prompt_tokens,
       c.completion_len AS sampled_tokens, {first_version} AS first_version, {last_version} AS last_version,
       c.finish_reason, c.break_class, c.break_detail, c.upstream, c.error, c.created_at,
       (SELECT o.name FROM policies o WHERE o.id = coalesce(c.policy_id, r.policy_id)) AS policy
  FROM calls c JOIN rollouts r ON r.id = c.rollout_id
  LEFT JOIN agents a ON a.id = c.agent_id LEFT JOIN calls p ON p.id = c.parent_call_id
"""

_AGENT_TREE = """
WITH RECURSIVE tree (id, depth, path) AS (
    SELECT a.id, 0, CAST(a.name AS TEXT) FROM agents a WHERE a.parent_agent_id IS NULL
    UNION ALL
    SELECT a.id, tree.depth + 1, tree.path || ' > ' || a.name
      FROM agents a JOIN tree ON a.parent_agent_id = tree.id
)
SELECT a.rollout_id, a.id AS agent_id, a.name, a.role, tree.depth, tree.path, a.parent_agent_id,
       a.spawn_event_id, a.evidence,
       (SELECT count(*) FROM calls c WHERE c.rollout_id = a.rollout_id AND c.agent_id = a.id) AS calls,
       (SELECT coalesce(sum(c.completion_len), 0) FROM calls c
         WHERE c.rollout_id = a.rollout_id AND c.agent_id = a.id) AS sampled_tokens,
       a.created_at
  FROM tree JOIN agents a ON a.id = tree.id
"""

_ACCOUNT = """
SELECT r.id AS rollout_id, r.run_id, coalesce(s.tokens, 0) AS sampled, coalesce(t.tokens, 0) AS trained,
       coalesce(x.tokens, 0) AS excluded,
       coalesce(s.tokens, 0) - coalesce(t.tokens, 0) - coalesce(x.tokens, 0) AS untrained,
       x.reasons
  FROM rollouts r
  LEFT JOIN (SELECT rollout_id, sum(completion_len) AS tokens
               FROM calls GROUP BY rollout_id) s ON s.rollout_id = r.id
  LEFT JOIN (SELECT rollout_id, sum(tokens) AS tokens
               FROM (SELECT l.rollout_id, max(l.tokens) AS tokens
                       FROM trained l
                       JOIN policy_versions v ON v.policy_id = l.policy_id AND v.version = l.version
                      WHERE NOT v.orphaned GROUP BY l.rollout_id, l.policy_id) by_policy
              GROUP BY rollout_id) t ON t.rollout_id = r.id
  LEFT JOIN (SELECT rollout_id, CAST(sum(tokens) AS bigint) AS tokens, {reasons} AS reasons
               FROM (SELECT rollout_id, reason, sum("end" - start) AS tokens FROM exclusions
                      GROUP BY rollout_id, reason ORDER BY rollout_id, reason) by_reason
              GROUP BY rollout_id) x ON x.rollout_id = r.id
"""

_EDGE = """
SELECT e.rollout_id, e.kind, e.source_event_id, e.target_event_id, e.evidence, e.confidence, TRUE AS stored
  FROM edges e
UNION ALL
SELECT o.rollout_id, 'temporal', o.source_event_id, o.target_event_id, NULL, NULL, FALSE
  FROM (SELECT rollout_id, id AS target_event_id,
               lag(id) OVER (PARTITION BY rollout_id, agent_id ORDER BY t, id) AS source_event_id
          FROM events WHERE kind = 'llm_call') o
 WHERE o.source_event_id IS NOT NULL
"""

VIEWS = {
    "v_rollout": _ROLLOUT,
    "v_turn": _TURN,
    "v_agent_tree": _AGENT_TREE,
    "v_token_account": _ACCOUNT,
    "v_edge": _EDGE,
}
"""SQL by name. Expressions in braces differ between databases."""
_PG_VERSION = """(SELECT CHOSEN((s.value ->> 2)::integer) FROM json_array_elements(
           CASE WHEN json_typeof(c.version_spans) = 'array' THEN c.version_spans END) s)"""
_OWN = {
    "sqlite": {
        "first_version": "(SELECT min(json_extract(s.value, '$[2]')) FROM json_each(c.version_spans) s)",
        "last_version": "(SELECT max(json_extract(s.value, '$[2]')) FROM json_each(c.version_spans) s)",
        "reasons": "group_concat(reason || ' ' || tokens, ', ')",
    },
    "postgresql": {
        "first_version": _PG_VERSION.replace("CHOSEN", "min"),
        "last_version": _PG_VERSION.replace("CHOSEN", "max"),
        "reasons": "string_agg(reason || ' ' || tokens, ', ' ORDER BY reason)",
    },
}

_GUARDED = ("sessions", "agents", "calls", "events", "edges", "rewards", "exclusions")
"""Tables with the rows of a rollout's trace that have a `rollout_id`. While the rollout is frozen, no row can
be added, changed or removed."""
_OWNERS = {
    "rollouts": "{0}.id",
    "segments": "(SELECT s.rollout_id FROM sessions s WHERE s.id = {0}.session_id)",
    "bodies": "(SELECT c.rollout_id FROM calls c WHERE c.id = {0}.call_id)",
    "routed_experts": "(SELECT c.rollout_id FROM calls c WHERE c.id = {0}.call_id)",
}
"""Other guarded tables, with the SQL for the rollout that a row belongs to. In `rollouts`, new rows and the
update that thaws a rollout are allowed."""
_FROZEN = "The rollout is frozen: its trace cannot change. `harnessgym store thaw` allows it again."
_SAME = "A stored text is known by its hash: it cannot be changed."
_GUARD_FUNCTION = """
CREATE FUNCTION refuse_frozen() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM rollouts r WHERE r.frozen AND r.id IN (NEW.rollout_id, OLD.rollout_id)) THEN
        RAISE EXCEPTION 'SAID';
    END IF;
    RETURN coalesce(NEW, OLD);
END $$
"""
_OWNER_FUNCTION = """
CREATE FUNCTION refuse_frozen_TABLE() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM rollouts r WHERE r.frozen AND r.id IN (NEW_OWNER, OLD_OWNER)) THEN
        RAISE EXCEPTION 'SAID';
    END IF;
    RETURN coalesce(NEW, OLD);
END $$
"""


_TEXT_FUNCTION = """
CREATE FUNCTION refuse_other_text() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'SAID';
END $$
"""


_TELL_FUNCTION = """
CREATE FUNCTION tell_of_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('CHANNEL', '');
    RETURN NULL;
END $$
"""
_TOLD = {
    "runs": "UPDATE OF status",
    "groups": "INSERT OR UPDATE OF state, batch",
    "rollouts": "INSERT OR UPDATE OF status",
    "policy_versions": "INSERT OR UPDATE OF committed, orphaned",
    "workers": "INSERT OR UPDATE OF version, state",
    "leases": "DELETE",
}
"""Changes that processes wait for (`store/backend.py`), by table. PostgreSQL sends one notification per
transaction, when it commits."""


def definition(name: str, database: str) -> str:
    """Return a view's SQL for a database."""
    return VIEWS[name].format(**_OWN[database]).strip()


def create(conn: Connection) -> None:
    """Create all views and triggers."""
    for name in VIEWS:
        conn.exec_driver_sql(
            f"CREATE VIEW {name} AS {definition(name, conn.dialect.name)}".replace("%", "%%")
        )
    for statement in _guards(conn.dialect.name):
        conn.exec_driver_sql(statement)


def drop(conn: Connection) -> None:
    """Drop all views and triggers that exist."""
    for name in VIEWS:
        conn.exec_driver_sql(f"DROP VIEW IF EXISTS {name}")
    if conn.dialect.name == "postgresql":
        for function in (
            "tell_of_change",
            "refuse_frozen",
            "refuse_other_text",
            *(f"refuse_frozen_{table}" for table in _OWNERS),
        ):
            conn.exec_driver_sql(f"DROP FUNCTION IF EXISTS {function}() CASCADE")
        return
    for table in (*_GUARDED, *_OWNERS, "messages"):
        for event in ("insert", "update", "delete"):
            conn.exec_driver_sql(f"DROP TRIGGER IF EXISTS frozen_{table}_{event}")


def _guards(database: str) -> list[str]:
    return _postgresql_guards() if database == "postgresql" else _sqlite_guards()


def _postgresql_guards() -> list[str]:
    trigger = "CREATE TRIGGER frozen_{0} BEFORE {1} ON {0} FOR EACH ROW {2} EXECUTE FUNCTION {3}()"
    made = [_GUARD_FUNCTION.replace("SAID", _FROZEN)]
    made += [trigger.format(table, "INSERT OR UPDATE OR DELETE", "", "refuse_frozen") for table in _GUARDED]
    for table, owner in _OWNERS.items():
        function = f"refuse_frozen_{table}"
        body = _OWNER_FUNCTION.replace("NEW_OWNER", owner.format("NEW")).replace(
            "OLD_OWNER", owner.format("OLD")
        )
        made.append(body.replace("TABLE", table).replace("SAID", _FROZEN))
        # Only an update that leaves the rollout frozen is refused, so that thawing works. An insert needs no
        # guard: a new rollout has no trace yet.
        if table == "rollouts":
            made.append(trigger.format(table, "UPDATE", "WHEN (OLD.frozen AND NEW.frozen)", function))
            made.append(
                trigger.format(table, "DELETE", "", function).replace(
                    "frozen_rollouts ", "frozen_rollouts_delete ", 1
                )
            )
        else:
            made.append(trigger.format(table, "INSERT OR UPDATE OR DELETE", "", function))
    made.append(_TEXT_FUNCTION.replace("SAID", _SAME))
    made.append(trigger.format("messages", "UPDATE", "", "refuse_other_text"))
    made.append(_TELL_FUNCTION.replace("CHANNEL", CHANNEL))
    made += [
        f"CREATE TRIGGER told_{table} AFTER {changes} ON {table} FOR EACH ROW EXECUTE FUNCTION "
        "tell_of_change()"
        for table, changes in _TOLD.items()
    ]
    return made


def _sqlite_guards() -> list[str]:
    trigger = "CREATE TRIGGER frozen_{0}_{1} BEFORE {1} ON {0} WHEN {2} BEGIN SELECT RAISE(ABORT, '{3}'); END"
    made = []
    for table in (*_GUARDED, *_OWNERS):
        old, new = (_is_frozen(table, row) for row in ("OLD", "NEW"))
        added = new
        changed = f"{old} OR {new}"
        if table == "rollouts":
            added = "FALSE"
            changed = "OLD.frozen AND NEW.frozen"
        made += [
            trigger.format(table, "insert", f"{added} OR {_takes_place(table)}", _FROZEN),
            trigger.format(table, "update", f"{changed} OR {_takes_place(table, besides='OLD.id')}", _FROZEN),
            trigger.format(table, "delete", old, _FROZEN),
        ]
    # Inserting an equal text again is normal (ON CONFLICT DO NOTHING). INSERT OR REPLACE with another text
    # under the same hash is not.
    other = "(SELECT body FROM messages WHERE hash = NEW.hash) <> NEW.body"
    made.append(trigger.format("messages", "insert", other, _SAME))
    made.append(trigger.format("messages", "update", "TRUE", _SAME))
    return made


def _is_frozen(table: str, row: str) -> str:
    """Return the SQL condition that a row of a table belongs to a frozen rollout."""
    owner = _OWNERS.get(table, "{0}.rollout_id").format(row)
    return f"(SELECT frozen FROM rollouts WHERE id = {owner})"  # noqa: S608


def _takes_place(table: str, besides: str | None = None) -> str:
    """Return the SQL condition that the new row has a unique key of a frozen rollout's row."""
    # SQLite's INSERT OR REPLACE deletes the row with the same key without firing its delete trigger, so the
    # insert or update itself must be refused.
    other = f" AND o.id <> {besides}" if besides else ""
    conditions = []
    for constraint in metadata.tables[table].constraints:
        if isinstance(constraint, PrimaryKeyConstraint | UniqueConstraint):
            same = " AND ".join(f'o."{column.name}" = NEW."{column.name}"' for column in constraint.columns)
            kept = f"{same}{other} AND {_is_frozen(table, 'o')}"
            conditions.append(f"EXISTS (SELECT 1 FROM {table} o WHERE {kept})")  # noqa: S608
    return " OR ".join(sorted(conditions))
