"""Run by vLLM's own interpreter: loads vLLM once, and forks a server for each line of its input.

Loading takes 15 s of processor time, and each of a server's three processes would do it. A line is JSON: the
server's `arguments` and its `log`. The answer is the server's pid. At the end of the input all servers end.
"""

import contextlib
import importlib
import json
import multiprocessing
import os
import signal
import sys

from vllm.utils import system_utils

_MODULES = (
    "vllm.entrypoints.launchers.api_server.entry",
    "vllm.model_executor.models.llama",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.worker.cpu_worker",
)


def main() -> None:
    """Serve orders until there are no more."""
    # Before the modules that import it by name: vLLM insists on new interpreters where there is no GPU.
    system_utils.get_mp_context = lambda: multiprocessing.get_context("fork")
    for module in _MODULES:
        importlib.import_module(module)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    started = []
    for line in sys.stdin:
        order = json.loads(line)
        started.append(os.fork())
        if started[-1] == 0:
            _serve(order["arguments"], order["log"])
        sys.stdout.write(f"{started[-1]}\n")
        sys.stdout.flush()
    for pid in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


def _serve(arguments: list[str], log: str) -> None:
    """Be a server, in a fork."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)
    os.dup2(1, 2)
    sys.argv = ["vllm", *arguments]
    importlib.import_module(_MODULES[0]).main()
    sys.exit()


if __name__ == "__main__":
    main()
