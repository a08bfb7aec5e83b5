"""The weight agent of an external engine: vLLM or SGLang.

harnessgym weights-agent --engine vllm --engine_url http://127.0.0.1:8000 ...
"""

import asyncio
import logging
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from harnessgym import heartbeat
from harnessgym.errors import PolicyError
from trainers.weights.agent import Installer, WeightAgent
from trainers.weights.installers.api import QUICK_S, EngineApi
from trainers.weights.installers.sglang import SglangInstaller
from trainers.weights.installers.vllm import VllmInstaller
from trainers.weights.settings import AgentSettings

log = logging.getLogger(__name__)

_ALIVE = {"vllm": "/health", "sglang": "/model_info"}
"""Paths that engines answer while they load weights. SGLang's `/health` waits for a token."""
_INSTALLERS: dict[str, Callable[[EngineApi, str, Path], Installer]] = {
    "vllm": VllmInstaller,
    "sglang": SglangInstaller,
}


class OutsideSettings(AgentSettings):
    """Settings of `harnessgym weights-agent`."""

    engine: Literal["vllm", "sglang"]
    """Kind of engine."""
    engine_url: str
    """URL of the engine's HTTP API: http://host:port."""
    worker_id: str
    """Name of the engine in the workers table and at the proxy."""
    # In memory, and removed when the next version is served.
    scratch: Path = Path("/dev/shm/harnessgym")  # noqa: S108
    """Folder for full copies of versions that were published as deltas. The engine must see it under the same
    path."""
    install_s: float = 600.0
    """Longest time that the engine may take to load weights."""
    answer_s: float = QUICK_S
    """Longest time that it may take to report its version. After that it counts as silent and gets no
    calls."""


async def follow(settings: OutsideSettings) -> None:
    """Keep the engine on the newest version until SIGINT or SIGTERM. Raises `PolicyError` for a version that
    it cannot serve.
    """
    loop = asyncio.get_running_loop()
    heartbeat.follow(loop)
    async with EngineApi(
        settings.engine_url.rstrip("/"),
        timeout_s=settings.install_s,
        quick_s=settings.answer_s,
        alive=_ALIVE[settings.engine],
    ) as api:
        engine = _INSTALLERS[settings.engine](api, settings.policy_id, settings.scratch / settings.worker_id)
        following = asyncio.create_task(
            WeightAgent(settings, settings.worker_id, settings.engine_url, engine).run()
        )
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, following.cancel)
        log.info(
            "%s follows policy %s: %s at %s.",
            settings.worker_id,
            settings.policy_id,
            settings.engine,
            settings.engine_url,
        )
        try:
            await following
        except asyncio.CancelledError:
            log.info("%s ends; its engine continues to serve its version.", settings.worker_id)
        except PolicyError as error:
            # The message says it all.
            log.error("The weight agent of %s ended: %s", settings.worker_id, error)  # noqa: TRY400
            raise


def serve(settings: OutsideSettings) -> None:
    """See `follow`."""
    asyncio.run(follow(settings))
