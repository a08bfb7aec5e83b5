"""Versions over real sockets: a real server, and between it and a mirror a relay that cuts, lies and
refuses.
"""

import socket
import threading
import time
from contextlib import contextmanager, suppress

import torch
import uvicorn

from trainers.weights.delta import flat_bytes
from trainers.weights.mirror import Mirror
from trainers.weights.publish import BaseVersion, publish
from trainers.weights.settings import MirrorSettings
from trainers.weights.version_server import build_app

KEY = "0123456789abcdef"


def stepped(weights, seed):
    generator, out = torch.Generator().manual_seed(seed), {}
    for name, tensor in weights.items():
        mask = torch.rand(tensor.shape, generator=generator) < 0.02
        out[name] = torch.where(mask, tensor + 1, tensor)
    return out


def publish_chain(root, count, *, full_every=16, size=40_000):
    made = {
        0: {
            "a": torch.randn(size, generator=torch.Generator().manual_seed(0)).bfloat16(),
            "b": torch.zeros(5),
        }
    }
    publish(root, 0, None, made[0], 0, "r")
    for version in range(1, count):
        made[version] = stepped(made[version - 1], version)
        publish(
            root, version, version - 1, made[version], version, "r",
            base=BaseVersion(version - 1, made[version - 1]), full_every=full_every,
        )  # fmt: skip
    return made


def same(one, other):
    return one.keys() == other.keys() and all(
        flat_bytes(one[name]).tobytes() == flat_bytes(other[name]).tobytes() for name in one
    )


@contextmanager
def serving(root, port=0):
    """The version server on a loopback port; its port."""
    config = uvicorn.Config(build_app(root, KEY), host="127.0.0.1", port=port, log_level="error")
    listener = config.bind_socket()
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    while not server.started:
        time.sleep(0.005)
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


class Relay:
    """Hands bytes on between a client and the server. Each connection that is faulty ends or lies after so
    many bytes.
    """

    def __init__(self, port):
        self.port, self.faults, self.connections = port, [], 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            self.connections += 1
            fault = self.faults.pop(0) if self.faults else None
            if fault == ("refuse", 0):
                client.close()
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self.port))
            except OSError:
                client.close()
                continue
            threading.Thread(target=self._pump, args=(client, server, None), daemon=True).start()
            threading.Thread(target=self._pump, args=(server, client, fault), daemon=True).start()

    def _pump(self, source, target, fault):
        passed = 0
        try:
            while block := source.recv(4096):
                if fault is not None and passed <= fault[1] < passed + len(block):
                    at = fault[1] - passed
                    if fault[0] == "cut":
                        target.sendall(block[:at])
                        break
                    block = block[:at] + bytes([block[at] ^ 0x55]) + block[at + 1 :]
                target.sendall(block)
                passed += len(block)
        except OSError:
            pass  # the other side is gone
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def close(self):
        self.listener.close()


@contextmanager
def relayed(root, *faults):
    with serving(root) as port:
        relay = Relay(port)
        relay.faults = list(faults)
        try:
            yield relay
        finally:
            relay.close()


@contextmanager
def mirror_of(url, folder, **options):
    mirror = Mirror(
        MirrorSettings(
            **{
                "url": url,
                "folder": folder,
                "key": KEY,
                "patience_s": 20.0,
                "timeout_s": 1.0,
                "keep": 3,
                **options,
            }
        )
    )
    try:
        yield mirror
    finally:
        mirror.close()
