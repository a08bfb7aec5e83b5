"""Decides whether an engine that did not answer is to blame for how a rollout ended.

A rollout that runs out of time is graded, so that a policy learns not to be slow. But if it waited for an
engine that was stopped or stuck, the zero is not the policy's fault. Both look alike from outside: a model
call is open when the harness is killed. The difference is how long that call had been silent.

- Silent for a quarter of the time limit, at least 1 s and at most 5 s: the engine's failure. An engine that
  is only busy counts too: waiting in its queue is not the policy's doing.
- Tokens came until the end: the policy's own slowness, and graded. If any open call were an excuse, a
  policy could escape every bad grade by talking until its time is over.
- An outside model that answers in one piece is silent while it thinks. It is to blame if that one call took
  half of the time limit.
- An engine was lost earlier or none was ready yet, and the call waited for a tenth of the time limit until
  one took it: the harness had that much less time than promised. Waiting for weight updates does not count.

A harness may end by itself because its client gave up a call. That is the engine's failure too, if the call
was silent for as long as above and no equal request was answered later.

To exploit these rules, a policy would have to make an engine silent: by a prompt whose prefill takes seconds,
sent in the last seconds of its time. It would gain another attempt, not a reward.
"""

from collections.abc import Sequence
from dataclasses import dataclass

_SHARE = 0.25
_LEAST_S, _MOST_S = 1.0, 5.0
_WHOLE_SHARE = 0.5
_LOST_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class CallSilence:
    """The silence of one call, as the proxy recorded it."""

    call_id: str
    policy: bool
    """Whether the policy made the call; False for a side call of its harness."""
    upstream: str
    """The worker that was asked last; empty if none was ready."""
    answered: bool
    """Whether the harness got its answer, or that of an equal request."""
    silent_s: float = 0.0
    """Seconds without a token when the client disconnected."""
    whole_s: float = 0.0
    """The same for an outside model that answers in one piece."""
    lost_s: float = 0.0
    """Longest wait in seconds because an engine was lost or none was ready."""


def blamed(calls: Sequence[CallSilence], *, timed_out: bool, wall_s: float) -> str | None:
    """A sentence about the engine that a rollout failed on; None if no engine is to blame."""
    bound = min(_MOST_S, max(_LEAST_S, _SHARE * wall_s))
    when = f"when the time limit of {wall_s:g} s was over" if timed_out else "when the harness gave it up"
    for call in calls:
        if call.answered or not (timed_out or call.policy):
            continue
        if call.silent_s >= bound:
            who = call.upstream or "No engine was ready, and a call"
            return f"{who}: call {call.call_id} had been without a token for {call.silent_s:.1f} s {when}."
        if call.whole_s >= _WHOLE_SHARE * wall_s:
            return (
                f"{call.upstream}: call {call.call_id} had been without its answer for {call.whole_s:.1f} "
                f"s {when}."
            )
    for call in calls:
        # If the client gave up a call and sent it again, the silence of the first one was lost time too.
        lost_s = max(call.lost_s, call.silent_s if call.answered else 0.0)
        if timed_out and lost_s >= _LOST_SHARE * wall_s:
            return (
                f"Call {call.call_id} waited {lost_s:.1f} s of the time limit of {wall_s:g} s for an "
                "engine: one was lost, or none was ready."
            )
    return None
