"""Rollouts written whole, to be read back."""

from collections.abc import Sequence

from sqlalchemy import Connection

from harnessgym.store import calls, new_id, sessions
from harnessgym.store.calls import CallIntent, CallOutcome, Segment
from harnessgym.tokens import TokenArray, VersionSpan, hash_ids


def write_rollout(conn: Connection, rollout_id: str, turns: int, ids: TokenArray, logprobs: Sequence[float]) -> None:
    """One session whose every call adds `ids`, the last `len(logprobs)` of them sampled."""
    session_id = sessions.add(conn, rollout_id, new_id(), sampling={}).id
    sampled, parent, last, length = len(logprobs), None, None, 0
    read, answer = ids[:-sampled], ids[-sampled:]
    for ordinal in range(turns):
        prompt = Segment(new_id(), session_id, "prompt", parent, read)
        completion = Segment(new_id(), session_id, "completion", prompt.id, answer, logprobs)
        call_id, length = new_id(), length + len(read)
        intent = CallIntent(
            call_id, session_id, rollout_id, ordinal, "chat", "policy", "keep", call_id, call_id, length, hash_ids(read),
            prompt.id, "engine-0", sampling_applied={"temperature": 1.0}, parent_call_id=last,
            parent_evidence="none" if last is None else "token_prefix",
        )  # fmt: skip
        calls.intend(conn, intent, prompt)
        usage = {"prompt_tokens": length, "completion_tokens": sampled}
        spans = (VersionSpan(0, sampled, 0),)
        calls.finish(conn, CallOutcome(call_id, completion, spans, call_id, "stop", 2, "engine-0", usage, {"total_s": 0.1}))
        parent, last, length = completion.id, call_id, length + sampled
