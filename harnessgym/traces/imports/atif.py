"""ATIF v1.0 to v1.8: each agent step that a model made becomes a call, with tokens if the document has them.

Calls without token ids are text only, and nothing trains on them. Texts are stored as chat completions. In
documents that are not ours, each call continues the agent's previous step. If steps name several models, each
model is a policy, and a call belongs to the policy of its step.
"""

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError
from sqlalchemy import Connection

from harnessgym.errors import TraceError
from harnessgym.message import Message
from harnessgym.store.import_rows import SOURCE, ImportedFacts, ImportRows
from harnessgym.traces.atif.content import (
    AgentExtra,
    CallExtra,
    RewardExtra,
    RolloutExtra,
    answer_of,
    message_of,
    ours,
)
from harnessgym.traces.atif.schema import AtifStep, AtifTrajectory
from harnessgym.traces.exports.atif import SIDE
from harnessgym.traces.import_ import ImportedRollout
from harnessgym.traces.import_calls import ImportCalls, ImportedCall

Json = dict[str, Any]
_LEFT_OUT = {"notes", "continued_trajectory_ref"}
_STEP_LEFT_OUT = {"reasoning_effort", "is_copied_context"}


class AtifImport:
    """One document is one rollout."""

    def read(self, conn: Connection, run_id: str, document: Json) -> ImportedRollout:
        """Write a document. Raises `TraceError` if it is not a valid trajectory."""
        try:
            root = AtifTrajectory.model_validate(document)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise TraceError(
                f"Not an ATIF trajectory: {where}: {first['msg']} ({error.error_count()} problems)."
            ) from None
        exported = ours(RolloutExtra, (root.extra or {}).get("rollout"))
        harness = _of_agent(root).get("harness", root.agent.name)
        task = root.session_id or root.trajectory_id or root.agent.name
        names = {"policy": _model(root), "task_set": SOURCE, "task_key": task, **exported}
        facts = ImportedFacts(id=root.session_id or root.trajectory_id or "", harness=harness, **names)
        rows = ImportRows(conn, run_id, facts)
        voices = list(_voices(root, None))
        begun = next(
            (_time(step) for voice, _ in voices for step in voice.steps if step.timestamp), time.time()
        )
        agents = {
            id(voice): _agent(rows, voice, parent, begun + 1e-6 * at)
            for at, (voice, parent) in enumerate(voices)
        }
        calls = [model_call for voice, _ in voices for model_call in _calls(voice, agents[id(voice)], begun)]
        writer = ImportCalls(rows)
        several = any(model not in (None, facts.policy) for model, _ in calls)
        for model, call in sorted(
            calls, key=lambda exported: (exported[1].session, exported[1].about.get("ordinal", 0))
        ):
            writer.add(replace(call, policy_id=rows.policy(model or facts.policy)) if several else call)
        for voice, parent in voices:
            _spawn(rows, voice, parent)
        for reward in filter(None, _rewards(root)):
            rows.reward(**reward)
        rows.seal()
        return ImportedRollout(rows.rollout_id, _left_out(root))


def _voices(
    trajectory: AtifTrajectory, parent: AtifTrajectory | None
) -> Iterator[tuple[AtifTrajectory, AtifTrajectory | None]]:
    """Yield a trajectory and those below it, each with its parent."""
    yield trajectory, parent
    for child in trajectory.subagent_trajectories or ():
        yield from _voices(child, trajectory)


def _model(root: AtifTrajectory) -> str:
    """Return the model of steps that name none."""
    named = (step.model_name for voice, _ in _voices(root, None) for step in voice.steps)
    return root.agent.model_name or next(filter(None, named), "policy")


def _name(voice: AtifTrajectory) -> str:
    return voice.trajectory_id or f"{voice.session_id}:{voice.agent.name}"


def _agent(
    rows: ImportRows, voice: AtifTrajectory, parent: AtifTrajectory | None, begun: float
) -> str | None:
    """Insert the agent of a trajectory. Returns None for the trajectory of calls that belong to no agent.

    `begun` is the agent's time if no step has one.
    """
    about = _of_agent(voice)
    if voice.agent.name == SIDE and "harness" in about:
        return None
    above = (
        about["parent"]
        if about.get("parent")
        else None
        if parent is None or "spawned" in about
        else _name(parent)
    )
    first = next((call for call in map(_about, voice.steps) if call), {})
    session = rows.session(first.get("session", SOURCE))
    created = next((_time(step) for step in voice.steps if step.timestamp), begun)
    known = {
        "role": about.get("role"),
        "evidence": about.get("evidence"),
        "parent_agent_id": rows.known(above),
    }
    return rows.agent(_name(voice), voice.agent.name, session, created, **known)


def _calls(
    voice: AtifTrajectory, agent_id: str | None, begun: float
) -> Iterator[tuple[str | None, ImportedCall]]:
    """Yield the calls of a trajectory, each with the name of its model."""
    pending = list[list[int]]()
    last = ""
    length = 0
    t = begun
    ours = any(map(_about, voice.steps))
    for step in voice.steps:
        about = _about(step)
        t = _time(step) if step.timestamp else t
        # Steps that no model made become part of the next call's request. In our own exports these include
        # agent steps without `call`: assistant messages that the harness put into a prompt.
        if step.source != "agent" or step.llm_call_count == 0 or (ours and not about):
            pending += [] if step.message == "" and step.observation else [[step.step_id]]
            pending += _results(step)
            continue
        heard = about.get("heard", pending)
        new = tuple(_message(voice.steps, where) for where in heard)
        name = about.get("id", f"{_name(voice)}:{step.step_id}")
        continues = about.get("continues") if about else last or None
        shared = about.get("shared", length if continues else 0)
        answered = about.get("answered", True)
        made = ImportedCall(
            name=name,
            session=about.get("session", SOURCE),
            agent_id=agent_id,
            created_at=t,
            continues=continues,
            shared=shared,
            new=new,
            answer=answer_of(step) if answered else None,
            tools=about.get("tools", voice.agent.tool_definitions or []),
            metrics=step.metrics,
            about=about,
        )
        yield step.model_name or voice.agent.model_name, made
        last = name
        length = shared + len(new) + 1
        pending = _results(step)


def _results(step: AtifStep) -> list[list[int]]:
    """Return the positions [step, result] of a step's results."""
    return [
        [step.step_id, index] for index in range(len(step.observation.results) if step.observation else 0)
    ]


def _about(step: AtifStep) -> Json:
    """Return what our export wrote about a call; empty if it is not ours."""
    return ours(CallExtra, (step.extra or {}).get("call"))


def _of_agent(voice: AtifTrajectory) -> Json:
    """Return what our export wrote about an agent; empty if it is not ours."""
    return ours(AgentExtra, voice.agent.extra)


def _rewards(root: AtifTrajectory) -> list[Json]:
    """Return the rewards that our export wrote, with an empty dict for each that is not ours."""
    rewards = (root.extra or {}).get("rewards", [])
    return [ours(RewardExtra, item) for item in (rewards if isinstance(rewards, list) else [rewards])]


def _message(steps: list[AtifStep], where: list[int]) -> Message:
    """Return the message at [step] or [step, result]."""
    step = steps[where[0] - 1]
    if len(where) == 1:
        role = "assistant" if step.source == "agent" else step.source
        return answer_of(step) if role == "assistant" else message_of(role, step.message, extra=step.extra)
    assert step.observation is not None
    result = step.observation.results[where[1]]
    called = result.source_call_id or (result.extra or {}).get("tool_call_id", "")
    message = message_of("tool", result.content, tool_call_id=called, extra=result.extra)
    return replace(message, is_error=True) if (result.extra or {}).get("is_error") is True else message


def _spawn(rows: ImportRows, voice: AtifTrajectory, parent: AtifTrajectory | None) -> None:
    """Write the spawn events of an agent: those of our export, else one per result that refers to it."""
    about = _of_agent(voice)
    child = rows.known(_name(voice))
    spawn_events = list(about.get("spawned", ()))
    if parent is not None and not spawn_events and "spawned" not in about:
        spawn_events = [
            {"id": f"spawn:{_name(voice)}", "t": _time(step), "agent_id": _name(parent), "attributes": {
                "tool_call_id": result.source_call_id,
                "tool": next(
                    (
                        call.function_name
                        for call in step.tool_calls or ()
                        if call.tool_call_id == result.source_call_id
                    ),
                    None,
                ),
            }}
            for step in parent.steps
            for result in (step.observation.results if step.observation else ())
            for ref in result.subagent_trajectory_ref or ()
            if ref.trajectory_id == _name(voice)
        ]  # fmt: skip
    for event in spawn_events:
        known = {name: event[name] for name in ("evidence", "confidence", "source") if name in event}
        by = rows.known(event.get("agent_id"))
        made = rows.event(
            event["id"], "spawn", event["t"], event["attributes"], agent_id=by, target_agent_id=child, **known
        )
        if child is not None:
            rows.spawned_by(child, made)


def _time(step: AtifStep) -> float:
    """Return Unix seconds. A time without a zone is UTC."""
    if step.timestamp is None:
        return 0.0
    moment = datetime.fromisoformat(step.timestamp)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _left_out(root: AtifTrajectory) -> dict[str, int]:
    """Count the fields with a value that has no column."""
    out: Counter[str] = Counter()
    for voice, _ in _voices(root, None):
        out.update(name for name in _LEFT_OUT if getattr(voice, name) is not None)
        out["extra"] += len(set(voice.extra or ()) - ({"rollout", "rewards"} if voice is root else set()))
        out["agent.extra"] += 0 if _of_agent(voice) else len(voice.agent.extra or ())
        for step in voice.steps:
            out.update(f"steps.{name}" for name in _STEP_LEFT_OUT if getattr(step, name) is not None)
            out["steps.extra"] += len(set(step.extra or ()) - {"call", "name"})
            out["steps.extra"] += "call" in (step.extra or ()) and not _about(step)
            out["steps.metrics.cost_usd"] += step.metrics is not None and step.metrics.cost_usd is not None
    extra = root.extra or {}
    out["extra"] += "rollout" in extra and not ours(RolloutExtra, extra["rollout"])
    out["extra.rewards"] += sum(not reward for reward in _rewards(root))
    return {name: number for name, number in out.items() if number}
