"""The `generationConfig` of a Gemini request: sampling fields, limits, the form of the answer.

Numbers are read as the protocol's JSON has them: integers and floats may be strings, and an integer may be
written with a fraction of zero.
"""

import json
import math
from typing import Any

from proxies.dialect import OutputFormat
from proxies.dialects.body import Fields, malformed, unsupported
from proxies.dialects.gemini.contents import camel, json_schema, only_known

_ASKED = (
    "temperature", "topP", "topK", "seed", "maxOutputTokens", "stopSequences", "presencePenalty",
    "frequencyPenalty",
    "mediaResolution",
)  # fmt: skip
_CONFIG = frozenset(
    {*_ASKED, "candidateCount", "responseMimeType", "responseSchema", "responseJsonSchema",
        "responseModalities",
     "thinkingConfig", "responseLogprobs", "logprobs"}
)  # fmt: skip
_CONFIG_REFUSED = (
    "responseLogprobs", "logprobs", "speechConfig", "imageConfig", "enableEnhancedCivicAnswers",
    "routingConfig",
    "modelSelectionConfig", "audioTimestamp", "continuationToken", "audioTranscriptionConfig",
    "generationOutputConfig",
)  # fmt: skip
_FLOATS = ("temperature", "topP", "topK", "presencePenalty", "frequencyPenalty")
"""The clients' types have `topK` as a float."""
_INTEGERS = ("seed", "maxOutputTokens", "candidateCount", "thinkingBudget")
_INT32 = 2**31


def read_number(fields: Fields, name: str) -> float | None:
    """A finite number, if given; those that are integers as an `int`. Raises `RequestProblem`."""
    value = fields.raw.get(name)
    if value is None:
        return None
    whole = name in _INTEGERS
    number = _number(value)
    if number is None or (whole and not (number == int(number) and -_INT32 <= number < _INT32)):
        kind = "TYPE_INT32" if whole else "TYPE_FLOAT"
        malformed(f"Invalid value at '{fields.at(name)}' ({kind}), {json.dumps(value)}")
    return int(number) if whole else number


def _number(value: Any) -> float | None:
    """A JSON number or the text of one, if it is finite."""
    try:
        number = json.loads(value) if isinstance(value, str) else value
        if isinstance(number, int | float) and not isinstance(number, bool) and math.isfinite(number):
            return number
    except (ValueError, OverflowError, RecursionError):
        pass
    return None


def read_positive(fields: Fields, name: str) -> int | None:
    """An integer of at least 1, if given. Raises `RequestProblem`."""
    value = read_number(fields, name)
    if value is not None and value < 1:
        malformed(f"{fields.at(name)}: expected an integer of at least 1.")
    return None if value is None else int(value)


def read_asked(config: Fields) -> dict[str, Any]:
    """The sampling fields as they were sent, including whether to show thoughts.

    Raises `RequestProblem` for fields that are not supported, and for what is not a number where one must be.
    """
    config.refuse(_CONFIG_REFUSED)
    only_known(config, _CONFIG)
    if any(
        modality not in ("TEXT", "MODALITY_UNSPECIFIED") for modality in config.texts("responseModalities")
    ):
        unsupported(f"{config.at('responseModalities')}: only TEXT is supported by this endpoint.")
    asked = {name: config.raw[name] for name in _ASKED if name in config.raw}
    for name in (*_FLOATS, *_INTEGERS):
        read_number(config, name)
    if config.given("thinkingConfig"):
        thinking = camel(config.child("thinkingConfig"))
        read_number(thinking, "thinkingBudget")
        asked["thinkingConfig"] = {**thinking.raw, "includeThoughts": thinking.flag("includeThoughts")}
    return asked


def read_candidates(config: Fields) -> int:
    """The number of answers to sample. Raises `RequestProblem` above the limit."""
    wanted = read_positive(config, "candidateCount") or 1
    if wanted > 8:
        malformed(
            f"{config.at('candidateCount')}: the specified candidate count must be in the range [1, 9)."
        )
    return wanted


def read_output(config: Fields) -> OutputFormat | None:
    """The JSON that an answer must be, if any. Raises `RequestProblem`."""
    mime = config.text("responseMimeType", "")
    schemas = [name for name in ("responseSchema", "responseJsonSchema") if config.given(name)]
    if mime not in ("", "text/plain", "application/json"):
        unsupported(f"{config.at('responseMimeType')}: {mime!r} is not supported by this endpoint.")
    if len(schemas) > 1:
        malformed(f"{config.at('responseJsonSchema')}: cannot be set together with responseSchema.")
    if schemas and mime != "application/json":
        malformed(
            f"{config.at(schemas[0])}: only with responseMimeType 'application/json' can a schema be set."
        )
    if mime != "application/json":
        return None
    if not schemas:
        return OutputFormat()
    return OutputFormat(schema=json_schema(config.child(schemas[0]).raw))
