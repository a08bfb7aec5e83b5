"""Agent frameworks that only the report plays: each takes an environment of its own, of 110 to 600 MB."""

from tests.suites.clients.cases import Case, Client, both, python_program

_SMOLAGENTS = python_program("smolagents", "1.26.0", "smolagents[openai]==1.26.0")
_LANGGRAPH = python_program(
    "langgraph", "1.2.24", "langgraph==1.2.24", "langchain==1.5.2", "langchain-openai==1.7.3", "langchain-anthropic==1.7.10"
)  # fmt: skip
_ADK = python_program("google_adk", "2.13.0", "google-adk==2.13.0")
_STRANDS = python_program("strands", "1.62.0", "strands-agents[openai,anthropic]==1.62.0")
_AUTOGEN = python_program("autogen", "0.7.5", "autogen-agentchat==0.7.5", "autogen-ext[openai]==0.7.5")
_LLAMA_INDEX = python_program(
    "llama_index", "0.14.25", "llama-index-core==0.14.25", "llama-index-llms-openai-like==0.8.1"
)
_CREWAI = python_program("crewai", "1.15.30", "crewai==1.15.30")

FRAMEWORKS = (
    Client(
        "smolagents",
        "1.26.0",
        "smolagents_agents.py",
        _SMOLAGENTS.install,
        (_SMOLAGENTS.python,),
        (
            Case(
                "tools plain", "chat", part="answer_by_tool", branches=2, breaks={"tool_reserialisation": 1}
            ),
            Case("code plain", "chat", part="code", branches=2, breaks={"edited_history": 1}),
        ),
    ),
    Client(
        "langgraph",
        "1.2.24, langchain 1.5.2, langchain-openai 1.7.3, langchain-anthropic 1.7.10",
        "langgraph_agents.py",
        _LANGGRAPH.install,
        (_LANGGRAPH.python,),
        both(("chat", "responses", "messages")),
    ),
    Client(
        "google_adk",
        "2.13.0",
        "google_adk_agent.py",
        _ADK.install,
        (_ADK.python,),
        both(("gemini",)),
    ),
    Client(
        "strands",
        "1.62.0",
        "strands_agent.py",
        _STRANDS.install,
        (_STRANDS.python,),
        (Case("chat streamed", "chat", True), Case("messages streamed", "messages", True)),
    ),
    Client(
        "autogen",
        "0.7.5",
        "autogen_agent.py",
        _AUTOGEN.install,
        (_AUTOGEN.python,),
        both(("chat",), branches=2, breaks={"edited_history": 1}),
    ),
    Client(
        "llama_index",
        "0.14.25",
        "llama_index_agent.py",
        _LLAMA_INDEX.install,
        (_LLAMA_INDEX.python,),
        both(("chat",)),
    ),
    Client(
        "crewai",
        "1.15.30",
        "crewai_crew.py",
        _CREWAI.install,
        (_CREWAI.python,),
        both(("chat",), branches=2, breaks={"edited_history": 1}),
        env={
            "CREWAI_DISABLE_TELEMETRY": "true",
            "OTEL_SDK_DISABLED": "true",
            "CREWAI_TRACING_ENABLED": "false",
        },
    ),
)
