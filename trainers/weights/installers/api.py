"""What installers of outside engines share: HTTP requests, and the files and labels of the version to load.

An engine reports what it serves as its "weight version", here the label `VERSION@POLICY`. The policy's id is
part of it, because version 3 of another run is not version 3 of this one. The files are the version's own, or
a copy in a scratch folder.
"""

import asyncio
import hashlib
import math
import shutil
from pathlib import Path
from typing import Any

import httpx
import torch
from safetensors.torch import save_file
from torch import Tensor

from harnessgym.errors import UpstreamError, UpstreamLost, UpstreamSilent
from harnessgym.proxy_client import Closing, trust_for
from harnessgym.store.policies import PolicyVersion

QUICK_S = 15.0
"""Default time limit of requests that load no weights."""
_CONNECT_S = 5.0


class EngineApi(Closing):
    """Speaks JSON to the engine at `http://host:port`.

    ```python
    async with EngineApi("http://127.0.0.1:8000", timeout_s=600) as api:
        await api.ask("POST", "/pause", params={"mode": "abort"})
    ```
    """

    def __init__(
        self, address: str, *, timeout_s: float, quick_s: float = QUICK_S, alive: str = "/health"
    ) -> None:
        """`alive` is a path that the engine answers at once, also while it loads weights."""
        self.address = address
        self.quick_s = quick_s
        self._timeout_s = timeout_s
        self._alive = alive
        self._http = httpx.AsyncClient(base_url=address, trust_env=False, verify=trust_for(address))

    async def ask(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        params: dict[str, str] | None = None,
        hint: str = "",
        refusal: int = httpx.codes.OK,
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        """The response's JSON object; {} for a response that is not one.

        `hint` says how to start an engine with this route; `refusal` is a further status whose JSON is
        returned; `timeout_s` is for this request only.

        Raises `UpstreamLost` if the engine does not answer or is shutting down, `UpstreamSilent` if it
        accepts the request and does not answer, `UpstreamError` if it refuses.
        """
        limit_s = min(timeout_s or math.inf, self._timeout_s)
        timeout = httpx.Timeout(limit_s, connect=_CONNECT_S)
        request = self._http.build_request(method, path, json=body, params=params, timeout=timeout)
        try:
            response = await (self._http.send(request) if limit_s <= self.quick_s else self._watched(request))
        except httpx.ReadTimeout as error:
            raise UpstreamSilent(
                f"The engine at {self.address} accepted {method} {path} and has sent nothing for "
                f"{limit_s:g} s. Is it stopped or stuck?"
            ) from error
        except httpx.HTTPError as error:
            raise UpstreamLost(
                f"The engine at {self.address} does not answer {method} {path} ({error!r}). Does it run?"
            ) from error
        text = response.text[:2_000]
        if response.status_code in (502, 503, 504):
            raise UpstreamLost(f"The engine at {self.address} cannot answer {method} {path} now: {text}")
        if response.status_code == httpx.codes.NOT_FOUND:
            start = f" Start it {hint}." if hint else ""
            raise UpstreamError(f"The engine at {self.address} has no route {method} {path}.{start}")
        try:
            answer = response.json()
        except ValueError:
            answer = {}
        if response.status_code not in (httpx.codes.OK, refusal):
            raise UpstreamError(
                f"The engine refused {method} {path} with status {response.status_code}: {text}"
            )
        return answer if isinstance(answer, dict) else {}

    async def _watched(self, request: httpx.Request) -> httpx.Response:
        """The response to a request that may take minutes. Meanwhile the engine's health is checked.

        Otherwise an engine that is stopped while it loads weights would hold an update lease until the time
        limit, and the run would wait for it.
        """
        answering = asyncio.create_task(self._http.send(request))
        try:
            while not (await asyncio.wait({answering}, timeout=self.quick_s))[0]:
                try:
                    await self._http.get(self._alive, timeout=self.quick_s)
                except httpx.ReadTimeout:
                    if not answering.done():
                        raise UpstreamSilent(
                            f"The engine at {self.address} has answered neither {request.method} "
                            f"{request.url.path} nor GET {self._alive}, asked {self.quick_s:g} s ago. Is it "
                            "stopped or stuck?"
                        ) from None
                except httpx.HTTPError:  # the request itself will fail
                    pass
        finally:
            if not answering.done():
                answering.cancel()
                await asyncio.wait({answering})
        return answering.result()

    async def aclose(self) -> None:
        """Close connections."""
        await self._http.aclose()


INSTALLING = "installing"
"""The label during an installation, when the weights are no version. An agent that sees it installs again."""


def label_of(policy_id: str, version: int) -> str:
    """The label of a policy's version."""
    return f"{version}@{policy_id}"


def version_in(label: str, policy_id: str) -> int | None:
    """The version in a label; None if it is not one of this policy."""
    version, _, policy = label.partition("@")
    return int(version) if version.isdecimal() and policy == policy_id else None


WEIGHTS = "model.safetensors"
_PREFIX = "staged-"
"""No version directory has this prefix, so `tidy` cannot remove one."""


def stage(weights: dict[str, Tensor], version: PolicyVersion, scratch: Path) -> Path:
    """A folder with all of a version's weights in `model.safetensors`.

    This is the version's own folder if it has the file, else a copy under `scratch`, which no other engine
    may use. Even a version that was published in full may be only a delta in a mirror. Raises `UpstreamError`
    if the copy cannot be written.
    """
    own = Path(version.path)
    if (own / WEIGHTS).is_file():
        return own
    folder = scratch / f"{_PREFIX}v{version.version:08d}"
    try:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        save_file(
            {name: tensor.contiguous() for name, tensor in weights.items()},
            folder / WEIGHTS,
            metadata={"format": "pt"},
        )
    except OSError as error:
        hint = "Choose another --scratch."
        raise UpstreamError(
            f"Version {version.version} could not be staged in {folder}: {error}. {hint}"
        ) from error
    return folder


def tidy(scratch: Path, served: Path) -> None:
    """Remove staged copies except that of the served version, which an engine may load again."""
    for folder in scratch.glob(f"{_PREFIX}v*"):
        if folder != served:
            shutil.rmtree(folder, ignore_errors=True)


def digests(weights: dict[str, Tensor]) -> dict[str, str]:
    """SHA-256 in hex of each tensor's bytes. It is in Python's standard library, so an engine's environment
    needs no further package.
    """
    return {name: hashlib.sha256(_bytes(tensor)).hexdigest() for name, tensor in weights.items()}


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data
