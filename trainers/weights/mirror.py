"""Mirrors the policy versions of another machine: fetches what is missing, verifies it, and commits it by a
rename.

A version is fetched as deltas on what the folder has, or from a full version if that is fewer bytes. An
interrupted download continues where it stopped, even after a restart; a file with a wrong checksum is fetched
again from the start.
"""

import fcntl
import logging
import shutil
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeAlias

import httpx
import xxhash
from pydantic import TypeAdapter, ValidationError

from harnessgym.errors import PolicyError, TransferError
from harnessgym.proxy_client import trust_for
from trainers.weights.chain import chain_of, read_version
from trainers.weights.manifest import (
    DELTA,
    FULL,
    MANIFEST,
    MARKER,
    Manifest,
    file_checksum,
    parse_manifest,
    read_manifest,
    version_numbers,
    version_path,
)
from trainers.weights.publish import collect, remove, sync
from trainers.weights.settings import MirrorSettings
from trainers.weights.version_server import CHECKSUM, Offer

log = logging.getLogger(__name__)

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 5.0
_OFFERS = TypeAdapter(list[Offer])
Fetch: TypeAlias = tuple[int, str]
"""A version and the name of one of its data files."""


class Mirror:
    """A local folder of versions and the server from which they are fetched."""

    def __init__(self, settings: MirrorSettings) -> None:
        self.settings = settings
        self.fetched_bytes = 0
        """Bytes of data files that were received, including discarded ones."""
        headers = {"authorization": f"Bearer {settings.key}", "accept-encoding": "identity"}
        self._http = httpx.Client(
            base_url=settings.url,
            headers=headers,
            timeout=settings.timeout_s,
            trust_env=False,
            verify=trust_for(settings.url),
        )

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def offers(self) -> dict[int, Offer]:
        """The server's versions, by number. Raises `TransferError` after `patience_s`, or at once if the key
        is wrong.
        """
        for attempt in self._attempts("the list of versions"):
            with attempt:
                response = self._http.get("/versions")
                _check(response)
                if response.headers.get(CHECKSUM) != xxhash.xxh3_128_hexdigest(response.content):
                    raise _DamagedError("The list of versions came with a wrong checksum.")
                return {offer.version: offer for offer in _OFFERS.validate_json(response.content)}
        raise AssertionError

    def fetch(self, version: int, checksum: str | None = None) -> Path:
        """Fetch a version and all that it builds on, if they are not here; returns its directory.

        If the version is here and its `checksum` is known, the server is not contacted. Raises
        `TransferError` for a failure that may be temporary, `PolicyError` if the folder has another version
        with this number.
        """
        path = version_path(self.settings.folder, version)
        if checksum is not None and _length_here(self.settings.folder, version, checksum) is not None:
            return path
        with self._alone():
            try:
                offers = self.offers()
            except TransferError:
                if _length_here(self.settings.folder, version, None) is None:
                    raise
                return path
            fetches = plan(self.settings.folder, offers, version, self.settings.longest_chain)
            self._forget_drafts({number for number, _ in fetches})
            for number, name in fetches:
                self._fetch(offers[number], name)
            collect(self.settings.folder, self.settings.keep, {version})
            return path

    def repair(self, version: int) -> Path:
        """Fetch a version that could not be read again, with all older ones; returns its directory."""
        with self._alone():
            # Another process may have repaired it while this one waited for the lock.
            try:
                read_version(version_path(self.settings.folder, version))
            except PolicyError:
                older = [number for number in version_numbers(self.settings.folder) if number <= version]
                remove(self.settings.folder, reversed(older))
        return self.fetch(version)

    def _forget_drafts(self, wanted: Collection[int]) -> None:
        """Remove partial downloads of versions that are no longer wanted."""
        kept = {_draft_of(version_path(self.settings.folder, number)) for number in wanted}
        for draft in self.settings.folder.glob(".v*.partial"):
            if draft not in kept:
                shutil.rmtree(draft)

    def _fetch(self, offer: Offer, name: str) -> None:
        """Fetch one data file of a version."""
        target = version_path(self.settings.folder, offer.version)
        draft = _draft_of(target)
        draft.mkdir(exist_ok=True)
        for attempt in self._attempts(f"{name} of version {offer.version}"):
            with attempt:
                manifest = self._manifest(offer, draft)
                self._data(manifest, name, draft)
                break
        _commit(draft, target, name)

    def _manifest(self, offer: Offer, draft: Path) -> Manifest:
        """Write a version's manifest and marker to the draft."""
        raw = {name: self._get(offer.version, name) for name in (MANIFEST, MARKER)}
        try:
            manifest = parse_manifest(
                raw[MANIFEST], raw[MARKER], f"{self.settings.url}/versions/{offer.version}"
            )
        except PolicyError as error:
            raise _DamagedError(str(error)) from error
        if (manifest.version, manifest.checksum) != (offer.version, offer.checksum):
            raise _DamagedError(
                f"The manifest of version {offer.version} is not of the version that was offered."
            )
        for name, content in raw.items():
            (draft / name).write_bytes(content)
        return manifest

    def _get(self, version: int, name: str) -> bytes:
        response = self._http.get(f"/versions/{version}/{name}")
        _check(response)
        return response.content

    def _data(self, manifest: Manifest, name: str, draft: Path) -> None:
        """Fetch the missing part of a data file, and verify all of it."""
        path = draft / name
        entry = manifest.files.get(name)
        start = path.stat().st_size if path.exists() else 0
        if entry is None or start < entry.bytes:
            self._stream(f"/versions/{manifest.version}/{name}", path, start)
        try:
            if entry is None:
                read_version(draft)
            elif (path.stat().st_size, file_checksum(path)) != (entry.bytes, entry.xxh3):
                raise _DamagedError(f"{name} of version {manifest.version} came with a wrong checksum.")
        except (PolicyError, _DamagedError) as error:
            path.unlink()
            raise _DamagedError(str(error)) from error

    def _stream(self, url: str, path: Path, start: int) -> None:
        """Download a file from byte `start`, within the rate limit."""
        headers = {"range": f"bytes={start}-"} if start else {}
        with self._http.stream("GET", url, headers=headers) as response:
            if response.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
                path.unlink()
                raise _DamagedError(f"{url} ends before byte {start}.")
            _check(response)
            # A server may ignore the range and send the whole file, which then replaces the partial one.
            resumed = response.status_code == httpx.codes.PARTIAL_CONTENT
            if resumed and not response.headers.get("content-range", "").startswith(f"bytes {start}-"):
                raise _DamagedError(f"{url} sent another range than was requested.")
            began = time.monotonic()
            received = 0
            with path.open("ab" if resumed else "wb") as file:
                for block in response.iter_raw():
                    file.write(block)
                    received += len(block)
                    self.fetched_bytes += len(block)
                    if self.settings.bytes_per_s is not None:
                        time.sleep(max(0.0, began + received / self.settings.bytes_per_s - time.monotonic()))

    def _attempts(self, what: str) -> "Iterator[_Attempt]":
        """Attempts until one succeeds or there has been no progress for `patience_s`, with growing pauses."""
        pause = _FIRST_PAUSE_S
        progress = -1
        since = time.monotonic()
        while True:
            attempt = _Attempt()
            yield attempt
            if attempt.error is None:
                return
            if self.fetched_bytes != progress and not isinstance(attempt.error, _DamagedError):
                pause = _FIRST_PAUSE_S
                progress = self.fetched_bytes
                since = time.monotonic()
            if time.monotonic() - since > self.settings.patience_s:
                raise TransferError(
                    f"{self.settings.url} gave no {what} in {self.settings.patience_s:.0f} s: "
                    f"{attempt.error} Is the version server running, and reachable from here?"
                ) from attempt.error
            log.info("Fetching %s failed: %s Trying again in %.2f s.", what, attempt.error, pause)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Wait until no other process fetches into the folder."""
        self.settings.folder.mkdir(parents=True, exist_ok=True)
        with (self.settings.folder / ".mirror.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def plan(root: Path, offers: Mapping[int, Offer], wanted: int, longest_chain: int = 64) -> list[Fetch]:
    """The files to fetch for a version, its base first; empty if it is here.

    Chooses the files with the fewest bytes, unless that makes a row of more than `longest_chain` deltas.
    Raises `TransferError` if the server does not have all that is needed, `PolicyError` if the folder has
    another version with one of the numbers.
    """
    number = wanted
    expected = None
    deltas = 0
    cost = 0
    chain = list[Fetch]()
    ways: list[tuple[bool, int, list[Fetch]]] = []  # (too many deltas, bytes, what to fetch)
    # Walks back from the wanted version, base by base. Each version on the way that is here, or that the
    # server has in full, ends one way to get it.
    while (offer := offers.get(number)) or expected is not None:
        have = _length_here(root, number, offer.checksum if offer else expected)
        if have is not None:
            ways.append((deltas + have - 1 > longest_chain, cost, list(chain)))
        if offer is None or (have is not None and not ways[-1][0]):
            break
        if FULL in offer.files:
            ways.append((deltas > longest_chain, cost + offer.files[FULL], [*chain, (number, FULL)]))
        if offer.base is None or DELTA not in offer.files:
            break
        if not _has_delta(version_path(root, number), offer.checksum):
            cost += offer.files[DELTA]
            chain.append((number, DELTA))
        number = offer.base
        expected = offer.base_checksum
        deltas = deltas + 1
    if not ways:
        raise TransferError(
            f"The server cannot give version {wanted}: version {number} is missing there. It has "
            f"{', '.join(map(str, sorted(offers))) or 'none at all'}; ask for the newest."
        )
    return min(ways)[2][::-1]


def fetched(settings: MirrorSettings, version: int, checksum: str | None = None) -> Path:
    """Directory of a version in the mirror, fetched if it is not there; see `Mirror.fetch`."""
    with closing(Mirror(settings)) as mirror:
        return mirror.fetch(version, checksum)


def repaired(settings: MirrorSettings, version: int) -> Path:
    """Directory of a version in the mirror that could not be read there; see `Mirror.repair`."""
    with closing(Mirror(settings)) as mirror:
        return mirror.repair(version)


def follow(settings: MirrorSettings) -> None:
    """Keep the newest version here until interrupted, even if the server is unreachable for a time."""
    mirror = Mirror(settings)
    have = -1
    try:
        while True:
            try:
                newest = max(mirror.offers(), default=-1)
                if newest > have:
                    before = mirror.fetched_bytes
                    began = time.monotonic()
                    path = mirror.fetch(newest)
                    have = newest
                    took = time.monotonic() - began
                    log.info(
                        "%s is here: %.1f MB in %.1f s.", path, (mirror.fetched_bytes - before) / 1e6, took
                    )
            except TransferError as error:
                log.warning("%s", error)
            time.sleep(settings.poll_s)
    finally:
        mirror.close()


class _DamagedError(Exception):
    """The received data is not what was published."""


class _Attempt:
    """Keeps an error that may be temporary; other errors are raised."""

    def __init__(self) -> None:
        self.error: Exception | None = None

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        if isinstance(error, httpx.TransportError | _DamagedError | ValidationError):
            self.error = error
        return self.error is not None


def _check(response: httpx.Response) -> None:
    """Raise `TransferError` for a final failure, `_DamagedError` for one that may be temporary."""
    if response.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        raise TransferError(
            f"{response.url} refused the key (status {response.status_code}). Set HARNESSGYM_WEIGHTS_KEY to "
            "the server's key."
        )
    if response.status_code == httpx.codes.NOT_FOUND:
        raise TransferError(f"{response.url} is gone, because there are newer versions. Fetch the newest.")
    if response.status_code not in (httpx.codes.OK, httpx.codes.PARTIAL_CONTENT):
        raise _DamagedError(f"{response.url} answered with status {response.status_code}.")


def _length_here(root: Path, number: int, checksum: str | None) -> int | None:
    """Number of versions that must be read for one, if all are here; else None. Raises `PolicyError` if its
    checksum differs.
    """
    try:
        chain = chain_of(version_path(root, number))
    except PolicyError:
        return None
    if checksum is not None and chain[-1].manifest.checksum != checksum:
        raise _other(version_path(root, number))
    return len(chain)


def _has_delta(path: Path, checksum: str) -> bool:
    """Whether a version's delta is here, even if its base is not."""
    return (path / DELTA).is_file() and _checksum_of(path) == checksum


def _checksum_of(path: Path) -> str | None:
    """Checksum of the version in a directory; None if there is none, or its manifest is damaged."""
    try:
        return read_manifest(path).checksum
    except PolicyError:
        return None


def _draft_of(target: Path) -> Path:
    """The folder for a version's files until they are complete."""
    return target.parent / f".{target.name}.partial"


def _commit(draft: Path, target: Path, name: str) -> None:
    """Turn a complete draft into the version at `target`, or add its file to the version that exists
    there.
    """
    for other in {FULL, DELTA} - {name}:
        (draft / other).unlink(missing_ok=True)  # a partial download, given up for a cheaper way
    for file in draft.iterdir():
        sync(file)
    checksum = _checksum_of(target)
    if checksum is None and target.exists():
        shutil.rmtree(target)  # it is damaged
    if checksum is not None:
        if checksum != read_manifest(draft).checksum:
            raise _other(target)
        (draft / name).rename(target / name)
        sync(target)
        shutil.rmtree(draft)
    else:
        sync(draft)
        draft.rename(target)
    sync(target.parent)


def _other(path: Path) -> PolicyError:
    return PolicyError(
        f"{path} has another version than the server has with this number. Mirror into an empty folder."
    )
