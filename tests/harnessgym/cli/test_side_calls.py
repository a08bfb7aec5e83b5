"""`--side-call` of `harnessgym wrap` and `harnessgym rollout`."""

import subprocess
import sys
from pathlib import Path

import pytest
import typer
from sqlalchemy import select

from harnessgym.cli.side_calls import rules_of
from harnessgym.errors import ConfigError
from harnessgym.harness import SideCallRule
from harnessgym.store import TraceStore
from harnessgym.store.tables import calls

AGENT = """
import openai
for said in ("Write a commit message.", "Fix it."):
    openai.OpenAI().chat.completions.create(model="policy", messages=[{"role": "user", "content": said}])
"""


def test_rules_are_tables():
    (rule,) = rules_of(['{name = "title", no_tools = true}'])
    assert rule == SideCallRule(kind="side", name="title", no_tools=True)
    (rule,) = rules_of(['{name = "summary", kind = "compaction", user_pattern = "Sum"}'])
    assert rule.kind == "compaction"


@pytest.mark.parametrize(
    ("word", "error", "told"),
    [
        ("title", typer.BadParameter, "write a TOML table"),
        ('{name = "title"}', ConfigError, "has no condition"),
        ('{name = "title", user_patern = "x"}', ConfigError, "user_pattern"),
        ('{name = "title", user_pattern = "("}', ConfigError, "no regular expression"),
    ],
)
def test_what_is_no_rule_is_refused_in_words(word, error, told):
    with pytest.raises(error, match=told):
        rules_of([word])


def test_a_wrapped_agents_side_calls_are_recorded_as_such(tmp_path: Path):
    words = ["--folder", str(tmp_path), "--upstream", "scripted"]
    words += ["--side-call", '{name = "commit", user_pattern = "commit message"}']
    argv = [sys.executable, "-m", "harnessgym", "wrap", *words, "--", sys.executable, "-c", AGENT]
    subprocess.run(argv, check=True, capture_output=True, timeout=120)
    with TraceStore.open(f"sqlite:///{tmp_path}/traces.db") as store:
        rows = store.read(
            lambda conn: conn.execute(select(calls.c.kind, calls.c.side_call).order_by(calls.c.ordinal)).all()
        )
    assert [tuple(row) for row in rows] == [("side", "commit"), ("policy", None)]
