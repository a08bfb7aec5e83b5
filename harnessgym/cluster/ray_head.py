"""Checks whether Ray's head answers, the process that manages the whole cluster.

If the head is gone for a while, Ray ends every process, even the supervisor in the middle of its work, with a
message of its own. This check notices it earlier, so that the supervisor can report it and end the run
in good order.
"""

import os
import socket
import time

from harnessgym.errors import HarnessGymError

_RAY_SETTING = "RAY_gcs_rpc_server_reconnect_timeout_s"
_RAY_S = 60.0
"""How long Ray itself waits for its head."""
_EVERY_S, _CONNECT_S, _PAUSE_S = 1.0, 2.0, 0.2


class RayHead:
    """The head at an address. A check connects to its port."""

    def __init__(self, address: str, max_wait_s: float | None = None) -> None:
        """The head may be away for `max_wait_s`.

        The default is half of Ray's own timeout, which leaves the other half to end the run.
        """
        self.address = address
        host, _, port = address.rpartition(":")
        self._place = host.strip("[]"), int(port)
        ray_s = float(os.environ.get(_RAY_SETTING, _RAY_S))
        self.max_wait_s = ray_s / 2 if max_wait_s is None else max_wait_s
        self._asked = 0.0
        self._gone: float | None = None
        """When it stopped answering; None while it answers."""

    def check(self, *, now: bool = False) -> bool:
        """Returns whether the head answers; connects at most once a second, or `now`.

        Raises `HarnessGymError` if it has been away for too long.
        """
        began = time.monotonic()
        if now or began - self._asked >= _EVERY_S:
            self._asked = began
            self._gone = None if self._answers() else self._gone or began
        if self._gone is not None and time.monotonic() - self._gone > self.max_wait_s:
            raise HarnessGymError(
                f"Ray's head at {self.address} has not answered for {self.max_wait_s:g} s. Without it no "
                "process of the run can be placed, and Ray ends all of them. Start the head again (`ray "
                "start --head`), and the other machines (`ray start --address HEAD:6379`); then the same "
                "command goes on from here."
            )
        return self._gone is None

    def wait(self) -> None:
        """Waits until the head answers. Raises like `check`."""
        while not self.check(now=True):
            time.sleep(_PAUSE_S)

    def _answers(self) -> bool:
        try:
            socket.create_connection(self._place, timeout=_CONNECT_S).close()
        except OSError:
            return False
        return True
