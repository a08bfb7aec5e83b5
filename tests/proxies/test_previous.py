import pytest

from harnessgym.message import Message, ToolSpec
from proxies.dialect import ModelRequest, RequestProblem
from proxies.previous import call_of, joined, not_found, response_id

OLD = (Message("user", "One?"), Message("assistant", "1"), Message("user", "Two?"))
ANSWER = Message("assistant", "2")
NEW = Message("user", "Three?")
FIRST, SECOND = Message("system", "Be brief."), Message("system", "Be long.")


@pytest.mark.parametrize("earlier_instructed", [False, True])
@pytest.mark.parametrize("instructed", [False, True])
def test_instructions_are_those_of_the_new_request(earlier_instructed: bool, instructed: bool) -> None:
    earlier = ModelRequest(
        "m", (*([FIRST] if earlier_instructed else []), *OLD), instructions=earlier_instructed
    )
    request = ModelRequest(
        "m", (*([SECOND] if instructed else []), NEW), previous="c1", instructions=instructed
    )
    whole = joined(earlier, ANSWER, request)
    assert whole.messages == (*([SECOND] if instructed else []), *OLD, ANSWER, NEW)
    assert (whole.previous, whole.instructions) == (None, instructed)


def test_a_system_message_of_the_input_is_handed_on() -> None:
    earlier = ModelRequest("m", (FIRST, SECOND, *OLD), instructions=True)
    assert joined(earlier, ANSWER, ModelRequest("m", (NEW,))).messages == (SECOND, *OLD, ANSWER, NEW)
    assert joined(ModelRequest("m", (FIRST, *OLD)), ANSWER, ModelRequest("m", (NEW,))).messages[0] == FIRST


def test_everything_else_is_the_new_requests_own() -> None:
    earlier = ModelRequest(
        "m", OLD, tools=(ToolSpec("old"),), tool_choice="required", max_tokens=3, stream=True
    )
    request = ModelRequest("n", (NEW,), tools=(ToolSpec("new"),), max_tokens=4, previous="c1")
    whole = joined(earlier, ANSWER, request)
    assert (whole.model, whole.tools, whole.tool_choice, whole.max_tokens) == (
        "n",
        (ToolSpec("new"),),
        "auto",
        4,
    )
    assert not whole.stream


def test_ids() -> None:
    assert call_of(response_id("0af1")) == "0af1"
    for bad in ("", "resp_", "0af1", "msg_0af1"):
        with pytest.raises(RequestProblem, match="Previous response with id"):
            call_of(bad)
    assert not_found("resp_x").problem.message == "Previous response with id 'resp_x' not found."
