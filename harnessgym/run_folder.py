"""The folder of one run: where everything is, and how processes of the run find each other."""

import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harnessgym.config import validate
from harnessgym.errors import ConfigError
from harnessgym.run_config.run import RunConfig


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Paths of a run. Nothing is created before it is needed."""

    root: Path
    policy: str = ""
    """Name of the policy whose versions, checkpoints and metrics these are; empty for the first."""

    @property
    def of_policy(self) -> Path:
        """Folder of one policy; the run's own folder for the first."""
        return self.policies / self.policy if self.policy else self.root

    @property
    def policies(self) -> Path:
        """Folder with one subfolder per further policy."""
        return self.root / "policies"

    @property
    def config_path(self) -> Path:
        """The validated configuration as JSON."""
        return self.root / "config.json"

    @property
    def identity_path(self) -> Path:
        """The identity of the folder's run; see `harnessgym.run_identity`."""
        return self.root / "run.json"

    @property
    def versions(self) -> Path:
        """Policy versions."""
        return self.of_policy / "versions"

    @property
    def staged(self) -> Path:
        """Full copies of versions for outside engines to load."""
        return self.root / "staged"

    @property
    def checkpoints(self) -> Path:
        """Trainer checkpoints."""
        return self.of_policy / "checkpoints"

    @property
    def logs(self) -> Path:
        """One log per process."""
        return self.root / "logs"

    @property
    def processes_path(self) -> Path:
        """Processes that the supervisor started: name to pid and start time."""
        return self.root / "processes.json"

    @property
    def silent_path(self) -> Path:
        """Silent processes: name to the Unix time since when."""
        return self.root / "silent.json"

    @property
    def metrics_path(self) -> Path:
        """One JSON line per training step."""
        return self.of_policy / "metrics.jsonl"

    @property
    def observed_path(self) -> Path:
        """One JSON line per training step with the dashboard's numbers at that time."""
        return self.root / "observed.jsonl"

    @property
    def sinks_path(self) -> Path:
        """Status of the metrics sinks."""
        return self.root / "sinks.json"

    @property
    def summary_path(self) -> Path:
        """The result of a finished run."""
        return self.root / "summary.json"

    @property
    def workspaces(self) -> Path:
        """Workspaces of running sandboxes."""
        return self.root / "workspaces"

    def config(self) -> RunConfig:
        """The run's configuration. Raises `ConfigError` for a folder that is no run's or another user's."""
        try:
            return validate(RunConfig, json.loads(self.config_path.read_text()), str(self.config_path))
        except FileNotFoundError:
            raise ConfigError(
                f"{self.root} is no run folder: it has no config.json. `harnessgym train` makes one."
            ) from None
        except PermissionError:
            raise ConfigError(
                f"{self.config_path} is for the user alone who started the run: it may hold keys."
            ) from None

    def store_url(self, config: RunConfig | None = None) -> str:
        """URL of the run's database by its configuration; `config` replaces the one in the folder."""
        from harnessgym.store.backend import url_of_file

        return (config or self.config()).store.url or url_of_file(self.root / "traces.db")


def write_json(path: Path, value: Any, mode: int = 0o644) -> None:
    """Replace a JSON file atomically: a reader sees the old or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Same folder, because a rename is atomic only within one file system. Synced before the rename, or a
    # power loss could leave an empty file under the final name.
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(value, file, indent=2)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(mode)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
