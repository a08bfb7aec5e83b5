"""The part of vLLM's completions protocol that this engine serves.

Unsupported options are refused, never ignored: they may only have their neutral value.
"""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trainers.engine.sequence import SequenceSampling

_NEUTRAL: dict[str, tuple[object, ...]] = {
    "allowed_token_ids": (None,),
    "bad_words": (None, []),
    "best_of": (None, 1),
    "echo": (False,),
    "frequency_penalty": (None, 0),
    "kv_transfer_params": (None,),
    "length_penalty": (1,),
    "logit_bias": (None, {}),
    "min_p": (None, 0),
    "min_tokens": (0,),
    "n": (None, 1),
    "presence_penalty": (None, 0),
    "priority": (0,),
    "prompt_embeds": (None,),
    "repetition_penalty": (None, 1),
    "response_format": (None, {"type": "text"}),
    "structured_outputs": (None,),
    "suffix": (None, ""),
    "truncate_prompt_tokens": (None,),
    "use_beam_search": (False,),
    "vllm_xargs": (None, {}),
}
"""Unsupported options with their neutral values."""

_IRRELEVANT = ("add_special_tokens", "request_id", "spaces_between_special_tokens", "user")
"""Options that are accepted because they have no effect on a prompt of token ids."""

TokenId = Annotated[int, Field(ge=0)]


class RefusalError(Exception):
    """A request this engine refuses, with the HTTP status and the name of the parameter at fault."""

    def __init__(self, message: str, *, status: int = 400, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.param = param

    def body(self) -> dict[str, Any]:
        """The error in vLLM's format."""
        kind = (
            "NotFoundError"
            if self.status == 404
            else "BadRequestError"
            if self.status < 500
            else "InternalServerError"
        )
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.status}}


class StreamOptions(BaseModel):
    """Which usage chunks a stream has."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    include_usage: bool = False
    """End with a chunk that has usage and no choices."""
    continuous_usage_stats: bool = False
    """Usage on every chunk."""


class CompletionRequest(BaseModel):
    """Body of `POST /v1/completions`, named as in vLLM."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    model: str | None = None
    prompt: list[TokenId] = Field(min_length=1)
    max_tokens: int | None = Field(default=16, ge=0)
    """None: as many as fit. 0 only scores the prompt."""
    temperature: float | None = Field(default=None, ge=0, le=100)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1)
    """0 or -1: all."""
    stop_token_ids: list[TokenId] | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    ignore_eos: bool = False
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    logprobs: int | None = Field(default=None, ge=0, le=20)
    prompt_logprobs: int | None = Field(default=None, ge=0, le=20)
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    cache_salt: str | None = None
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    detokenize: bool = True

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """Stop strings, empty ones left out."""
        return tuple(
            stop for stop in ([self.stop] if isinstance(self.stop, str) else self.stop or ()) if stop
        )

    def sampling(self, max_length: int, vocab_size: int) -> SequenceSampling:
        """Checked sampling parameters. Raises `RefusalError` if prompt and completion do not fit in
        `max_length` tokens.
        """
        if max(self.prompt) >= vocab_size:
            raise RefusalError(f"Token id {max(self.prompt)} is out of vocabulary", param="prompt")
        length = len(self.prompt)
        room = max_length - len(self.prompt)
        asked = room if self.max_tokens is None else max(1, self.max_tokens)
        if room < 1 or asked > room:
            asked = max(asked, 1)
            raise RefusalError(
                f"This model's maximum context length is {max_length} tokens. However, you requested "
                f"{length + asked} tokens ({length} in the prompt, {asked} in the completion). Please reduce "
                "the length of the prompt or completion.",
                param="prompt",
            )
        if self.stream_options and not self.stream:
            raise RefusalError(
                "Stream options can only be defined when `stream=True`.", param="stream_options"
            )
        return SequenceSampling(
            max_tokens=asked,
            temperature=1.0 if self.temperature is None else self.temperature,
            top_k=max(0, self.top_k or 0),
            top_p=1.0 if self.top_p is None else self.top_p,
            stop_token_ids=frozenset(self.stop_token_ids or ()),
            stop=self.stop_strings,
            seed=self.seed,
            ignore_eos=self.ignore_eos,
            logprobs=min(self.logprobs or 0, vocab_size),
            prompt_logprobs=None if self.prompt_logprobs is None else min(self.prompt_logprobs, vocab_size),
        )


def parse_request(raw: object, names: tuple[str, ...]) -> CompletionRequest:
    """A checked request. Raises `RefusalError`, also for a model that is not in `names`."""
    if not isinstance(raw, dict):
        raise RefusalError("The request body must be a JSON object.")
    prompt = raw.get("prompt")
    if isinstance(prompt, str) or (
        isinstance(prompt, list) and any(not isinstance(item, int) for item in prompt[:1])
    ):
        raise RefusalError(
            "This engine takes one prompt as a list of token ids; text and batches are not served.",
            param="prompt",
        )
    body = {name: value for name, value in raw.items() if name not in _IRRELEVANT}
    for name in _NEUTRAL.keys() & body.keys():
        if body.pop(name) not in _NEUTRAL[name]:
            raise RefusalError(f"`{name}` is not supported by this engine.", param=name)
    try:
        request = CompletionRequest.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise RefusalError(f"{where}: {first['msg']}", param=where) from error
    if request.model is not None and request.model not in names:
        raise RefusalError(f"The model `{request.model}` does not exist.", status=404, param="model")
    return request
