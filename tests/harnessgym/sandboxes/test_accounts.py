"""A name for the harness's user, in images that were made by others."""

import asyncio
import io
import tarfile

import pytest

from harnessgym.sandbox import Equipment
from harnessgym.sandboxes.docker import Docker, DockerSettings
from harnessgym.sandboxes.engine import connect
from harnessgym.task import Limits

pytestmark = [pytest.mark.anyio, pytest.mark.docker]
USERS = b"caf\xe9:x:0:0:caf\xe9:/:/bin/sh\nodd:x:\xc2\xb2:0::/:\nlarge:x:" + b"9" * 5000 + b":0::/:\nshort:x"


@pytest.fixture
def image(tmp_path):
    """An image that holds nothing but a strange list of users; two names stand for it."""
    client, name = connect(), f"harnessgym-test-{tmp_path.parent.name}-accounts"
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        info = tarfile.TarInfo("etc/passwd")
        info.size = len(USERS)
        archive.addfile(info, io.BytesIO(USERS))
    client.import_image_from_data(data.getvalue(), repository=name, tag="one")
    client.tag(f"{name}:one", name, "two")
    yield name
    for tag in ("one", "two"):
        client.remove_image(f"{name}:{tag}", force=True)
    client.close()


async def test_a_list_of_users_may_hold_anything(tmp_path, image):
    async with Docker(DockerSettings(workspace_root=tmp_path / "w", spares=0)) as docker:
        plans = await asyncio.gather(
            *(docker.plan(Limits(), Equipment(image=f"{image}:{tag}")) for tag in ("one", "two"))
        )
        assert plans[0] == plans[1]
        (users, _), _ = plans[0].image.accounts
        assert users.read_bytes().startswith(USERS + b"\nagent:x:")
        async with docker.open(Limits(), Equipment(image=f"{image}:one")) as sandbox:
            assert (await sandbox.exec(["true"])).exit_code == 127  # nothing is in there
