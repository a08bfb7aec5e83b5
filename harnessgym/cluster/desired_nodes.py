"""The desired number of nodes: a number in the run's folder that people may change during the run."""

import json

from harnessgym.errors import ConfigError
from harnessgym.run_folder import RunFolder, write_json


def wished(folder: RunFolder) -> int:
    """The desired number of nodes: the last one set, else the configured one."""
    try:
        return int(json.loads((folder.root / "nodes.json").read_text()))
    except (FileNotFoundError, ValueError):
        return folder.config().cluster.nodes


def wish(folder: RunFolder, nodes: int) -> None:
    """Sets the desired number of nodes. Raises `ConfigError` if it is below 1."""
    if nodes < 1:
        raise ConfigError(
            "A run needs a node: at least one must stay. To end the run, interrupt its supervisor."
        )
    write_json(folder.root / "nodes.json", nodes)
