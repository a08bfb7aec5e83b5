"""Contract of routing where a proxy serves several policies: whom a model name asks for, and that no
tokens cross over.
"""

import shutil
from pathlib import Path

import pytest
from sqlalchemy import select, text, update

from harnessgym.store import workers
from harnessgym.store.tables import calls as calls_table
from harnessgym.traces.trajectories import rows_of
from harnessgym.traces.verification.verify import verify
from proxies.upstreams.scripted import ScriptedUpstream
from tests.proxies.conftest import POLICY, MakeWorld, World
from tests.proxies.two_policies import MARKING, ask, two_policies

pytestmark = pytest.mark.anyio
END = "<|im_end|>"
HI = [{"role": "user", "content": "hi"}]


def recorded(world: World) -> list[tuple[str | None, str]]:
    """Policy and worker of every call, in order."""
    query = select(calls_table.c.policy_id, calls_table.c.upstream).order_by(calls_table.c.ordinal)
    return [tuple(row) for row in world.store.read(lambda conn: conn.execute(query).all())]


async def test_a_model_name_that_is_a_policys_asks_for_that_one_and_any_other_for_the_first(
    make_world: MakeWorld,
) -> None:
    async with make_world("x") as world:
        ids = await two_policies(world)
        session = await world.open()
        for model, expected in (
            ("helper", "helper"),
            ("policy", "policy"),
            ("gpt-4o", "policy"),
            ("Helper", "policy"),
        ):
            assert str((await ask(world, session.key, model, HI))["content"]).startswith(expected)
        first, helper = (ids["policy"], "w-policy"), (ids["helper"], "w-helper")
        assert recorded(world) == [helper, first, first, first]
        names = world.store.read(
            lambda conn: conn.execute(text("SELECT policy FROM v_turn ORDER BY ordinal")).scalars().all()
        )
        assert names == ["helper", "policy", "policy", "policy"]


async def test_a_proxy_of_one_policy_takes_every_name_and_records_none(make_world: MakeWorld) -> None:
    async with make_world(f"one{END}", f"two{END}") as world:
        session = await world.open()
        await ask(world, session.key, "helper", HI)
        await ask(world, session.key, "policy", HI)
        assert recorded(world) == [(None, "w0"), (None, "w0")]


async def test_every_policy_continues_its_own_answers_alone(make_world: MakeWorld) -> None:
    """One conversation that both take part in: what the other said is context, and no sampled token of the
    row.
    """
    async with make_world("x") as world:
        ids = await two_policies(world, helper_version=3)
        session = await world.open()
        messages: list[dict[str, object]] = [{"role": "user", "content": "hi"}]
        for model in ("policy", "helper", "policy", "helper"):
            messages += [await ask(world, session.key, model, messages), {"role": "user", "content": "go on"}]
        await world.control.seal(session.session_id)
        trajectory = world.store.read(lambda conn: rows_of(conn, world.rollout_id, group_id="g"))
        calls = world.calls(session)
        assert [call.policy_id for call in calls] == [
            ids[name] for name in ("policy", "helper", "policy", "helper")
        ]
        for name, version in (("policy", 0), ("helper", 3)):
            own = trajectory.of_policy(ids[name])
            sampled = [
                token
                for call in calls
                if call.policy_id == ids[name]
                for token in world.completion(session, call).ids
            ]
            trained = [int(token) for row in own.rows for token in row.ids[row.mask == 1]]
            assert sorted(trained) == sorted(sampled)
            assert {int(each) for row in own.rows for each in row.versions[row.mask == 1]} == {version}
            assert own.trained == own.sampled == len(sampled)
        policy_of = {call.id: call.policy_id for call in calls}
        continued = [call for call in calls if call.parent_call_id]
        assert len(continued) == 2
        assert all(policy_of[str(call.parent_call_id)] == call.policy_id for call in continued)
        assert not verify(world.store).findings
        crossed = update(calls_table).where(calls_table.c.id == calls[3].id).values(policy_id=ids["policy"])
        world.store.write(lambda conn: conn.execute(crossed))
        assert "parent_policy" in {finding.kind for finding in verify(world.store).findings}


async def test_equal_requests_to_two_policies_are_two_prompts(make_world: MakeWorld) -> None:
    async with make_world("x") as world:
        await two_policies(world)
        session = await world.open()
        await ask(world, session.key, "policy", HI)
        await ask(world, session.key, "helper", HI)
        one, other = world.calls(session)
        assert world.prompt(session, one) == world.prompt(session, other)
        assert one.prompt_segment != other.prompt_segment


async def test_every_policy_is_asked_in_its_own_language(make_world: MakeWorld, tmp_path: Path) -> None:
    """The helper's template marks what is said; a conversation that both take part in is rendered for each
    as its own.
    """
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(POLICY / name, tmp_path)
    (tmp_path / "chat_template.jinja").write_text(MARKING)
    async with make_world("x") as world:
        await two_policies(world, helper_folder=tmp_path)
        session = await world.open()
        messages: list[dict[str, object]] = [*HI]
        for model in ("policy", "helper", "policy", "helper"):
            messages += [await ask(world, session.key, model, messages), {"role": "user", "content": "go on"}]
        written = world.language.renderer.written
        prompts = [written(world.prompt(session, call)).decode() for call in world.calls(session)]
        assert ["said:" in prompt for prompt in prompts] == [False, True, False, True]
        assert prompts[3].startswith(prompts[1] + f"helper 0{END}")
        assert "policy 1" in prompts[3]


async def test_a_restarted_proxy_goes_on_in_every_policys_own_conversation(make_world: MakeWorld) -> None:
    async with make_world("x") as world:
        ids = await two_policies(world)
        session = await world.open()
        heard = {model: [*HI, await ask(world, session.key, model, HI)] for model in ("policy", "helper")}
        await two_policies(world)
        for model, messages in heard.items():
            await ask(world, session.key, model, [*messages, {"role": "user", "content": "go on"}])
        calls = world.calls(session)
        continued = {call.policy_id: call.parent_call_id for call in calls[2:]}
        assert continued == {ids["policy"]: calls[0].id, ids["helper"]: calls[1].id}
        assert all(world.break_of(call) is None for call in calls)


async def test_pins_and_oldest_versions_are_those_of_the_policy(make_world: MakeWorld) -> None:
    async with make_world("x") as world:
        ids = await two_policies(world, helper_version=5, worker_wait_s=0.2)
        limits = {"min_versions": {ids["helper"]: 6}}
        old = await world.open(limits=limits)
        assert (await world.chat(old.key, HI, model="helper")).status_code != 200
        await ask(world, old.key, "policy", HI)
        pinned = await world.open(version_pin=0, limits={"pins": {ids["helper"]: 5}})
        assert str((await ask(world, pinned.key, "helper", HI))["content"]).startswith("helper")
        assert str((await ask(world, pinned.key, "policy", HI))["content"]).startswith("policy")
        other = await world.open(version_pin=4, min_version=9)
        await ask(world, other.key, "helper", HI)


async def test_a_call_waits_for_its_own_policys_worker(make_world: MakeWorld) -> None:
    async with make_world("x") as world:
        await two_policies(world, worker_wait_s=0.2)
        await world.control.drain("w-helper", timeout_s=0.1)
        session = await world.open()
        refused = await world.chat(session.key, HI, model="helper")
        assert refused.status_code != 200
        assert "w-policy v0 ready" in refused.text
        await world.control.undrain("w-helper", 1)
        await ask(world, session.key, "helper", HI)
        assert [call.policy_id is not None for call in world.calls(session)] == [True, True]


async def test_a_worker_that_names_no_policy_serves_the_first(make_world: MakeWorld) -> None:
    async with make_world("x") as world:
        ids = await two_policies(world)
        for name, policy_id in (("w-new", None), ("w-more", ids["helper"])):
            world.upstreams[name] = ScriptedUpstream([world.text(f"new{END}")])
            await world.control.register(name, name, 0, kind="scripted", policy_id=policy_id)
        rows = world.store.read(lambda conn: workers.of_run(conn, world.settings.run_id))
        assert {row.id: row.policy_id for row in rows} == {"w-new": ids["policy"], "w-more": ids["helper"]}
        table = (await world.control.stats())["workers"]
        assert {row["id"]: row["policy_id"] for row in table}["w-new"] == ids["policy"]


@pytest.mark.parametrize("path", ["/v1/models", "/v1beta/models"])
async def test_lists_of_models_name_every_policy(make_world: MakeWorld, path: str) -> None:
    async with make_world("x") as world:
        await two_policies(world)
        session = await world.open()
        listed = (await world.http.get(world.base(session) + path)).json()
        names = [
            card.get("id") or card["name"].removeprefix("models/")
            for card in listed.get("data") or listed["models"]
        ]
        assert names == ["policy", "helper"]
        for asked, known in (("helper", "helper"), ("anything", "policy")):
            card = (await world.http.get(f"{world.base(session)}{path}/{asked}")).json()
            assert (card.get("id") or card["name"].removeprefix("models/")) == known
