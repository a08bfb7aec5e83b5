"""The embedded inference engine: continuous batching in torch behind the part of vLLM's HTTP protocol that
HarnessGym uses.
"""

from trainers.engine.settings import EngineSettings

__all__ = ["EngineSettings"]
