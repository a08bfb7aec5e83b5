"""ASGI apps that stand for engines and proxies."""

import threading
import time
from contextlib import contextmanager

import uvicorn


@contextmanager
def running(app, **config):
    """An app served by a thread, on a free port unless told otherwise."""
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", **{"port": 0, **config}))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield server
    finally:
        server.should_exit = True
        thread.join()
