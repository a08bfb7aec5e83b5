"""Whether a rollout ended as it did because an engine did not answer.

A rollout that runs out of time is graded, so that a policy learns not to be slow. But if it waited for an
engine that is stopped or stuck, the zero is not the policy's. From outside both look alike: a model call is
open when the harness is killed. What tells them apart is how long that call had been silent.

- Silent for a quarter of the time limit, at least 1 s and at most 5 s: the engine's failure. An engine that
  is only busy counts too: waiting in its queue is not the policy's doing.
- Tokens came until the end: the policy's own slowness, and graded. If any open call were an excuse, a policy
  could escape every bad grade by talking until its time is over.
- An outside model, whose answer comes whole, is silent while it thinks. It is to blame if that one call took
  half of the time limit.
- An engine was lost earlier, and the call waited for a tenth of the time limit until another one went on: the
  harness had that much less time than it was promised. Waiting for weight updates does not count.

A harness that ends by itself may do so because its client gave up a call. That is the engine's failure too,
if the call was silent for as long as above and no equal request was answered later.

To gain by these rules, a policy would have to make an engine silent: by a prompt whose prefill takes seconds,
sent in the last seconds of its time. It gains another attempt, not a reward.
"""

from collections.abc import Sequence
from dataclasses import dataclass

_SHARE = 0.25
_LEAST_S, _MOST_S = 1.0, 5.0
_WHOLE_SHARE = 0.5
_LOST_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class CallSilence:
    """What the proxy recorded of one call's waiting."""

    call_id: str
    policy: bool
    """Whether it is a call of the policy's own, and none of its harness's side calls."""
    upstream: str
    """The worker that was asked last; empty if none was ready."""
    answered: bool
    """Whether the harness got its answer, or that of an equal request."""
    silent_s: float = 0.0
    """How long nothing had come when its client was gone."""
    whole_s: float = 0.0
    """The same, of an outside model."""
    lost_s: float = 0.0
    """The longest it waited because an engine was lost."""


def blamed(calls: Sequence[CallSilence], *, timed_out: bool, wall_s: float) -> str | None:
    """What to say of the engine that a rollout failed on; None if none did."""
    bound = min(_MOST_S, max(_LEAST_S, _SHARE * wall_s))
    when = f"when the time limit of {wall_s:g} s was over" if timed_out else "when the harness gave it up"
    for call in calls:
        if call.answered or not (timed_out or call.policy):
            continue
        if call.silent_s >= bound:
            who = call.upstream or "No engine was ready, and a call"
            return f"{who}: call {call.call_id} had been without a token for {call.silent_s:.1f} s {when}."
        if call.whole_s >= _WHOLE_SHARE * wall_s:
            return f"{call.upstream}: call {call.call_id} had been without its answer for {call.whole_s:.1f} s {when}."
    for call in calls:
        # Of a call that its client gave up and sent again, the silence was lost as well.
        lost_s = max(call.lost_s, call.silent_s if call.answered else 0.0)
        if timed_out and lost_s >= _LOST_SHARE * wall_s:
            return f"Call {call.call_id} waited {lost_s:.1f} s of the time limit of {wall_s:g} s for an engine that was lost."
    return None
