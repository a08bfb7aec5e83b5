"""What two policies of different languages said through a real proxy: replayed, exported and imported
again.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from harnessgym.cli.traces import app
from harnessgym.errors import TraceError
from harnessgym.store.trace_store import TraceStore
from harnessgym.traces.atif.schema import AtifTrajectory
from harnessgym.traces.completions import Languages
from harnessgym.traces.export import TracedRollout, export
from harnessgym.traces.import_ import import_traces
from harnessgym.traces.replay import replay
from harnessgym.traces.token_lines import TokenRows
from harnessgym.traces.verification.verify import verify
from proxies.language import PolicyLanguage
from proxies.replaying import replay_rollout
from tests.proxies.conftest import POLICY, MakeWorld, World
from tests.proxies.two_policies import MARKING, ask, two_policies
from tests.support.other_tokenizer import with_other_ids

pytestmark = pytest.mark.anyio
TURNS = ("policy", "helper", "helper", "policy", "helper")


@pytest.fixture
def marking(tmp_path: Path) -> Path:
    """The folder of a policy whose template marks what it did not say, and whose tokens have other ids."""
    folder = Path(with_other_ids(POLICY, tmp_path / "marking"))
    (folder / "chat_template.jinja").write_text(MARKING)
    return folder


@asynccontextmanager
async def talked(make_world: MakeWorld, marking: Path) -> AsyncIterator[tuple[World, dict[str, str]]]:
    """One conversation that both take part in; the ids of the policies by name."""
    async with make_world("x") as world:
        ids = await two_policies(world, helper_folder=marking)
        session = await world.open()
        messages: list[dict[str, object]] = [{"role": "user", "content": "hi"}]
        for model in TURNS:
            messages += [await ask(world, session.key, model, messages), {"role": "user", "content": "go on"}]
        await world.control.seal(session.session_id)
        yield world, ids


async def test_every_policy_is_replayed_in_its_own_language(make_world: MakeWorld, marking: Path) -> None:
    async with talked(make_world, marking) as (world, ids):
        plain, marked = (PolicyLanguage.of_policy(folder) for folder in (POLICY, marking))
        report = await replay_rollout(
            world.store, world.rollout_id, {ids["policy"]: plain, ids["helper"]: marked}
        )
        assert report.ok, report
        assert len(report.calls) == len(TURNS)
        one = await replay_rollout(
            world.store, world.rollout_id, {ids["policy"]: plain, ids["helper"]: plain}
        )
        assert [call.problem is None for call in one.calls] == [True, False]
        assert "differs from token 1 " in str(one.calls[-1].problem)


async def test_a_request_that_would_ask_another_policy_is_told(make_world: MakeWorld) -> None:
    async with make_world("x") as world:
        ids = await two_policies(world)
        session = await world.open()
        await ask(world, session.key, "helper", [{"role": "user", "content": "hi"}])
        swapped = "UPDATE calls SET policy_id = ?"
        world.store.write(lambda conn: conn.exec_driver_sql(swapped, (ids["policy"],)))
        await ask(world, session.key, "helper", [{"role": "user", "content": "other"}])
        language = PolicyLanguage.of_policy(POLICY)
        report = await replay_rollout(world.store, world.rollout_id, dict.fromkeys(ids.values(), language))
        assert "goes to policy 'helper'; the recorded one went to 'policy'" in str(report.calls[0].problem)


async def test_a_language_that_is_missing_names_its_policy(make_world: MakeWorld, marking: Path) -> None:
    async with talked(make_world, marking) as (world, _):
        with pytest.raises(
            TraceError,
            match=r"policy '(helper|policy)' sampled in part, cannot be replayed: there is no folder",
        ):
            replay(world.store, world.rollout_id, Languages())


async def test_tokens_are_shown_in_the_tokenizer_of_the_policy_that_sampled_them(
    make_world: MakeWorld, marking: Path
) -> None:
    async with talked(make_world, marking) as (world, _):
        languages = Languages.of([str(POLICY), f"helper={marking}"])
        rows = TokenRows(TracedRollout(world.store, world.rollout_id, languages))
        said = [
            "".join(line.text or "" for line in rows.call(number).tokens if line.call == number)
            for number in range(len(TURNS))
        ]
        assert said == [
            f"{text}<|im_end|>" for text in ("policy 0", "helper 0", "helper 1", "policy 1", "helper 2")
        ]
        ids = [[line.id for line in rows.call(number).tokens if line.call == number][-2] for number in (0, 1)]
        assert ids[0] != ids[1], "both end in the token of one digit"


def roles_learnt(line: dict[str, Any]) -> list[str]:
    """The messages with a loss."""
    return [item["content"] for item, mask in zip(line["messages"], line["loss_mask"], strict=True) if mask]


async def test_messages_are_learnt_by_the_policy_that_said_them(
    make_world: MakeWorld, marking: Path, tmp_path: Path
) -> None:
    async with talked(make_world, marking) as (world, _):
        languages = Languages.of([str(POLICY), f"helper={marking}"])
        for name in ("policy", "helper"):
            out = tmp_path / f"{name}.jsonl"
            export(world.store, [world.rollout_id], "sft", out, languages, name)
            (line,) = map(json.loads, out.read_text().splitlines())
            assert roles_learnt(line) == [f"{name} {number}" for number in range(TURNS.count(name))]


async def test_an_import_keeps_whose_every_call_is(
    make_world: MakeWorld, marking: Path, tmp_path: Path
) -> None:
    async with talked(make_world, marking) as (world, _):
        languages, out = Languages.of([str(POLICY), f"helper={marking}"]), tmp_path / "one.json"
        export(world.store, [world.rollout_id], "atif", out, languages)
        document = json.loads(out.read_text())
        AtifTrajectory.model_validate(document)
        with TraceStore.create(f"sqlite:///{tmp_path}/other.db") as other:
            made = import_traces(other, out, "atif")
            brought = TracedRollout(other, made.rollouts[0], languages)
            assert [brought.policy_of(call) for call in brought.graph.calls.values()] == list(TURNS)
            for name in ("policy", "helper"):
                one, again = (
                    TracedRollout(store, world.rollout_id, languages, name) for store in (world.store, other)
                )
                assert [row.ids.tolist() for row in again.trajectory.rows] == [
                    row.ids.tolist() for row in one.trajectory.rows
                ]
                assert again.trajectory.sampled == one.trajectory.sampled > 0
            assert verify(other, made.run_id).findings == ()
            export(other, made.rollouts, "atif", tmp_path / "again.json", languages)
            assert json.loads((tmp_path / "again.json").read_text()) == document


async def test_the_commands_take_policies_by_name(
    make_world: MakeWorld, marking: Path, tmp_path: Path
) -> None:
    async with talked(make_world, marking) as (world, _):
        source, out = (
            [world.store.url, world.rollout_id],
            ["--out", str(tmp_path / "rows.jsonl"), "--format", "verl"],
        )
        folders = ["--policy", str(POLICY), "--policy", f"helper={marking}"]

        async def ask_for(*words: str) -> Result:
            return await asyncio.to_thread(CliRunner().invoke, app, words)

        refused = await ask_for("export", *source, *out)
        assert "Choose one with `--sampled-by NAME`" in str(refused.exception)
        done = await ask_for("export", *source, *out, "--sampled-by", "helper", "--json")
        assert json.loads(done.stdout)["records"] == 1, done.output
        replayed = json.loads((await ask_for("replay", *source, *folders, "--json")).stdout)
        assert replayed["ok"], replayed
        shown = (await ask_for("show", *source, *folders)).stdout
        assert "helper 2" in shown
