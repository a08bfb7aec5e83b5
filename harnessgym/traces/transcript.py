"""The transcript of a rollout, call by call: the messages that each request added, and its answer.

Requests are read from their stored bodies with the dialect of the request, answers from the sampled tokens. A
harness sends the whole conversation with every turn, but each message is read only once. What cannot be read
is listed as missing: an answer without the policy's files, a request whose body is not stored. Messages are
those of the harness, without instructions that the proxy may have added for the policy. `to_wire` and
`tools_to_wire` give them in OpenAI's chat format, with arguments as the text that the policy wrote.
"""

from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import Connection

from harnessgym.message import Message, ToolSpec
from harnessgym.registry import load
from harnessgym.store.bodies import StoredBodies
from harnessgym.store.facts import AgentFacts, CallFacts, RolloutFacts, agents_of, calls_of, rollout_of
from harnessgym.traces.completions import AnswerSource, CallCompletions, Languages
from harnessgym.traces.forest import replay_form

Json = dict[str, Any]

_HELD = 64
"""Conversations of a session that stay in memory. Others are read again if a request continues them."""
_PREVIOUS = "resp_"
"""Prefix of the ids under which clients refer to answers."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One call: what its request added to the conversation, and its answer."""

    call: CallFacts
    agent: str
    """Name of the agent; empty for a call that belongs to no agent."""
    continues: str | None
    """The call whose conversation the request continues."""
    shared: int
    """How many leading messages it shares with that conversation, which ends in that call's answer."""
    new: tuple[Message, ...]
    """The messages after those."""
    tools: tuple[ToolSpec, ...]
    answer: Message | None
    answer_source: AnswerSource | None
    missing: tuple[str, ...] = ()
    """What is missing, and why."""


@dataclass(frozen=True, slots=True)
class Transcript:
    """All exchanges of a rollout."""

    rollout: RolloutFacts
    agents: tuple[AgentFacts, ...]
    exchanges: tuple[Exchange, ...]
    """By session, in the order the calls began."""

    def messages_through(self, call_id: str) -> tuple[tuple[Message, str | None], ...]:
        """Return all messages up to and including a call's answer, each with its call if it is an answer."""
        # Walks back through the conversations. `end` is how many leading messages of a conversation the call
        # still has. It never grows on the way back.
        by_id = {item.call.id: item for item in self.exchanges}
        parts = list[list[_Spoken]]()
        at = call_id
        end = None
        while True:
            item = by_id[at]
            part: list[_Spoken] = [(message, None) for message in item.new]
            part += [] if item.answer is None else [(item.answer, at)]
            parts.append(part if end is None else part[: max(0, end - item.shared)])
            end = item.shared if end is None else min(end, item.shared)
            if item.continues is None:
                return tuple(spoken for part in reversed(parts) for spoken in part)
            at = item.continues

    def conversation(self, call_id: str) -> tuple[Message, ...]:
        """Return all messages up to and including a call's answer."""
        return tuple(message for message, _ in self.messages_through(call_id))


_Spoken = tuple[Message, str | None]


def transcript(conn: Connection, rollout_id: str, languages: Languages | None = None) -> Transcript:
    """Read a rollout's transcript. Raises `StoreError` if there is no such rollout."""
    rollout = rollout_of(conn, rollout_id)
    known = agents_of(conn, rollout_id)
    calls = calls_of(conn, rollout_id)
    answers = CallCompletions.load(conn, rollout, languages or Languages())
    requests = StoredBodies.load(conn, rollout_id, "request")
    names = {agent.id: agent.name for agent in known}
    reading: dict[str, _Session] = {}
    exchanges: dict[str, Exchange] = {}
    for call in calls:
        session = reading.get(call.session_id) or reading.setdefault(
            call.session_id, _Session(requests, answers)
        )
        exchange, replayed = session.exchange(call, names.get(call.agent_id or "", ""))
        exchanges[call.id] = exchange
        # If an answer cannot be decoded, use the form in which a later request sends it back.
        if replayed is not None and exchange.continues is not None:
            asked = exchanges[exchange.continues]
            if asked.answer is None:
                exchanges[asked.call.id] = replace(asked, answer=replayed, answer_source="replay")
    return Transcript(rollout, tuple(known), tuple(exchanges.values()))


def to_wire(message: Message) -> Json:
    """Return a message in chat format, plus `is_error` if it is set. Parsing it gives the same message."""
    out = message.to_chat()
    for call, written in zip(message.tool_calls, out.get("tool_calls", ()), strict=True):
        written["function"]["arguments"] = call.arguments
    if message.role == "tool":
        out["tool_call_id"] = message.tool_call_id or ""
    return out


def tools_to_wire(tools: tuple[ToolSpec, ...]) -> list[Json]:
    """Return tools in the chat format."""
    return [tool.to_template() for tool in tools]


@dataclass(frozen=True, slots=True)
class _Conversation:
    """The whole conversation of a call, and its answer."""

    messages: tuple[Message, ...]
    instructions: bool = False
    """Whether the first message applies to this call only."""
    tools: tuple[ToolSpec, ...] = ()
    answer: Message | None = None
    source: AnswerSource | None = None
    missing: tuple[str, ...] = ()
    agent_id: str | None = None
    raw: str | None = None
    """The text of a prompt that did not consist of messages."""


@dataclass
class _Session:
    """Reads the calls of one session, in order."""

    requests: StoredBodies
    answers: CallCompletions
    _held: "OrderedDict[str, _Conversation]" = field(default_factory=OrderedDict)
    _calls: dict[str, CallFacts] = field(default_factory=dict)
    _readers: dict[str, Any] = field(default_factory=dict)

    def exchange(self, call: CallFacts, agent: str) -> tuple[Exchange, Message | None]:
        """Return a call's exchange, and the preceding answer in the form that this request contains."""
        self._calls[call.id] = call
        conversation = self._conversation(call)
        base, shared, replayed = self._base(call, conversation)
        new = conversation.messages[shared:]
        tools = conversation.tools
        return Exchange(
            call,
            agent,
            base,
            shared,
            new,
            tools,
            conversation.answer,
            conversation.source,
            conversation.missing,
        ), replayed

    def _conversation(self, call: CallFacts) -> _Conversation:
        conversation = self._read(call)
        self._held[call.id] = conversation
        while len(self._held) > _HELD:
            self._held.popitem(last=False)
        return conversation

    def _known(self, call_id: str) -> _Conversation:
        """Return the conversation of an earlier call."""
        if call_id in self._held:
            self._held.move_to_end(call_id)
            return self._held[call_id]
        return self._conversation(self._calls[call_id])

    def _read(self, call: CallFacts) -> _Conversation:
        body = self.requests.of_call(call.id)
        if body is None:
            answer = self.answers.of_call(call, id_prefix="call_", tools=True, raw=False)
            missing = ("its request: the store has no body of it", *_missing_answer(answer.missing))
            return _Conversation(
                (), answer=answer.message, source=answer.source, missing=missing, agent_id=call.agent_id
            )
        dialect = load("dialect", call.protocol)()
        if call.protocol not in self._readers:
            self._readers[call.protocol] = load("body_reader", "conversation")()
        try:
            request = dialect.parse(
                self._readers[call.protocol].read(body), {":path": dialect.routes[0].path}
            )
        except load("dialect", "proxies.dialect:RequestProblem") as problem:
            answer = self.answers.of_call(call, id_prefix="call_", tools=True, raw=False)
            missing = (f"its request: {problem}", *_missing_answer(answer.missing))
            return _Conversation(
                (), answer=answer.message, source=answer.source, missing=missing, agent_id=call.agent_id
            )
        if request.fill is not None and all(earlier in self._calls for earlier in request.refers_to):
            request = request.fill(
                {earlier: self._said(earlier, dialect.tool_call_prefix) for earlier in request.refers_to}
            )
        return self._asked(call, request, f"{dialect.tool_call_prefix}{call.id}_")

    def _said(self, call_id: str, prefix: str) -> Message:
        """The answer of an earlier call, to which a request refers."""
        call = self._calls[call_id]
        answer = self.answers.of_call(call, id_prefix=f"{prefix}{call_id}_", tools=True, raw=False)
        return answer.message or Message("assistant")

    def _asked(self, call: CallFacts, request: Any, id_prefix: str) -> _Conversation:
        offered = bool(request.tools) and request.tool_choice != "none"
        raw = request.prompt if isinstance(request.prompt, str) else None
        answer = self.answers.of_call(
            call,
            id_prefix=id_prefix,
            tools=offered,
            raw=request.prompt is not None,
            offered=request.tools,
        )
        missing = _missing_answer(answer.missing)
        messages = request.messages
        if request.prompt is not None:
            text = raw if raw is not None else self.answers.text(call, request.prompt)
            messages = () if text is None else self._prompted(call, text)
            missing = (
                *missing,
                *(
                    ("its prompt is token ids, and the policy's tokenizer is missing",)
                    if text is None
                    else ()
                ),
            )
        if request.previous is not None:
            earlier = self._calls.get(request.previous.removeprefix(_PREVIOUS))
            if earlier is None:
                missing = (
                    *missing,
                    f"the earlier conversation: answer {request.previous} is not in this session",
                )
            else:
                messages = _joined(self._known(earlier.id), request)
        return _Conversation(
            messages,
            request.instructions,
            request.tools,
            answer.message,
            answer.source,
            missing,
            call.agent_id,
            raw,
        )

    def _prompted(self, call: CallFacts, prompt: str) -> tuple[Message, ...]:
        """Return a raw prompt as messages: the longest earlier prompt and answer in it, then the rest."""
        names = (
            [call.parent_call_id]
            if call.parent_call_id in self._calls
            else [name for name in self._held if name != call.id]
        )
        earlier = [
            known for known in map(self._known, names) if known.raw is not None and known.answer is not None
        ]
        begun = [(known, _written(known)) for known in earlier if prompt.startswith(_written(known))]
        if not begun:
            return (Message("user", prompt),)
        known, before = max(begun, key=lambda pair: len(pair[1]))
        assert known.answer is not None
        return (*known.messages, known.answer, Message("user", prompt[len(before) :]))

    def _base(self, call: CallFacts, conversation: _Conversation) -> tuple[str | None, int, Message | None]:
        """Return the call whose conversation a request continues, the number of shared messages, the answer.

        The answer is in the form in which the request contains it; None if it does not.
        """
        if call.parent_call_id in self._calls:
            shared, replayed = _shared(self._known(call.parent_call_id), conversation.messages, answered=True)
            if shared:
                return call.parent_call_id, shared, replayed
        best: tuple[str | None, int, Message | None] = (None, 0, None)
        for name, known in reversed(self._held.items()):
            if name != call.id and known.agent_id == call.agent_id:
                shared, replayed = _shared(known, conversation.messages, answered=False)
                if shared > best[1]:
                    best = (name, shared, replayed)
        return best


def _joined(known: _Conversation, request: Any) -> tuple[Message, ...]:
    """Return the whole conversation of a request that names the answer it continues.

    Instructions apply to one request only, so those of the earlier request are dropped.
    """
    old = known.messages[1:] if known.instructions else known.messages
    front, new = (
        (request.messages[:1], request.messages[1:]) if request.instructions else ((), request.messages)
    )
    return (*front, *old, *(() if known.answer is None else (known.answer,)), *new)


def _shared(
    known: _Conversation, messages: tuple[Message, ...], *, answered: bool
) -> tuple[int, Message | None]:
    """Return how many leading messages belong to a conversation and its answer, and the answer's form there.

    `answered`: the request is known to contain the answer in some form.
    """
    before = known.messages
    pairs = enumerate(zip(before, messages, strict=False))
    end = next((at for at, (one, other) in pairs if one is not other and one.digest != other.digest), None)
    count = min(len(before), len(messages)) if end is None else end
    if count < len(before) or count == len(messages) or messages[count].role != "assistant":
        return count, None
    message = messages[count]
    if answered or (known.answer is not None and _says(message) == _says(known.answer)):
        return count + 1, message
    return count, None


def _says(message: Message) -> str:
    """Return a digest that is equal for all forms of an answer. Clients may leave out the reasoning."""
    return replace(replay_form(message), reasoning="").digest


def _written(known: _Conversation) -> str:
    """Return a raw prompt followed by its answer."""
    return f"{known.raw}{known.answer.content if known.answer is not None else ''}"


def _missing_answer(missing: str | None) -> tuple[str, ...]:
    return () if missing is None else (f"its answer: {missing}",)
