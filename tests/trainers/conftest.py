from contextlib import contextmanager

from trainers.engine.router import EngineRouter
from trainers.engine.server import FrontProcess, listen


@contextmanager
def fronted(engine, settings):
    """Start an engine of this process behind a real front; the address of the front."""
    listener = listen(settings)
    host, port = listener.getsockname()
    front = FrontProcess(listener)
    board = EngineRouter(engine, settings, front.link)
    engine.start(on_delivery=board.flush)
    listening = board.start(lambda: None, lambda: None)
    try:
        yield f"http://{host}:{port}"
    finally:
        front.close()
        listening.join()
        engine.close()
