"""Request bodies that a client has compressed."""

import zlib

from proxies.connection import BodyTooLarge

_WINDOW = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
"""Window bits of the encodings that are read."""


class UnknownEncoding(Exception):
    """A body has an encoding that is not read here."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def decoded(data: bytes, encodings: str, limit: int) -> bytes:
    """A body without its `Content-Encoding`, whose names are separated by commas, the first applied first.

    Raises `UnknownEncoding`, `ValueError` for a body that is not encoded so, and `BodyTooLarge` if the result
    exceeds `limit` bytes: a small body may hold a large one.
    """
    for name in reversed([part.strip().lower() for part in encodings.split(",")]):
        if name in ("", "identity"):
            continue
        if name not in _WINDOW:
            raise UnknownEncoding(name)
        data = _inflated(data, _WINDOW[name], limit)
    return data


def _inflated(data: bytes, window: int, limit: int) -> bytes:
    decoder = zlib.decompressobj(window)
    try:
        out = decoder.decompress(data, limit + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if len(out) > limit:
        raise BodyTooLarge
    if not decoder.eof or decoder.unused_data:
        raise ValueError("it ends too early or too late")
    return out
