"""Resolves `--upstream`, the one argument that names what answers a wrapped command."""

import json
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import httpx

from harnessgym.errors import ConfigError

KINDS = """\
  http://HOST:PORT          an engine that speaks vLLM's completions protocol: vLLM, or `harnessgym engine MODEL`
  sglang:http://HOST:PORT   an SGLang server
  litellm:PROVIDER/MODEL    an outside model, e.g. litellm:anthropic/claude-sonnet-4-5 (recorded as text, never trained on)
  scripted[:FILE]           no model: scripted answers, from a TOML or JSON file or one fixed sentence
  replay:ROLLOUT            no model: what a rollout or session in these traces was answered, as long as it is asked the same"""
_SHIPPED = "environments.lookup"
_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class WrapUpstream:
    """The one worker that answers a wrapped command."""

    kind: str
    """Registered name of the upstream."""
    address: str
    """The worker's address; for `replay`, the rollout or session to replay."""
    policy: Path
    """Model folder with its tokenizer and chat template."""
    max_length: int
    """Prompt and completion together, in tokens."""


def find_upstream(named: str | None, policy: Path | None, max_length: int | None) -> WrapUpstream:
    """The upstream that `--upstream` names. Raises `ConfigError`, listing the known kinds, for any other."""
    if not named:
        raise ConfigError(f"Say what answers, with --upstream:\n{KINDS}")
    kind, colon, rest = named.partition(":")
    if kind in ("http", "https"):
        return _engine("vllm", named, policy, max_length)
    if kind == "sglang" and colon:
        return _engine("sglang", rest, policy, max_length)
    # Kinds without an engine have no context limit of their own, so the default is 2**20 tokens.
    if kind == "scripted":
        if rest and not Path(rest).is_file():
            raise ConfigError(f"--upstream {named}: there is no script {rest!r}.")
        address = f"scripted:{Path(rest).resolve()}" if rest else "scripted:"
        return WrapUpstream("scripted", address, policy or _shipped(), max_length or 1 << 20)
    if kind == "replay" and rest:
        return WrapUpstream("replay", rest, policy or _shipped(), max_length or 1 << 20)
    if kind == "litellm" and rest:
        return WrapUpstream("litellm", named, policy or _shipped(), max_length or 1 << 20)
    raise ConfigError(f"--upstream {named!r} names nothing that answers. Known:\n{KINDS}")


def _engine(kind: str, url: str, policy: Path | None, max_length: int | None) -> WrapUpstream:
    """Ask an engine for its context length and for the path of its model folder.

    Raises `ConfigError` if it does not answer or if the folder is not on this machine.
    """
    url = url.rstrip("/").removesuffix("/v1")
    try:
        with httpx.Client(timeout=_TIMEOUT_S, trust_env=False) as http:
            card = http.get(f"{url}/v1/models").raise_for_status().json()["data"][0]
    except (httpx.HTTPError, ValueError, LookupError) as error:
        raise ConfigError(
            f"--upstream {url} does not answer GET /v1/models as an engine does: {error!r}. Is it up?"
        ) from error
    folder = policy or Path(str(card.get("root") or card.get("id") or ""))
    if not (folder / "tokenizer.json").is_file():
        raise ConfigError(
            f"The engine at {url} serves {card.get('id')!r}, but its model folder is not at {str(folder)!r} "
            "on this machine. "
            "Give --policy FOLDER with its tokenizer.json, tokenizer_config.json and chat template."
        )
    return WrapUpstream(kind, url, folder, max_length or int(card.get("max_model_len") or 32_768))


def _shipped() -> Path:
    """The policy folder that ships with HarnessGym.

    Its tokenizer and template are used for upstreams that have no engine.
    """
    found = find_spec(_SHIPPED)
    if found is None or not found.submodule_search_locations:
        raise ConfigError(
            "Give --policy FOLDER: the policy that ships with HarnessGym is not installed "
            "(harnessgym-rl[envs])."
        )
    folder = Path(found.submodule_search_locations[0]) / "policy"
    json.loads((folder / "config.json").read_text())
    return folder
