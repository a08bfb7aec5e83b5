"""Which agent speaks, where its harness does not say: what counts in its system text and tools, and who
started it.
"""

from datetime import datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessgym.message import Message, ToolCall, ToolSpec, context_digest
from harnessgym.store.agents import AgentRow
from proxies.dialect import ModelRequest
from proxies.lineage import Lineages

FIND, BUY = ToolSpec("find", "Find a thing."), ToolSpec("buy", "Buy a thing.")
TASK = Message("user", "Go.")


class Talk:
    """The calls of one session."""

    def __init__(self) -> None:
        self.lineages, self.calls = Lineages("rollout", "session"), 0

    def ask(
        self, *messages: Message, tools: tuple[ToolSpec, ...] = (FIND, BUY), answer: Message | None = None
    ) -> AgentRow:
        """Who asks this, continuing no call."""
        request, call = ModelRequest("m", messages, tools), f"c{self.calls}"
        agent, _ = self.lineages.attribute(request, None, context_digest(tools))
        self.lineages.begin(agent, call)
        if answer is not None:
            self.lineages.end(call, answer)
        self.calls += 1
        return agent

    def system(self, text: str, tools: tuple[ToolSpec, ...] = (FIND, BUY)) -> str:
        """The agent with this system text, by id."""
        return self.ask(Message("system", text), TASK, tools=tools).id


def calling(name: str) -> Message:
    return Message("assistant", "", tool_calls=(ToolCall("id", name, "{}"),))


def prompt(now: datetime, session: UUID, count: int, folder: str) -> str:
    return (
        f"You are a careful agent. Today is {now:%A, %d %B %Y}, {now.isoformat()}, or {now:%a %b} "
        f"{now.day:2} {now:%I:%M %p}.\n"
        f"Session {session} ({session.hex}), {count:,} tokens used in {count} turns.\n"
        f"<cwd>{folder}</cwd> Working directory: {folder}\n"
        "Keep to the rules in /etc/rules."
    )


FIRST = prompt(datetime(2025, 3, 3, 23, 59), UUID(int=7), 3, "/work")  # noqa: DTZ001 - a prompt has the local time


@given(
    st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1)),  # noqa: DTZ001
    st.uuids(),
    st.integers(0, 10**9),
    st.sampled_from(["/work", "/work/deeper", "/tmp/agent-x/repo", "~/work", "/home/me/other"]),
)
def test_another_day_place_and_count_is_the_same_agent(
    now: datetime, session: UUID, count: int, folder: str
) -> None:
    talk = Talk()
    assert talk.system(FIRST) == talk.system(prompt(now, session, count, folder))


@given(
    st.lists(
        st.sampled_from(["word", "a.b", " ", "\n", ",", "-", "7", "10:31", "v2", "(", "é3"]), max_size=30
    ),
    st.data(),
)
def test_numbers_do_not_count(pieces: list[str], data: st.DataObject) -> None:
    digits = st.integers(0, 10**6).map(str)

    def renumbered() -> str:
        return " ".join(
            "".join(data.draw(digits) if letter.isdigit() else letter for letter in piece) for piece in pieces
        )

    talk = Talk()
    assert talk.system(renumbered()) == talk.system(renumbered())


def test_after_midnight_it_is_the_same_agent() -> None:
    talk, midnight = Talk(), datetime(2025, 12, 31, 23, 59, 59)  # noqa: DTZ001
    agents = {
        talk.system(prompt(midnight + timedelta(seconds=second), UUID(int=7), 3, "/work"))
        for second in (0, 1, 2)
    }
    assert len(agents) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("You plan the work.", "You do the work."),
        (FIRST, FIRST.replace("careful", "bold")),
        (FIRST, FIRST.replace("/etc/rules", "/etc/laws")),
        (FIRST, FIRST.replace("rules in", "rules not in")),
        ("You are the planner, 3 March.", "You are the planner."),
        ("Use python.", "Use Python."),
        ("", "You plan."),
    ],
)
def test_other_instructions_are_another_agent(one: str, other: str) -> None:
    talk = Talk()
    assert talk.system(one) != talk.system(other)


@given(st.permutations([FIND, BUY, ToolSpec("sell", "Sell."), ToolSpec("sell_all", "Sell.")]))
def test_the_order_of_tools_does_not_count(tools: list[ToolSpec]) -> None:
    talk = Talk()
    assert talk.system("You trade.", tuple(tools)) == talk.system(
        "You trade.", tuple(sorted(tools, key=lambda tool: tool.name))
    )


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ((FIND,), False),
        ((FIND, ToolSpec("buy", "Steal a thing.")), False),
        ((FIND, ToolSpec("buy2", "Buy a thing.")), False),
        ((FIND, ToolSpec("buy", "Buy a thing.", {"type": "object"})), False),
        ((ToolSpec("buy", "Buy a thing."), ToolSpec("find", "Find a thing.")), True),
    ],
)
def test_other_tools_are_another_agent_only_where_there_are_no_instructions(
    other: tuple[ToolSpec, ...], same: bool
) -> None:
    talk = Talk()
    assert (talk.system("") == talk.system("", other)) is same
    assert talk.system("You trade.") == talk.system("You trade.", other)


def test_a_date_in_a_tools_description_does_not_count() -> None:
    talk = Talk()
    dated = [
        (ToolSpec("search", f"Search the web. Today is {day} 2026."),)
        for day in ("Monday, 2 March", "Friday, 13 March")
    ]
    assert talk.system("You search.", dated[0]) == talk.system("You search.", dated[1])


def test_who_hands_over_is_the_parent_however_many_wait() -> None:
    talk = Talk()
    planner = talk.ask(Message("system", "You plan."), TASK, answer=calling("plan"))
    triage = talk.ask(Message("system", "You triage."), TASK, answer=calling("transfer_to_coder"))
    given_back = Message("assistant", "", tool_calls=(ToolCall("other", "transfer_to_coder", " {}"),))
    coder = talk.ask(
        Message("system", "You code."), TASK, given_back, Message("tool", "ok"), answer=calling("shell")
    )
    assert coder.parent_agent_id == triage.id
    assert coder.evidence == "content"
    reviewer = talk.ask(
        Message("system", "You review."),
        TASK,
        given_back,
        Message("tool", "ok"),
        calling("shell"),
        Message("tool", "done"),
    )
    assert reviewer.parent_agent_id == coder.id
    lost = talk.ask(Message("system", "You sweep."), TASK)
    assert lost.parent_agent_id is None
    assert len({planner.id, triage.id, coder.id, reviewer.id, lost.id}) == 5


@pytest.mark.parametrize(
    "replayed",
    [Message("assistant", "To the coder!"), Message("assistant", "<think>hm</think>\n To the coder!")],
)
def test_an_answer_is_known_in_the_forms_in_which_it_comes_back(replayed: Message) -> None:
    talk = Talk()
    main = talk.ask(
        Message("system", "You plan."), TASK, answer=Message("assistant", "To the coder!", reasoning="hm")
    )
    assert talk.ask(Message("system", "You code."), TASK, replayed, TASK).parent_agent_id == main.id


def test_an_answer_that_two_agents_gave_tells_nothing() -> None:
    talk, same = Talk(), Message("assistant", "OK.")
    for text in ("You plan.", "You triage."):
        talk.ask(Message("system", text), TASK, answer=same)
    assert talk.ask(Message("system", "You code."), TASK, same, TASK).parent_agent_id is None
