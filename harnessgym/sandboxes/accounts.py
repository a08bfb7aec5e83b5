"""Gives the harness's user a name in an image that has none.

Programs that look up their own user fail without one.
"""

import contextlib
import io
import re
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from harnessgym.sandboxes.engine import sdk

USERS = "/etc/passwd"
GROUP = "/etc/group"
_MOST = 1 << 20
_NUMBER = re.compile("[0-9]{1,10}")


def accounts(
    client: Any, image: str, folder: Path, user: int, home: str, labels: Mapping[str, str]
) -> tuple[tuple[Path, str], ...]:
    """Writes the files that name user and group `user` `agent` to `folder`; returns them with their targets.

    Writes only the files that the image needs, and none if the image already knows the user. Blocks; raises
    what the engine's client raises.
    """
    made = _made(client, image, f"harnessgym-accounts-{folder.parent.parent.name}-{folder.name}", labels)
    try:
        texts = {path: _read(client, made, path) for path in (USERS, GROUP)}
    finally:
        client.remove_container(made, v=True, force=True)
    # An image without users gets root too: some programs fail if user 0 has no name.
    lines = {USERS: f"agent:x:{user}:{user}:agent:{home}:/bin/sh\n", GROUP: f"agent:x:{user}:\n"}
    if not texts[USERS]:
        lines[USERS] = "root:x:0:0:root:/root:/bin/sh\n" + lines[USERS]
    needed = [path for path in lines if user not in _numbers(texts[path])]
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    found = []
    for path in needed:
        target = folder / Path(path).name
        text = texts[path] + ("" if texts[path].endswith("\n") or not texts[path] else "\n") + lines[path]
        target.write_bytes(text.encode(errors="surrogateescape"))
        target.chmod(0o644)
        found.append((target, path))
    return tuple(found)


def _made(client: Any, image: str, name: str, labels: Mapping[str, str]) -> str:
    """Creates a container to read files from; removes one that an earlier, interrupted call left."""
    with contextlib.suppress(sdk().errors.NotFound):
        client.remove_container(name, v=True, force=True)
    return str(client.create_container(image=image, name=name, entrypoint=["/"], labels=dict(labels))["Id"])


def _numbers(text: str) -> set[int]:
    fields: Iterable[list[str]] = (line.split(":") for line in text.splitlines())
    return {int(each[2]) for each in fields if len(each) > 2 and _NUMBER.fullmatch(each[2])}


def _read(client: Any, made: str, path: str) -> str:
    """Reads a file of a container that never ran; empty unless it is a regular file below 1 MiB."""
    try:
        pieces, _ = client.get_archive(made, path)
    except sdk().errors.NotFound:
        return ""
    data = b"".join(pieces)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        member = archive.next()
        file = (
            archive.extractfile(member)
            if member is not None and member.isreg() and member.size < _MOST
            else None
        )
        return file.read().decode(errors="surrogateescape") if file is not None else ""
