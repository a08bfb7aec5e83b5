"""What spans of real frameworks say, by the attributes that they have."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxies.otlp.conventions import SpanReport, report_of
from proxies.otlp.wire import Moment, OtlpSpan

CALL = "0660c8826eac761e0df95efd"


def report(name="step", moments=(), error=None, **attributes):
    said = {key.replace("__", "."): value for key, value in attributes.items()}
    return report_of(OtlpSpan("a" * 32, "b" * 16, None, name, 1.0, 2.0, said, moments, (), error))


@pytest.mark.parametrize(
    ("name", "attributes", "deed"),
    [
        ("chat gpt", {"gen_ai__operation__name": "chat"}, "llm"),
        ("ChatCompletion", {"openinference__span__kind": "LLM"}, "llm"),
        ("execute_tool x", {"gen_ai__operation__name": "execute_tool"}, "tool"),
        ("search", {"openinference__span__kind": "RETRIEVER"}, "tool"),
        ("x.tool", {"traceloop__span__kind": "tool"}, "tool"),
        ("invoke_agent x", {"gen_ai__operation__name": "invoke_agent"}, "agent"),
        ("Crew.kickoff", {"openinference__span__kind": "AGENT"}, "agent"),
        ("handoff to coder", {"openinference__span__kind": "TOOL"}, "handoff"),
        ("moderation", {"openinference__span__kind": "GUARDRAIL"}, "guardrail"),
        ("judge", {"openinference__span__kind": "EVALUATOR"}, "step"),
        ("chain", {"openinference__span__kind": "CHAIN"}, "step"),
        ("GET /", {}, "step"),
        ("human_approval", {}, "human_intervention"),
        ("ask-user", {}, "human_intervention"),
        ("humane society", {}, "step"),
        ("invoke_agent human resources", {"gen_ai__operation__name": "invoke_agent"}, "agent"),
        ("step", {"gen_ai__operation__name": "aggregate"}, "aggregate"),
        ("despawn", {}, "despawn"),
    ],
)
def test_what_a_span_says_was_done(name, attributes, deed):
    found = report(name, **attributes)
    assert found.deed == deed
    assert (found.evidence == "") == (deed == "step")


@pytest.mark.parametrize(
    "attributes",
    [
        {"gen_ai__operation__name": "chat", "gen_ai__response__id": f"chatcmpl-{CALL}"},
        {"gen_ai__operation__name": "chat", "gen_ai__response__id": f"resp_{CALL}"},
        {"gen_ai__operation__name": "chat", "gen_ai__response__id": CALL},
        {"openinference__span__kind": "LLM", "output__value": f'{{"id":"msg_{CALL}","content":[]}}'},
        {
            "openinference__span__kind": "LLM",
            "llm__output_messages__0__message__tool_calls__1__tool_call__id": f"toolu_{CALL}_1",
        },
        {"openinference__span__kind": "TOOL", "tool__id": f"call_{CALL}_0"},
        {"gen_ai__operation__name": "execute_tool", "gen_ai__tool__call__id": f"call_{CALL}_12"},
    ],
)
def test_the_call_is_found_by_any_id_that_its_answer_brought(attributes):
    assert report(**attributes).call_id == CALL


def test_ids_of_others_and_of_earlier_calls_are_not_taken_for_it():
    asked = {"llm__input_messages__1__message__tool_calls__0__tool_call__id": f"call_{CALL}_0"}
    assert report(openinference__span__kind="LLM", **asked).call_id is None
    assert (
        report(
            gen_ai__operation__name="chat", gen_ai__response__id="chatcmpl-B9MBs8CjcvOU2jLn4n570S5qMJKcT"
        ).call_id
        is None
    )
    assert report(gen_ai__operation__name="chat", gen_ai__response__id=f"{CALL}0").call_id is None


def test_a_refused_tool_is_told_from_a_failed_one():
    def refused(**fields):
        return report(gen_ai__operation__name="execute_tool", **fields).refused

    assert refused(error="Permission denied by the guard") == 0.8
    assert refused(error="timeout") is None
    assert refused(error="", error__type="PermissionError") == 0.95
    assert refused(moments=(Moment("exception", 1.5, {"exception.type": "x.ToolRefused"}),)) == 0.95
    assert refused(output__value="access denied") is None


def test_a_guardrail_says_whether_it_held_something_back():
    assert report(openinference__span__kind="GUARDRAIL").refused is None
    assert report(openinference__span__kind="GUARDRAIL", error="tripwire").refused == 1.0
    assert report(openinference__span__kind="GUARDRAIL", output__value='{"triggered": true}').refused == 1.0
    assert report(openinference__span__kind="GUARDRAIL", output__value='{"triggered": false}').refused is None


def test_moments_of_a_kind_or_about_a_human_are_kept():
    moments = (
        Moment("gen_ai.user.message", 1.1, {"content": "x"}),
        Moment("tool approved", 1.2, {"by": "ann"}),
        Moment("message", 1.3, {"to": "south", "text": "x" * 900}),
    )
    found = report(moments=moments).moments
    assert [(moment.kind, moment.t, moment.confidence) for moment in found] == [
        ("human_intervention", 1.2, 0.8),
        ("message", 1.3, None),
    ]
    assert len(found[1].attributes["text"]) == 500


def test_names_of_agents_and_handoffs():
    assert report("invoke_agent north", gen_ai__operation__name="invoke_agent").agent == "north"
    assert report("x", openinference__span__kind="AGENT", graph__node__id="south").agent == "south"
    assert report("handoff to coder", openinference__span__kind="TOOL").target == "coder"


PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=30),
)
NAMES = st.sampled_from(
    [
        "gen_ai.operation.name",
        "openinference.span.kind",
        "gen_ai.response.id",
        "tool.id",
        "output.value",
        "error.type",
        "to",
        "agent.name",
    ]
)


@given(
    st.text(max_size=20),
    st.dictionaries(NAMES, PLAIN | st.lists(PLAIN, max_size=3)),
    st.none() | st.text(max_size=9),
)
def test_whatever_a_span_says_it_is_stored_and_read_again(name, attributes, error):
    found = report_of(
        OtlpSpan(
            "a" * 32,
            "b" * 16,
            None,
            name,
            1.0,
            2.0,
            attributes,
            (Moment(name, 1.0, attributes),),
            ("c" * 16,),
            error,
        )
    )
    stored = found.stored()
    assert SpanReport.of_stored(stored) == found
