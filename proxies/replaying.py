"""Reads recorded sessions for replays, and replays a rollout through the proxy's own code, without a harness.

Every recorded request is parsed by its dialect again and goes through a relay on a temporary store:
continuation, rendering, commit. Each is answered with the recorded tokens, so the next request sees the same
conversation as when it was recorded.
"""

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace

from sqlalchemy import Connection

from harnessgym.errors import StoreError
from harnessgym.run_config.session import SessionOptions
from harnessgym.store import TraceStore, calls, policies, rollouts, runs, sessions
from harnessgym.store.calls import RecordedCall, Segment
from harnessgym.store.rollouts import GroupSpec
from harnessgym.store.sessions import SessionRow
from harnessgym.task import Task
from harnessgym.tokens import TokenIds, versions_of
from harnessgym.traces.difference import difference
from harnessgym.traces.forest import Forest
from harnessgym.traces.replay import CallReplay, Playback, RecordedTurn, ReplayReport
from proxies.dialect import ModelRequest, RequestProblem
from proxies.dialects import load_dialect
from proxies.language import PolicyLanguage, ReadSampled
from proxies.recorder import Recorder
from proxies.relay import IncomingRequest, Relay, RelayLimits
from proxies.served_policies import ServedPolicies, ServedPolicy
from proxies.session import Session
from proxies.session_restore import StoredRequests
from proxies.upstreams.replay import ReplayUpstream, request_of
from proxies.workers import REPLAY, WorkerTable

_TEMPORARY = "harnessgym-replay-"
_AROUND = 48
"""Tokens on both sides of the first that differs, whose text is shown."""


class Recording:
    """One recorded session: its calls, their tokens, their requests."""

    def __init__(self, store: TraceStore, row: SessionRow, read: ReadSampled) -> None:
        self.row = row
        self.calls: list[RecordedCall] = store.read(lambda conn: calls.of_sessions(conn, [row.id]))
        self._segments: Mapping[str, Segment] = store.read(lambda conn: calls.segments_of(conn, [row.id]))
        self._forest = Forest.load(row.id, self._segments.values(), ())
        self._requests = StoredRequests(
            store,
            {call.id: call for call in self.calls},
            self._segments,
            read,
            SessionOptions.model_validate(row.options),
        )

    def request(self, call: RecordedCall) -> ModelRequest:
        """A call's request. Raises `RequestProblem` if it cannot be read."""
        return self._requests.request(call.id)

    def prompt(self, call: RecordedCall) -> TokenIds:
        """The tokens of a call's prompt."""
        return self._forest.ids(call.prompt_segment)

    def turn(self, call: RecordedCall, request: ModelRequest) -> RecordedTurn | None:
        """A call with its request and sampled tokens; None if it has no answer."""
        if call.completion_segment is None:
            return None
        completion = self._segments[call.completion_segment]
        versions = (
            ()
            if completion.logprobs is None
            else versions_of(call.version_spans, len(completion.ids)).tolist()
        )
        reason = "abort" if call.status == "aborted" else call.finish_reason or "stop"
        return RecordedTurn(
            call.id, call.ordinal, request_of(request), completion.ids, completion.logprobs, versions, reason
        )


def playback_of(store: TraceStore, name: str, read: ReadSampled) -> Playback:
    """The record of a rollout, or of a session. Raises `StoreError` if there is none."""
    turns = []
    for recording in recordings_of(store, name, read):
        for call in recording.calls:
            try:
                turn = recording.turn(call, recording.request(call))
            except RequestProblem:
                continue
            if turn is not None:
                turns.append(turn)
    return Playback(turns)


def recordings_of(store: TraceStore, name: str, read: ReadSampled) -> list[Recording]:
    """The sessions of a rollout, or one session. Raises `StoreError` if there are none."""
    session_ids = store.read(lambda conn: sessions.of_rollout(conn, name)) or [name]
    rows = store.read(lambda conn: [sessions.get(conn, session_id) for session_id in session_ids])
    known = [row for row in rows if row is not None]
    if not known:
        raise StoreError(
            f"There is no rollout or session {name!r} to replay. `harnessgym traces list` lists them."
        )
    return [Recording(store, row, read) for row in known]


async def replay_rollout(
    store: TraceStore, rollout_id: str, languages: Mapping[str | None, PolicyLanguage]
) -> ReplayReport:
    """Put the requests of a rollout's sessions through a relay, one after the other, up to the first that
    differs.

    `languages` are those of the policies that its calls name: by policy id, or None for the only policy.
    """
    done: list[CallReplay] = []
    skipped: list[str] = []
    known = await asyncio.to_thread(store.read, lambda conn: policies.of_rollout(conn, rollout_id))
    several = [
        ServedPolicy.of(name, languages[each], each) for name, each in known.items() if each in languages
    ]
    recorded = ServedPolicies(several) if several else ServedPolicies.alone(languages[None])
    recordings = await asyncio.to_thread(recordings_of, store, rollout_id, recorded.read)
    with (
        tempfile.TemporaryDirectory(prefix=_TEMPORARY) as folder,
        TraceStore.create(f"sqlite:///{folder}/replay.db") as own,
    ):
        for recording in recordings:
            await _SessionReplay(own, recorded, recording, done, skipped).run()
            if done and done[-1].problem is not None:
                break
    return ReplayReport(rollout_id, tuple(done), tuple(skipped))


class _SessionReplay:
    """Replays one session through a relay. `own` is the temporary store."""

    def __init__(
        self,
        own: TraceStore,
        recorded: ServedPolicies,
        recording: Recording,
        done: list[CallReplay],
        skipped: list[str],
    ) -> None:
        """`recorded` has the policies under the ids that the record uses."""
        self._recorded = recorded
        self._recording = recording
        self._done = done
        self._skipped = skipped
        self._playback = Playback([])
        self._workers = WorkerTable(replay=ReplayUpstream(lambda _: self._playback))
        limits = RelayLimits("policy", "replay", max_length=1 << 30, max_in_flight=1 << 30, grace_s=0.0)
        self._recorder = Recorder(own)
        row, ids = own.write(
            lambda conn: _session(conn, recording.row, recorded.names if recorded.first.id else ())
        )
        several = [
            ServedPolicy.of(name, recorded.named(name).language, policy_id) for name, policy_id in ids.items()
        ]
        self._served = ServedPolicies(several) if several else recorded
        self._relay = Relay(self._recorder, self._workers, self._served, limits)
        self._session = Session.of(row)

    async def run(self) -> None:
        """Send every recorded request, up to the first that differs."""
        try:
            for call in self._recording.calls:
                try:
                    request = self._recording.request(call)
                    problem = await self._ask(call, request)
                except RequestProblem as refusal:
                    self._skipped.append(f"call {call.id}: {refusal.problem.message}")
                    continue
                self._done.append(CallReplay(call.id, call.ordinal, call.prompt_len, problem))
                if problem is not None:
                    break
        finally:
            self._workers.close()
            self._recorder.flush()

    async def _ask(self, recorded: RecordedCall, request: ModelRequest) -> str | None:
        """Send one request. Returns what differs from the record; None if nothing does."""
        turn = self._recording.turn(recorded, request)
        self._playback.turns = [] if turn is None else [turn]
        self._playback.divergence = None
        prefix = load_dialect(recorded.protocol).tool_call_prefix
        alone = replace(request, n=1)  # the record has each of several siblings as a call
        incoming = IncomingRequest(recorded.protocol, alone, b"{}", recorded.id, prefix, retry=False)
        (call,) = await self._relay.calls(self._session, incoming)
        policy = self._served.by_id(call.policy_id)
        recorded_policy = self._recorded.by_id(recorded.policy_id)
        policy_context = self._session.policy_context(call.policy_id)
        prompt = policy_context.forest.ids(call.prompt_segment)
        expected = self._recording.prompt(recorded)
        assert call.task is not None
        await call.task
        if policy.name != recorded_policy.name:
            return (
                f"its request goes to policy {policy.name!r}; the recorded one went to "
                f"{recorded_policy.name!r}"
            )
        if list(prompt) != list(expected):
            pairs = enumerate(zip(prompt, expected, strict=False))
            at = next((at for at, (one, other) in pairs if one != other), min(len(prompt), len(expected)))
            where = (
                f"its request gives a prompt of {len(prompt)} tokens that differs from token {at} of "
                f"{len(expected)} on"
            )
            start = max(0, at - _AROUND)
            old, new = (_text(policy, ids[start : at + _AROUND]) for ids in (expected, prompt))
            return f"{where}\n{difference(old, new)}"
        if turn is not None and call.problem is not None:
            return f"its answer cannot be given again: {call.problem.message}"
        return None


def _text(policy: ServedPolicy, ids: TokenIds) -> str:
    return policy.language.renderer.written(ids).decode(errors="replace")


def _session(
    conn: Connection, recorded: SessionRow, names: Sequence[str]
) -> tuple[SessionRow, dict[str, str]]:
    """Open a session like the recorded one, in a new rollout, without limits and answered from the record.

    Returns it, and the ids of new policies with these `names`.
    """
    run_id = runs.add(conn, "replay", {}, "", "training")
    ids = {name: policies.register(conn, run_id, name) for name in names}
    task_id = runs.add_task(conn, "replay", Task("replay", ""))
    policy_id = policies.register(conn, run_id, "policy")
    spec = GroupSpec(run_id, task_id, policy_id, "replay", 0, 0, {}, ("replay",), "none", (0,))
    rollout_id = rollouts.start(conn, spec, "replay", 3_600.0)
    options = {**recorded.options, "upstream": REPLAY, "replay": recorded.id, "contracts": []}
    row = sessions.add(
        conn, rollout_id, recorded.id, sampling=recorded.sampling, history=recorded.history, options=options
    )
    return row, ids
