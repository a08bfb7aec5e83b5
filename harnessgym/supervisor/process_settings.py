"""The settings of a run's processes, wherever they run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harnessgym.engine_timeouts import timeouts_of
from harnessgym.run_config.run import PolicySection, RunConfig
from harnessgym.run_folder import RunFolder

Settings = dict[str, object]
_TRAINER = "trainer-"


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """The settings of each process of one run. Whoever starts a process adds where it listens."""

    folder: RunFolder
    config: RunConfig
    run_id: str
    policy_id: str
    control_key: str
    sandbox: str
    """Sandbox backend that nodes use."""
    training: bool
    """Whether any training is left."""
    policy_ids: Mapping[str, str] = field(default_factory=dict)
    """Policy ids by name, if there are several."""

    @property
    def engines(self) -> list[str]:
        """Names of the engine processes."""
        return [f"engine-{index}" for index in range(len(self.config.engine_policies))]

    @property
    def trainers(self) -> list[str]:
        """Names of the trainer processes, one per policy."""
        return ["trainer", *(f"{_TRAINER}{policy.name}" for policy in self.config.policies)]

    @property
    def outside(self) -> list[str]:
        """Names of the outside engines, which are also those of their weight agents."""
        return outside_names(self.config)

    def proxy(self) -> Settings:
        """Settings of the proxy."""
        several = [
            {
                "id": self.policy_ids[each.name],
                "name": each.name,
                "path": each.path,
                "parser": each.parser,
            }
            for each in self._several
        ]
        served = {"policies": several} if several else {}
        return (
            served
            | {
                "store": self.folder.store_url(),
                "run_id": self.run_id,
                "policy": self.config.policy.path,
                "parser": self.config.policy.parser,
                "synchronous": self.config.store.synchronous,
                "control_key": self.control_key,
                "served_model_name": self.config.policy.name,
                "max_length": self.config.engine.max_length,
            }
            | timeouts_of(self.config.engine)
        )

    def engine(self, name: str, address: str, control_url: str) -> Settings:
        """Settings of the engine that the proxy reaches at `address`."""
        index = self.engines.index(name)
        policy = next(
            each for each in self.config.all_policies if each.name == self.config.engine_policies[index]
        )
        return {
            "model": policy.path,
            "served_model_name": policy.name,
            "worker_id": name,
            "device": self.config.engine.device,
            "max_batch": self.config.engine.max_batch,
            "max_length": self.config.engine.max_length,
            "threads": self.config.supervisor.threads,
            # Engines with one seed would sample the same noise.
            "seed": self.config.seed + index,
            "agent": self._agent(policy.name, control_url) | {"address": address},
        }

    def weights_agent(self, name: str, control_url: str) -> Settings:
        """Settings of the weight agent of an outside engine."""
        engine = self.config.engine.outside[self.outside.index(name)]
        outside = {
            "engine": engine.kind,
            "engine_url": engine.url,
            "worker_id": name,
            "scratch": str(self.folder.staged),
        }
        return self._agent(engine.policy or self.config.policy.name, control_url) | outside

    def node(self, name: str, control_url: str, proxy_url: str, socket_dir: Path | None = None) -> Settings:
        """Settings of a node. Without `socket_dir` it relays its own socket to `proxy_url`."""
        return {
            "run": str(self.folder.root),
            "run_id": self.run_id,
            "name": name,
            "control_url": control_url,
            "control_key": self.control_key,
            "proxy_socket_dir": None if socket_dir is None else str(socket_dir),
            "proxy_url": proxy_url,
            "sandbox": self.sandbox,
        }

    def trainer(self, name: str = "trainer") -> Settings:
        """Settings of a trainer."""
        settings: Settings = {"run": str(self.folder.root)}
        if name.startswith(_TRAINER):
            settings["policy"] = name.removeprefix(_TRAINER)
        return settings

    def _agent(self, policy: str, control_url: str) -> Settings:
        """Settings that all weight agents of a policy share."""
        return {
            "store": self.folder.store_url(),
            "policy_id": self.policy_ids.get(policy, self.policy_id),
            "run_id": self.run_id,
            "control_url": control_url,
            "control_key": self.control_key,
            "update_leases": self.config.engine.updates_at_once,
            "drain_s": self.config.engine.drain_s,
        }

    @property
    def _several(self) -> tuple[PolicySection, ...]:
        return self.config.all_policies if self.config.policies else ()


def outside_names(config: RunConfig) -> list[str]:
    """Names of a run's outside engines in the order of its settings."""
    return [engine.name for engine in config.engine.outside]
