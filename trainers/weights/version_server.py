"""Serves a folder of policy versions to other machines over HTTP, read-only.

- GET /versions: the list [{version, kind, base, checksum, base_checksum, files: {name: bytes}}, ...].
- GET /versions/{number}/{file}: a file of a version, whole or by Range.

Every request carries `Authorization: Bearer KEY`. Versions never change, so a client can resume an
interrupted transfer, and verifies it by the checksums in the manifest.

harnessgym weights serve runs/mine/versions --host 0.0.0.0 --port 8900
"""

import hmac
import logging
import sys
from pathlib import Path

import uvicorn
import xxhash
from pydantic import BaseModel, ConfigDict, TypeAdapter
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from harnessgym.errors import ConfigError, PolicyError
from trainers.weights.manifest import (
    DELTA,
    FULL,
    MANIFEST,
    MARKER,
    Manifest,
    read_manifest,
    version_numbers,
    version_path,
)
from trainers.weights.settings import VersionServerSettings

log = logging.getLogger(__name__)

CHECKSUM = "x-xxh3-128"
"""Header of the list: the checksum of its body."""
_SERVED = (MANIFEST, MARKER, FULL, DELTA)


class Offer(BaseModel):
    """A version on the server."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    version: int
    kind: str
    base: int | None = None
    checksum: str
    base_checksum: str | None = None
    files: dict[str, int]
    """Bytes of its data files."""


_OFFERS = TypeAdapter(list[Offer])


class VersionFolder:
    """The versions of a folder.

    Manifests never change and are read once. The files of a version may change, if the folder is a mirror.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._known: dict[int, Manifest] = {}
        self._warned: set[str] = set()

    def offers(self) -> list[Offer]:
        """The committed versions in order; damaged ones are left out, with a warning."""
        known = {}
        offers = list[Offer]()
        for number in version_numbers(self.root):
            try:
                manifest = self._known.get(number) or read_manifest(version_path(self.root, number))
                offers.append(self._offer(manifest))
                known[number] = manifest
            except (PolicyError, OSError) as error:  # OSError: it was removed in the meantime
                if str(error) not in self._warned:
                    log.warning("Version %d is not offered: %s", number, error)
                self._warned.add(str(error))
        self._known = known
        return offers

    def _offer(self, manifest: Manifest) -> Offer:
        path = version_path(self.root, manifest.version)
        sizes = {name: (path / name).stat().st_size for name in (FULL, DELTA) if (path / name).is_file()}
        return Offer(
            version=manifest.version,
            kind=manifest.kind,
            base=manifest.base,
            checksum=manifest.checksum,
            base_checksum=manifest.base_checksum,
            files=sizes,
        )


def build_app(root: Path, key: str) -> Starlette:
    """The server as an ASGI application."""
    folder = VersionFolder(root)

    def refusal(request: Request) -> Response | None:
        authorization = request.headers.get("authorization", "")
        if hmac.compare_digest(authorization.encode(), f"Bearer {key}".encode()):
            return None
        body = {"error": "Give the server's key as `Authorization: Bearer KEY`."}
        return JSONResponse(body, 401, {"www-authenticate": "Bearer"})

    def listing(request: Request) -> Response:
        if refused := refusal(request):
            return refused
        body = _OFFERS.dump_json(folder.offers(), exclude_none=True)
        return Response(
            body, headers={CHECKSUM: xxhash.xxh3_128_hexdigest(body)}, media_type="application/json"
        )

    def file(request: Request) -> Response:
        if refused := refusal(request):
            return refused
        path = version_path(root, request.path_params["number"])
        name = request.path_params["name"]
        if name not in _SERVED or not (path / MARKER).is_file() or not (path / name).is_file():
            return JSONResponse(
                {"error": f"Version {request.path_params['number']} has no {name} here."}, 404
            )
        return FileResponse(path / name, media_type="application/octet-stream")

    return Starlette(
        routes=[
            Route("/versions", listing, methods=["GET"]),
            Route("/versions/{number:int}/{name}", file, methods=["GET"]),
        ]
    )


def serve(settings: VersionServerSettings) -> None:
    """Serve until SIGINT or SIGTERM. Prints one line with the address when it does. Raises `ConfigError`."""
    if not settings.folder.is_dir():
        raise ConfigError(f"There is no folder {settings.folder}. Give the `versions` folder of a run.")
    config = uvicorn.Config(
        build_app(settings.folder, settings.key), host=settings.host, port=settings.port, log_level="warning"
    )
    try:
        listener = config.bind_socket()
    except SystemExit:
        raise ConfigError(
            f"Cannot listen on {settings.host}:{settings.port}. Choose another --port."
        ) from None
    host, port = listener.getsockname()[:2]
    sys.stdout.write(f"versions of {settings.folder} at http://{host}:{port}\n")
    sys.stdout.flush()
    uvicorn.Server(config).run(sockets=[listener])
