"""How many nodes a run is to have: a number in the run's folder, which people change while the run goes
on.
"""

import json

from harnessgym.errors import ConfigError
from harnessgym.run_folder import RunFolder, write_json


def wished(folder: RunFolder) -> int:
    """The wanted number of nodes: the last that was wished for, else the configured one."""
    try:
        return int(json.loads((folder.root / "nodes.json").read_text()))
    except (FileNotFoundError, ValueError):
        return folder.config().cluster.nodes


def wish(folder: RunFolder, nodes: int) -> None:
    """Want another number of nodes. Raises `ConfigError` for none at all."""
    if nodes < 1:
        raise ConfigError(
            "A run needs a node: at least one must stay. To end the run, interrupt its supervisor."
        )
    write_json(folder.root / "nodes.json", nodes)
