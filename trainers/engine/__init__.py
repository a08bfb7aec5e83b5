"""The embedded inference engine: continuous batching in torch behind the part of vLLM's HTTP protocol that
HarnessGym uses.
"""

from trainers.engine.settings import EngineSettings

__all__ = ["EngineSettings", "serve"]


def serve(settings: EngineSettings) -> None:
    """Serve a model folder until SIGINT or SIGTERM; see `trainers.engine.server`."""
    from trainers.engine import server

    server.serve(settings)
