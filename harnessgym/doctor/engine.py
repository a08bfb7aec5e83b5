"""Checks of the Docker engine and its images."""

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from harnessgym.doctor.finding import DoctorFinding, found
from harnessgym.errors import HarnessGymError
from harnessgym.sandboxes.engine import address, connect, unavailable
from harnessgym.sandboxes.images.recipes import names, recipe_image

_START = "apt-get install docker.io, start dockerd as root, or: export DOCKER_HOST=..."
_NETWORKS = 30
"""About as many networks as an engine's default address pools allow."""
_DISK = 5 << 30
_LAYERED = ("overlay2", "overlayfs", "btrfs", "zfs", "fuse-overlayfs")
_LIMITS = {"memory": "MemoryLimit", "processes": "PidsLimit", "processors": "CpuCfsQuota"}


def engine() -> Iterator[DoctorFinding]:
    """Checks the engine at `DOCKER_HOST`, or at the usual socket."""
    # An engine that sandboxes cannot use may still answer; its findings help to see why.
    problem = unavailable()
    try:
        client = connect()
    except HarnessGymError as error:
        yield found("docker", "engine", str(error), "", _START)
        return
    try:
        info = client.info()
        detail = f"{info['ServerVersion']} (API {client.version()['ApiVersion']}) at {address()}"
        yield found(
            "docker",
            "engine",
            problem,
            detail,
            "Start it with other options, or name another: DOCKER_HOST=...",
        )
        yield from _abilities(info)
        yield _networks(len(client.networks()))
        yield from _disk(info)
        yield from _images({tag for image in client.images() for tag in image["RepoTags"] or ()})
    finally:
        client.close()


def _abilities(info: Mapping[str, Any]) -> Iterator[DoctorFinding]:
    driver = info["Driver"]
    problem = None if driver in _LAYERED else f"{driver}: every container copies its image"
    yield found(
        "docker",
        "storage driver",
        problem,
        driver,
        "Put dockerd's data on a disk that takes overlay2 (ext4, xfs).",
    )
    yield found(
        "docker",
        "cgroups",
        None,
        f"version {info.get('CgroupVersion', '1')}, driver {info.get('CgroupDriver')}",
    )
    for name, key in _LIMITS.items():
        problem = None if info.get(key) else "cannot be set"
        yield found(
            "docker",
            f"limit of {name}",
            problem,
            "holds",
            "Enable this cgroup controller in the kernel's command line.",
        )
    iptables = shutil.which("iptables", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    problem = None if iptables else "not installed: set-up phases cannot be held to a list of hosts"
    yield found("docker", "iptables", problem, iptables or "", "apt-get install iptables")


def _networks(count: int) -> DoctorFinding:
    detail = f"{count} of about {_NETWORKS} that the address pools hold"
    problem = None if count < _NETWORKS - 6 else detail
    return found(
        "docker",
        "networks",
        problem,
        detail,
        "docker network prune, or larger default-address-pools for dockerd.",
    )


def _disk(info: Mapping[str, Any]) -> Iterator[DoctorFinding]:
    folder = Path(info.get("DockerRootDir") or os.devnull)
    if folder.is_dir():
        free = shutil.disk_usage(folder).free
        detail = f"{free / 2**30:.1f} GiB free on the disk of {folder}"
        yield found(
            "docker",
            "disk",
            None if free >= _DISK else detail,
            detail,
            "harnessgym images gc, docker system prune",
        )


def _images(there: set[str]) -> Iterator[DoctorFinding]:
    for name in names():
        image = recipe_image(name)
        problem = None if f"{image}:latest" in there else "not built; it is when it is first wanted"
        yield found("images", image, problem, "built", f"harnessgym images build {name}")
