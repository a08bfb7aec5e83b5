"""A proxy that serves two policies."""

from pathlib import Path

from harnessgym.store import policies
from harnessgym.store.policies import PolicyVersion
from harnessgym.store.workers import WorkerRow
from proxies.app import PolicySettings
from proxies.language import PolicyLanguage
from proxies.upstreams.scripted import ScriptedUpstream
from tests.proxies.conftest import POLICY, World

END = "<|im_end|>"
MARKING = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.role != 'assistant' %}said: {% endif %}{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""A chat template that marks whatever the policy did not say."""


async def two_policies(
    world: World, *, helper_version: int = 0, helper_folder: Path = POLICY, **options: object
) -> dict[str, str]:
    """Start the world's proxy anew with the policies `policy` and `helper`, one worker each; their ids."""
    await world.stop()
    run_id = world.settings.run_id
    ids = {
        name: world.store.write(lambda conn, name=name: policies.register(conn, run_id, name))
        for name in ("policy", "helper")
    }
    for version in range(8):
        row = PolicyVersion(version, None, "full", "", version, "", 0, committed=True, orphaned=False)
        for policy_id in ids.values():
            world.store.write(
                lambda conn, policy_id=policy_id, row=row: policies.publish(conn, policy_id, row)
            )
    several = tuple(
        PolicySettings(id=policy_id, name=name, path=helper_folder if name == "helper" else POLICY)
        for name, policy_id in ids.items()
    )
    world.settings = world.settings.model_copy(update={"policies": several, **options})
    world.upstreams = {}
    await world.start()
    for name, version in (("policy", 0), ("helper", helper_version)):
        tokenizer = PolicyLanguage.of_policy(helper_folder if name == "helper" else POLICY).renderer.tokenizer
        said = [
            list(tokenizer.encode(f"{name} {number}{END}", add_special_tokens=False).ids)
            for number in range(9)
        ]
        upstream = ScriptedUpstream(said, version=version)
        world.upstreams[f"w-{name}"] = upstream
        await world.proxy.workers.put(
            WorkerRow(f"w-{name}", run_id, "scripted", f"w-{name}", version, "ready", ids[name])
        )
    return ids


async def ask(world: World, key: str, model: str, messages: list[dict[str, object]]) -> dict[str, object]:
    reply = await world.chat(key, messages, model=model)
    assert reply.status_code == 200, reply.text
    message: dict[str, object] = reply.json()["choices"][0]["message"]
    return message
