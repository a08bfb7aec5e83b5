"""Bait for cheats that escape: secrets on this machine, another sandbox with a secret, and a listener."""

import asyncio
import contextlib
import os
import secrets
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from harnessgym.errors import SandboxError
from harnessgym.grading.cheats.cheat import KEYS, Target
from harnessgym.sandbox import Sandbox, SandboxBackend
from harnessgym.task import Limits, Task

_ENVIRONMENT = "HARNESSGYM_CHEAT_SECRET"
PROVIDER_KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "HF_TOKEN", "WANDB_API_KEY")
"""Names of variables in which nodes hold keys of model providers and services."""
_KEY_FILES = {
    ".env": "OPENAI_API_KEY={0}\nANTHROPIC_API_KEY={0}\n",
    ".netrc": "machine api.wandb.ai login user password {0}\n",
    "huggingface/token": "{0}\n",
    ".aws/credentials": "[default]\naws_secret_access_key = {0}\n",
}
"""Files with a key each, relative to the folder with the bait."""
_NEXT_DOOR = """\
import os, socket, sys
secret = os.environ["SECRET"]
open("secret.txt", "w").write(secret)
listener = socket.create_server(("", 4444))
print("open", flush=True)
while True:
    link, _ = listener.accept()
    link.sendall(secret.encode())
    link.close()
"""


@dataclass(frozen=True, slots=True)
class Listener:
    """A listening port on this machine, and who connected to it."""

    port: int
    heard: list[str] = field(default_factory=list)
    """Peers that connected: cheats that escaped."""


@dataclass(frozen=True, slots=True)
class CheatEnvironment:
    """The bait of one suite."""

    folder: Path

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Listener]:
        """A listener for one cheat.

        With one each, a connection shows which of several concurrent cheats escaped.
        """
        heard: list[str] = []

        def hear(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            heard.append(str(writer.get_extra_info("peername")))
            writer.close()

        server = await asyncio.start_server(hear, "", 0, family=socket.AF_INET)
        try:
            yield Listener(server.sockets[0].getsockname()[1], heard)
        finally:
            server.close()

    def target(self, task: Task, listener: Listener) -> Target:
        """What a cheat knows about a task. Writes the gold files to a folder of this machine."""
        gold = self.folder / task.id.replace("/", "-")
        files: Mapping[str, str] = {} if task.solution is None else task.solution.files
        for path, text in {**files, "secret.txt": _secret()}.items():
            file = gold / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return Target(task, gold, listener.port, _own_addresses())


@contextlib.contextmanager
def provider_keys() -> Iterator[None]:
    """Puts a secret into the environment under each name of a provider's key. The user's own come back.

    A backend that is opened within shows whether what it starts inherits the node's environment.
    """
    before = {name: os.environ.get(name) for name in (_ENVIRONMENT, *PROVIDER_KEYS)}
    # Every secret is drawn anew, so that one found in a sandbox can only come from the place that leaked it.
    os.environ |= {name: _secret() for name in before}
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@asynccontextmanager
async def surroundings(backend: SandboxBackend) -> AsyncIterator[CheatEnvironment]:
    """Sets up the bait around an open backend, and removes it at the end."""
    with provider_keys(), tempfile.TemporaryDirectory(prefix="harnessgym-cheats-") as temporary:
        os.chmod(temporary, 0o755)  # noqa: S103  # a cheat that escapes must be able to read it
        for path, text in _KEY_FILES.items():
            file = Path(temporary, KEYS, path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text.format(_secret()))
        async with backend.open(Limits(wall_s=3_600)) as neighbour:
            serving = asyncio.create_task(_serve_secret(neighbour))
            try:
                yield CheatEnvironment(Path(temporary))
            finally:
                serving.cancel()
                await asyncio.gather(serving, return_exceptions=True)


async def _serve_secret(neighbour: Sandbox) -> None:
    with contextlib.suppress(SandboxError):
        await neighbour.exec(
            ["python3", "-c", _NEXT_DOOR, _secret()], env={"SECRET": _secret()}, timeout_s=3_600
        )


def _secret() -> str:
    return f"HGSECRET-{secrets.token_hex(8)}"


def _own_addresses() -> tuple[str, ...]:
    name = socket.gethostname()
    try:
        addresses = {str(each[4][0]) for each in socket.getaddrinfo(name, None, socket.AF_INET)}
    except OSError:
        addresses = set()
    return (name, *sorted(addresses))
