"""Outside models of any provider through litellm, as teachers and for data collection.

The address of a worker of kind `litellm` is litellm's own model name, e.g. `litellm:openai/gpt-4o`. More
arguments for litellm follow as a URL query:
`litellm:openai/tiny?api_base=http://127.0.0.1:8000/v1&max_retries=0`. An address never contains a key: the
key comes from the provider's environment variable, or from the one that `api_key_env=NAME` names.

The answer arrives whole; a client that asked for a stream gets all events at the end. Install with
`pip install 'harnessgym-rl[litellm]'`.
"""

import asyncio
import importlib
import json
import os
import re
from functools import cache
from typing import Any
from urllib.parse import parse_qsl

from harnessgym.config import parse_value
from harnessgym.errors import ConfigError, UpstreamError
from harnessgym.message import Message, ToolCall
from proxies.dialect import ModelRequest, OutputFormat, Problem
from proxies.upstream import TextAnswer, TextCall, TextRefusal

_COUNTS = re.compile(
    r"maximum context length[^\d]*([\d,]+)|prompt is too long[^\d]*[\d,]+ tokens > ([\d,]+)", re.IGNORECASE
)
"""How providers state their limit on the prompt, in tokens."""


class LitellmUpstream:
    """One outside model."""

    def __init__(self, address: str, *, version: int = 0) -> None:
        """Raises `ConfigError` for an address without a model, or with a key in it."""
        self.version = version
        self._model, _, query = address.removeprefix("litellm:").partition("?")
        options = {name: parse_value(value) for name, value in parse_qsl(query)}
        if not self._model or "api_key" in options:
            raise ConfigError(
                f"{address.partition('api_key=')[0]!r} is not an outside model: write "
                "`litellm:PROVIDER/MODEL?api_base=URL`, and put the key into the provider's environment "
                "variable or into one that `api_key_env=NAME` names."
            )
        self._key_env = options.pop("api_key_env", None)
        self._options = options

    async def complete(self, call: TextCall) -> TextAnswer:
        """Ask the model. Raises `TextRefusal` if its provider refuses and `ConfigError` without litellm."""
        if call.request.prompt is not None:
            detail = (
                "Raw prompts are in the tokens of the policy; an outside model takes messages. Use a chat "
                "protocol."
            )
            raise TextRefusal(Problem("unsupported", detail))
        litellm = await asyncio.to_thread(_litellm)
        try:
            reply = await litellm.acompletion(**self._arguments(call))
        except Exception as error:  # litellm's errors have no base but Exception
            raise _refusal(error, call) from error
        return _read(reply)

    async def healthy(self) -> bool:
        """Always true: a real check would cost money."""
        return True

    def close(self) -> None:
        """Does nothing: litellm owns the connections."""

    def _arguments(self, call: TextCall) -> dict[str, Any]:
        """The arguments of litellm's call.

        Sampling parameters at their defaults are left out, because some models refuse them in any form.
        """
        sampling = call.sampling
        request = call.request
        optional_arguments = {
            "temperature": None if sampling.temperature == 1.0 else sampling.temperature,
            "top_p": None if sampling.top_p == 1.0 else sampling.top_p,
            "top_k": sampling.top_k or None,
            "stop": list(sampling.stop) or None,
            "tools": [tool.to_template() for tool in request.tools] or None,
            "tool_choice": _choice(request) if request.tools else None,
            "parallel_tool_calls": False if request.tools and not request.parallel_tool_calls else None,
            "response_format": None if request.output is None else _format(request.output),
            "api_key": None if self._key_env is None else _key(self._key_env),
        }
        return {
            "model": self._model,
            "messages": [_message(message) for message in request.messages],
            "max_tokens": sampling.max_tokens,
            "drop_params": True,
            **{name: value for name, value in optional_arguments.items() if value is not None},
            **self._options,
        }


@cache
def _litellm() -> Any:
    """Import litellm on first use, because that takes seconds. Raises `ConfigError` if it is missing."""
    # Without this variable the import downloads a price list.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    try:
        litellm: Any = importlib.import_module("litellm")
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"Outside models need litellm ({error}): pip install 'harnessgym-rl[litellm]'."
        ) from error
    litellm.suppress_debug_info = True
    litellm.telemetry = False
    return litellm


def _key(name: str) -> str:
    try:
        return os.environ[name]
    except KeyError:
        raise ConfigError(
            f"The environment variable {name}, which should hold an outside model's key, is not set."
        ) from None


def _message(message: Message) -> dict[str, Any]:
    """A message in OpenAI's form, in which tool arguments are text."""
    out = message.to_template()
    out.pop("reasoning_content", None)
    for call, written in zip(message.tool_calls, out.get("tool_calls", ()), strict=True):
        written["function"]["arguments"] = call.arguments
    return out


def _choice(request: ModelRequest) -> str | dict[str, Any]:
    if request.tool_choice in ("auto", "none", "required"):
        return request.tool_choice
    return {"type": "function", "function": {"name": request.tool_choice}}


def _format(output: OutputFormat) -> dict[str, Any]:
    if output.schema is None:
        return {"type": "json_object"}
    return {
        "type": "json_schema",
        "json_schema": {"name": output.name or "answer", "schema": dict(output.schema)},
    }


def _read(reply: Any) -> TextAnswer:
    body = reply.model_dump_json()
    choices = json.loads(body).get("choices") or []
    if not choices:
        raise UpstreamError(f"The outside model gave no answer: {body[:500]}")
    message_fields = choices[0]["message"]
    finish = choices[0].get("finish_reason")
    calls = tuple(
        ToolCall(call.get("id") or "", call["function"]["name"], call["function"]["arguments"] or "{}")
        for call in message_fields.get("tool_calls") or ()
    )
    reasoning = message_fields.get("reasoning_content") or ""
    message = Message("assistant", message_fields.get("content") or "", reasoning=reasoning, tool_calls=calls)
    return TextAnswer(message, finish_reason="length" if finish == "length" else "stop", body=body.encode())


def _refusal(error: Exception, call: TextCall) -> UpstreamError:
    """The provider's refusal as one of our errors. litellm uses OpenAI's error names for all providers."""
    # litellm reports some errors as bad requests that the provider's client classified better, so the errors
    # in the cause chain count as well. Types are compared by name: importing them would import litellm.
    kinds = {kind.__name__ for one in _chain(error) for kind in type(one).__mro__}
    text = f"The outside model refused: {error}"
    if "ContextWindowExceededError" in kinds:
        counts_match = _COUNTS.search(str(error))
        most = int((counts_match[1] or counts_match[2]).replace(",", "")) if counts_match else None
        tokens = None if most is None else max(len(call.prompt), most + 1)
        detail = f"prompt is too long for the outside model: {error}"  # harnesses look for these words
        return TextRefusal(Problem("overflow", detail, tokens=tokens, max_tokens=most))
    if kinds & {"RateLimitError", "ServiceUnavailableError", "Timeout"}:
        return TextRefusal(Problem("overloaded", text, retry_after_s=_retry_after(error)))
    if kinds & {"AuthenticationError", "PermissionDeniedError", "BudgetExceededError"}:
        return TextRefusal(
            Problem("limit", f"{text} (The key is that of this proxy's outside model, not yours.)")
        )
    if "NotFoundError" in kinds:
        return TextRefusal(Problem("not_found", text))
    if "BadRequestError" in kinds:
        return TextRefusal(Problem("malformed", text))
    return UpstreamError(text)


def _chain(error: BaseException | None) -> list[BaseException]:
    """An error and the errors that caused it."""
    errors: list[BaseException] = []
    while error is not None and error not in errors:
        errors.append(error)
        error = error.__cause__ or error.__context__
    return errors


def _retry_after(error: Exception) -> float:
    for one in _chain(error):
        headers = getattr(getattr(one, "response", None), "headers", None) or {}
        if str(headers.get("retry-after", "")).isdecimal():
            return float(headers["retry-after"])
    return 1.0
