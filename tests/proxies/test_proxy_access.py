"""Who may reach what: keys, seals, sockets, and the control routes apart from the harness routes."""

import asyncio
import json
import ssl
import stat
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from harnessgym.errors import ProxyError
from harnessgym.proxy_client import ControlClient, trust_for
from proxies.upstreams.scripted import ScriptedUpstream
from tests.proxies.conftest import KEY, MakeWorld, World

pytestmark = pytest.mark.anyio
HI = [{"role": "user", "content": "hi"}]


async def post(world: World, path: str, headers: dict[str, str], **fields: object) -> httpx.Response:
    return await world.http.post(
        f"{world.proxy.url}{path}", json={"model": "m", "messages": HI, **fields}, headers=headers
    )


async def test_the_key_may_be_a_bearer_an_api_key_header_or_a_path_prefix(make_world: MakeWorld) -> None:
    async with make_world("one<|im_end|>") as world:
        key = (await world.open()).key
        chat, messages = "/v1/chat/completions", "/v1/messages"
        assert (await post(world, chat, {"authorization": f"Bearer {key}"})).status_code == 200
        assert (await post(world, messages, {"x-api-key": key}, max_tokens=9)).status_code == 200
        assert (await post(world, f"/s/{key}{chat}", {})).status_code == 200
        assert (
            await post(world, f"/s/{key}{messages}", {"x-api-key": "whatever"}, max_tokens=9)
        ).status_code == 200


async def test_an_unknown_key_is_refused_in_the_protocols_shape(make_world: MakeWorld) -> None:
    async with make_world("one<|im_end|>") as world:
        chat = await post(world, "/v1/chat/completions", {"authorization": "Bearer nobody"})
        assert (chat.status_code, chat.json()["error"]["code"]) == (401, "invalid_api_key")
        assert (await post(world, "/v1/chat/completions", {})).status_code == 401
        messages = await post(world, "/s/nobody/v1/messages", {}, max_tokens=9)
        assert (messages.status_code, messages.json()["error"]["type"]) == (401, "authentication_error")
        assert (await world.http.get(f"{world.proxy.url}/v1/models")).status_code == 401


async def test_a_sealed_session_is_refused_also_after_a_restart(make_world: MakeWorld) -> None:
    async with make_world("one<|im_end|>") as world:
        session = await world.open()
        await world.chat(session.key, HI)
        sealed = await world.control.seal(session.session_id)
        assert (sealed.calls, sealed.tokens) == (1, len(world.text("one<|im_end|>")))
        assert await world.control.seal(session.session_id) == sealed
        for _ in range(2):
            refused = await world.chat(session.key, HI)
            assert (refused.status_code, refused.headers["x-should-retry"]) == (403, "false")
            await world.stop()
            await world.start()


async def test_sealing_waits_for_calls_in_flight_and_then_ends_them(make_world: MakeWorld) -> None:
    async with make_world(upstreams={}) as world:
        world.upstreams["w0"] = ScriptedUpstream([world.text("one two<|im_end|>")], chunk=1)
        await world.stop()
        await world.start()
        session = await world.open()
        upstream = world.upstreams["w0"]
        assert isinstance(upstream, ScriptedUpstream)
        upstream.gate.clear()
        asking = asyncio.create_task(world.chat(session.key, HI))
        await asyncio.sleep(0.2)
        sealed = await world.control.seal(session.session_id, grace_s=0.1)
        assert (sealed.calls, sealed.tokens) == (1, 0)
        assert (await asking).status_code >= 400
        assert world.calls(session)[0].status == "aborted"


async def test_models_are_listed_for_whoever_has_a_key(make_world: MakeWorld) -> None:
    async with make_world("one<|im_end|>", served_model_name="tiny") as world:
        key = (await world.open()).key
        listed = await world.http.get(f"{world.proxy.url}/s/{key}/v1/models")
        assert [card["id"] for card in listed.json()["data"]] == ["tiny"]
        assert (
            await world.http.get(f"{world.proxy.url}/v1/models", headers={"x-api-key": key})
        ).status_code == 200
        assert (await world.http.get(f"{world.proxy.url}/s/{key}/v1/nothing")).status_code == 404


async def test_control_routes_are_not_on_the_harness_listener_and_need_their_key(
    make_world: MakeWorld,
) -> None:
    async with make_world("one<|im_end|>") as world:
        key = (await world.open()).key
        for prefix in ("", f"/s/{key}"):
            for path, method in (("/control/stats", "GET"), ("/control/sessions", "POST")):
                headers = {"authorization": f"Bearer {KEY}", "x-api-key": key}
                response = await world.http.request(
                    method, f"{world.proxy.url}{prefix}{path}", headers=headers, content=b"{}"
                )
                assert response.status_code in (401, 404)
        url = f"{world.proxy.control_address}/control/stats"
        assert (await world.http.get(url)).status_code == 401
        assert (await world.http.get(url, headers={"authorization": f"Bearer {key}"})).status_code == 401
        assert (await world.http.get(f"{world.proxy.control_address}/v1/models")).status_code == 404
        with pytest.raises(ProxyError, match="401"):
            async with ControlClient(world.proxy.control_address, "wrong") as stranger:
                await stranger.stats()


async def test_control_refuses_what_it_does_not_know(make_world: MakeWorld) -> None:
    async with make_world("one<|im_end|>") as world:
        with pytest.raises(ProxyError, match="temprature"):
            await world.open(sampling={"temprature": 1})
        with pytest.raises(ProxyError, match="409"):
            await world.control.open_session("no such rollout")
        with pytest.raises(ProxyError, match="404"):
            await world.control.seal("nothing")
        with pytest.raises(ProxyError, match="404"):
            await world.control.undrain("nobody", version=1)
        assert await world.control.drain("nobody") == 0


async def test_harnesses_and_control_over_unix_sockets(make_world: MakeWorld) -> None:
    with tempfile.TemporaryDirectory(prefix="hg-") as folder:
        uds, control = Path(folder) / "proxy" / "proxy.sock", Path(folder) / "control" / "control.sock"
        async with make_world("one<|im_end|>", uds=uds, control_uds=control, control_port=None) as world:
            assert stat.S_IMODE(uds.stat().st_mode) == 0o666
            assert stat.S_IMODE(control.stat().st_mode) == 0o600
            session = await world.open()
            async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=str(uds))) as sandboxed:
                url = f"http://proxy/s/{session.key}/v1/chat/completions"
                assert (await sandboxed.post(url, json={"model": "m", "messages": HI})).status_code == 200
                assert (await sandboxed.get("http://proxy/control/stats")).status_code in (401, 404)
            await world.stop()
            await world.start()
            assert (await world.control.stats())["calls"] == 0


async def test_the_control_client_waits_for_a_proxy_that_restarts(make_world: MakeWorld) -> None:
    folder = tempfile.TemporaryDirectory(prefix="hg-")
    options = {"control_uds": Path(folder.name) / "control.sock", "control_port": None}
    with folder:
        async with (
            make_world("one<|im_end|>", **options) as world,
            ControlClient(world.proxy.control_address, KEY) as patient,
        ):
            await world.stop()
            opening = asyncio.create_task(patient.open_session(world.rollout_id))
            await asyncio.sleep(0.3)
            await world.start()
            assert (await opening).key


async def test_a_body_that_is_too_large_is_refused(make_world: MakeWorld) -> None:
    async with make_world("Yes.<|im_end|>", max_body=2_000) as world:
        session = await world.open()
        body = json.dumps(
            {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "x" * 3_000}]}
        ).encode()
        for path, kind in (("chat/completions", "invalid_request_error"), ("messages", "request_too_large")):
            url = f"{world.proxy.url}/s/{session.key}/v1/{path}"
            for content in (body, _pieces(body)):
                refused = await world.http.post(url, content=content)
                assert refused.status_code == 413
                assert refused.json()["error"]["type"] == kind
        assert world.calls(session) == []


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), 500):
        yield body[start : start + 500]


@pytest.mark.parametrize(
    ("path", "headers", "name"),
    [
        ("/v1/models", {}, "data"),
        ("/v1beta/models", {}, "models"),
        ("/v1/models", {"x-goog-api-key": "unused"}, "models"),
    ],
)
async def test_models_are_listed_in_the_shape_of_the_client(
    make_world: MakeWorld, path: str, headers: dict[str, str], name: str
) -> None:
    async with make_world() as world:
        session = await world.open()
        base = f"{world.proxy.url}/s/{session.key}"
        listed = (await world.http.get(base + path, headers=headers)).json()
        (card,) = listed[name]
        assert card.get("id", card.get("name")) in ("policy", "models/policy")
        assert (await world.http.get(f"{base}{path}/gemini-2.5-pro", headers=headers)).json() == card


async def test_a_key_in_the_query_opens_a_session(make_world: MakeWorld) -> None:
    async with make_world("Yes.<|im_end|>") as world:
        session = await world.open()
        url = f"{world.proxy.url}/v1beta/models/m:generateContent?key={session.key}"
        answered = await world.http.post(
            url, json={"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}
        )
        assert answered.status_code == 200


def test_only_a_client_of_an_address_with_tls_loads_certificates() -> None:
    assert trust_for("https://proxy:8101") is trust_for("HTTPS://proxy:8101") is True
    for url in ("http://proxy:8101", "unix:/run/https:.sock"):
        context = trust_for(url)
        assert isinstance(context, ssl.SSLContext)
        # Redirected to https, it refuses whoever answers.
        assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
        assert context.get_ca_certs() == []
