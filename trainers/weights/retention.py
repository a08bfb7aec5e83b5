"""Which versions stay on disk: the newest, those in use, and whatever these build on."""

import logging
import shutil
from collections.abc import Collection, Iterable
from pathlib import Path

from harnessgym.errors import PolicyError
from trainers.weights.chain import chain_of
from trainers.weights.manifest import MARKER, version_numbers, version_path
from trainers.weights.publish import sync

log = logging.getLogger(__name__)


def collect(root: Path, keep: int, in_use: Collection[int] = ()) -> list[int]:
    """Remove versions that are not needed; returns their numbers, the newest first.

    Needed are the `keep` newest, those `in_use`, and every version that one of these is read from. A version
    that cannot be read may build on anything, so all older ones stay while it is needed. A version is renamed
    before it is removed, so a reader finds it whole or not at all; what a killed process left half removed
    goes with the next call. Deltas go before their bases.
    """
    for leftover in root.glob(".removed-v*"):
        shutil.rmtree(leftover, ignore_errors=True)
    there = [number for number in version_numbers(root) if (version_path(root, number) / MARKER).is_file()]
    needed = set[int]()
    for number in {*there[len(there) - min(keep, len(there)) :], *(set(in_use) & set(there))}:
        needed |= _needed_by(root, number, there)
    removed = [number for number in reversed(there) if number not in needed]
    remove(root, removed)
    return removed


def remove(root: Path, numbers: Iterable[int]) -> None:
    """Remove versions: each is whole or not there."""
    for number in numbers:
        path = version_path(root, number)
        away = root / f".removed-{path.name}"
        shutil.rmtree(away, ignore_errors=True)
        path.rename(away)
        sync(root)
        shutil.rmtree(away, ignore_errors=True)


def _needed_by(root: Path, number: int, there: Collection[int]) -> set[int]:
    """The versions that reading one takes."""
    try:
        return {link.manifest.version for link in chain_of(version_path(root, number))}
    except PolicyError as error:
        log.warning("Nothing older than version %d is removed: %s", number, error)
        return {other for other in there if other <= number}
