"""Routed experts as engines put them on the wire.

vLLM, run with `--enable-return-routed-experts`, sends the base64 of a `.npy` file: uint8 or uint16
[prompt + completion - 1, layers, top_k], zeros in layers without experts. SGLang sends the base64 of int32
numbers for as many tokens, without a shape. Read on 2026-11-29 in vLLM 0.32.0's
`entrypoints/scale_out/token_in_token_out/serving.py`, and in SGLang's `managers/detokenizer_manager.py` and
`docs/basic_usage/openai_api_completions.md`.
"""

import base64
import binascii
import io

import numpy as np
import numpy.typing as npt

from harnessgym.errors import UpstreamError
from harnessgym.routed_experts import ExpertArray


def from_npy(text: str) -> ExpertArray:
    """What vLLM sends, [tokens, layers, top_k]. Raises `UpstreamError` if it is not that."""
    try:
        experts = np.load(io.BytesIO(base64.b64decode(text, validate=True)), allow_pickle=False)
    except (binascii.Error, ValueError, EOFError) as error:
        raise UpstreamError(
            f"The engine sent routed experts that are no .npy file in base64: {error}"
        ) from error
    if experts.ndim != 3 or not np.issubdtype(experts.dtype, np.integer):
        raise UpstreamError(
            f"The engine sent routed experts of shape {list(experts.shape)}, not [tokens, layers, top_k]."
        )
    return _narrow(experts)


def from_int32(text: str, tokens: int) -> ExpertArray:
    """What SGLang sends for that many tokens, as [tokens, 1, layers * top_k]. Raises `UpstreamError` if it is
    not that.
    """
    try:
        numbers = np.frombuffer(base64.b64decode(text, validate=True), "<i4")
        return _narrow(numbers.reshape(tokens, 1, -1))
    except (binascii.Error, ValueError) as error:
        raise UpstreamError(
            f"The engine sent routed experts that are no int32 numbers of {tokens} tokens: {error}"
        ) from error


def _narrow(experts: npt.NDArray[np.integer]) -> ExpertArray:
    low, high = int(experts.min(initial=0)), int(experts.max(initial=0))
    if low < 0 or high >= 1 << 16:
        raise UpstreamError(f"The engine sent routed experts from {low} to {high}.")
    return experts.astype(np.uint8) if high < 1 << 8 else experts.astype(np.uint16)
