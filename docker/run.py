"""A run whose processes are containers: made ready before they start, and closed when its trainer has ended.

    python docker/run.py prepare CONFIG.toml FOLDER [--dotted.key value ...]
    python docker/run.py finish FOLDER

`prepare` writes what each process is told to `FOLDER/services/NAME.json`, where `harnessgym NAME --config` reads it. On one
machine `harnessgym train` does all of this, and watches its processes besides.
"""  # noqa: INP001

import secrets
import sys
from pathlib import Path

from harnessgym.config import load_config
from harnessgym.engine_timeouts import timeouts_of
from harnessgym.errors import ConfigError, HarnessGymError
from harnessgym.run_config.run import RunConfig
from harnessgym.run_folder import RunFolder, write_json
from harnessgym.run_identity import run_of
from harnessgym.store import TraceStore, policies, runs
from harnessgym.supervisor import prepare as lay_out
from harnessgym.supervisor import start_run
from harnessgym.traces.token_accounting import exclude_rest

PROXY, CONTROL, ENGINE = 8100, 8101, 8200
"""Ports, of containers that are named after what they run."""


def prepare(config: Path, root: Path, overrides: list[str]) -> None:
    """Makes the folder, the run in its database and the settings; does nothing to a run that is there already."""
    evaluating = ["--evaluation.tasks", "0"]  # phases are what a supervisor is for
    asked = load_config(RunConfig, config, [*evaluating, *overrides])
    if asked.policies:
        raise ConfigError(
            f"{config}: there is one engine and one trainer among these containers, for one policy. Leave [[policies]] out, or "
            "run several with `harnessgym train` or `harnessgym cluster`."
        )
    folder = lay_out(asked, root)
    told = folder.config()
    start = start_run(folder, asked, print)
    print(start)  # noqa: T201 what a container says
    run_id = start.run_id
    with TraceStore.open(folder.store_url(), synchronous=told.store.synchronous) as store:
        policy_id = store.write(lambda conn: policies.register(conn, run_id, told.policy.name))
    if not (folder.root / "services").exists():
        for name, settings in services(folder, told, run_id, policy_id).items():
            write_json(folder.root / "services" / f"{name}.json", settings, mode=0o600)


def services(folder: RunFolder, told: RunConfig, run_id: str, policy_id: str) -> dict[str, object]:
    """What each process is told."""
    url, key, control = folder.store_url(), secrets.token_urlsafe(24), f"http://proxy:{CONTROL}"
    common = {"served_model_name": told.policy.name, "max_length": told.engine.max_length}
    agent = {
        "store": url,
        "policy_id": policy_id,
        "run_id": run_id,
        "address": f"http://engine:{ENGINE}",
        "control_url": control,
        "control_key": key,
        "drain_s": told.engine.drain_s,
    }
    return {
        "proxy": common
        | {"store": url, "run_id": run_id, "policy": told.policy.path, "control_key": key}
        | timeouts_of(told.engine)
        | {"host": "0.0.0.0", "port": PROXY, "control_host": "0.0.0.0", "control_port": CONTROL},  # noqa: S104
        "engine": common
        | {"model": told.policy.path, "host": "0.0.0.0", "port": ENGINE, "seed": told.seed, "agent": agent},  # noqa: S104
        "node": {
            "run": str(folder.root),
            "run_id": run_id,
            "control_url": control,
            "control_key": key,
            "proxy_url": f"http://proxy:{PROXY}",
            "sandbox": told.sandbox.backend,
        },
        "train-worker": {"run": str(folder.root)},
    }


def finish(root: Path) -> None:
    """Closes the run's account and says that it is done: the node, which waits for that, ends."""
    folder = RunFolder(root)
    with TraceStore.open(folder.store_url()) as store:
        found = store.read(lambda conn: run_of(conn, folder))
        if found is not None:
            store.write(lambda conn: exclude_rest(conn, found.id))
            store.write(lambda conn: runs.set_status(conn, found.id, "done"))


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    if what == "prepare":
        try:
            prepare(Path(rest[0]), Path(rest[1]), rest[2:])
        except HarnessGymError as error:
            sys.exit(f"harnessgym: {error}")
    elif what == "finish":
        finish(Path(rest[0]))
    else:
        sys.exit(__doc__)
