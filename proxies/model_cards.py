"""The models there are, one a policy, as each provider lists models."""

import json
import re
from dataclasses import dataclass, field
from time import time
from typing import Any

_ROUTES = re.compile(r"/(?P<api>v1|v1beta)/models(?:/(?P<name>.+))?")


@dataclass(frozen=True, slots=True)
class ModelCards:
    """Answers `GET /v1/models`, `GET /v1beta/models` and what lies below."""

    models: tuple[str, ...]
    max_length: int
    """Prompt and completion together, in tokens."""
    created: int = field(default_factory=lambda: int(time()))

    def answer(self, path: str, *, google: bool) -> bytes | None:
        """The body for a path, for a client of Google's or of the others; None if no models are listed there.

        A name that no policy has is answered with the first one: a harness may look up whichever name it was
        told.
        """
        found = _ROUTES.fullmatch(path)
        if found is None:
            return None
        google = google or found["api"] == "v1beta"
        card = self._google if google else self._card
        if found["name"] is not None:
            return json.dumps(
                card(found["name"] if found["name"] in self.models else self.models[0])
            ).encode()
        cards = [card(model) for model in self.models]
        edges = {"has_more": False, "first_id": self.models[0], "last_id": self.models[-1]}
        return json.dumps(
            {"models": cards} if google else {"object": "list", "data": cards, **edges}
        ).encode()

    def _card(self, model: str) -> dict[str, Any]:
        """What OpenAI's and Anthropic's clients read, in one."""
        card = {"id": model, "object": "model", "created": self.created, "owned_by": "harnessgym"}
        return card | {"type": "model", "display_name": model, "max_model_len": self.max_length}

    def _google(self, model: str) -> dict[str, Any]:
        return {
            "name": f"models/{model}",
            "version": "001",
            "displayName": model,
            "inputTokenLimit": self.max_length,
            "outputTokenLimit": self.max_length,
            "supportedGenerationMethods": ["generateContent", "countTokens"],
        }
