"""Runs pytest's runner in a process of its own, and relays what it reports.

Runs in a grading sandbox as `python3 -I -B -c <this text>`, with the job on stdin: `{"nonce", "programs",
"tests"}`. `programs` are the texts of `starting.py` and `testing.py`, `tests` is the job of the latter
without a nonce. This process imports nothing of the workspace. It reads the nonce that signs its lines
before the other process exists, hides its own memory and descriptors from processes of the same user, and
gives the other one a secret and a pipe of its own. So code under test reaches the result only through that
pipe. It can still find the secret in its own process and report there what it likes: only a check that
compares values withstands that.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import select
import struct
import subprocess
import sys
import termios
from typing import Any

_SET_DUMPABLE = 4
"""`PR_SET_DUMPABLE` of prctl(2)."""
_WORDS = {"began": 2, "ended": 2, "collected": 2, "uncollected": 4, "phase": 5}
"""What the runner reports, and its number of words."""
_MAX_LINE = 1 << 20
_MAX_BYTES = 64 << 20
_TICK_S = 0.05


def hide() -> bool:
    """Denies other processes of the same user this one's memory and descriptors. Whether that is so."""
    with contextlib.suppress(OSError, AttributeError):
        return bool(ctypes.CDLL(None).prctl(_SET_DUMPABLE, 0, 0, 0, 0) == 0)
    return False


class ReportRelay:
    """Checks the runner's lines and writes them again, signed with the nonce."""

    def __init__(self, nonce: str, secret: str, out: int) -> None:
        self._nonce = nonce.encode()
        self._secret = secret.encode()
        self._out = out
        self._rest = b""
        self._bytes = 0
        self._foreign = False

    def say(self, *words: str) -> None:
        """Writes one line."""
        line = b" ".join([self._nonce, *[word.encode().hex().encode() for word in words]]) + b"\n"
        while line:
            line = line[os.write(self._out, line) :]

    def take(self, block: bytes) -> bool:
        """Relays the lines that a block ends. Returns False if it has got too much."""
        self._bytes += len(block)
        *lines, self._rest = (self._rest + block).split(b"\n")
        for line in lines:
            self._relay(line)
        if len(self._rest) > _MAX_LINE:
            self._rest = b""
            self._object()
        return self._bytes <= _MAX_BYTES

    def end(self) -> None:
        """Takes what is left as a line."""
        if self._rest:
            self._relay(self._rest)

    def _relay(self, line: bytes) -> None:
        start, *encoded = line.split(b" ")
        try:
            words = [bytes.fromhex(word.decode("ascii")).decode() for word in encoded]
        except ValueError:
            words = []
        if start == self._secret and words and _WORDS.get(words[0]) == len(words) and len(line) <= _MAX_LINE:
            self.say(*words)
        else:
            self._object()

    def _object(self) -> None:
        """Says once that there are lines which the runner did not write."""
        if not self._foreign:
            self._foreign = True
            self.say("foreign")


def main() -> None:
    """Reads the job from stdin, runs the runner to its end, and exits as it did."""
    job = json.loads(sys.stdin.buffer.read())
    secret = os.urandom(16).hex()
    relay = ReportRelay(job["nonce"], secret, 1)
    relay.say("relayed", "hidden" if hide() else "open")
    reading, writing = os.pipe()
    command = [sys.executable, "-I", "-B", "-c", *job["programs"]]
    runner = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=writing)
    os.close(writing)
    stream: Any = runner.stdin
    with contextlib.suppress(BrokenPipeError):
        stream.write(json.dumps({**job["tests"], "nonce": secret}).encode())
        stream.close()
    if not _read(reading, runner, relay):
        runner.kill()
    code = runner.wait()
    relay.end()
    os._exit(code if code >= 0 else 128 - code)


def _read(reading: int, runner: subprocess.Popen[bytes], relay: ReportRelay) -> bool:
    """Relays until the runner has ended, whoever else holds the pipe. False if it was too much."""
    while True:
        ready, _, _ = select.select([reading], [], [], _TICK_S)
        if runner.poll() is not None:
            # What is in the pipe now was written while the runner lived, but for what its children add.
            (left,) = struct.unpack("i", fcntl.ioctl(reading, termios.FIONREAD, b"\0\0\0\0"))
            return relay.take(os.read(reading, left) if left else b"")
        if ready:
            block = os.read(reading, 1 << 16)
            if not block or not relay.take(block):
                return not block


if __name__ == "__main__":
    main()
