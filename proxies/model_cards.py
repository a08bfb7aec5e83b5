"""The one model there is, as each provider lists models."""

import json
import re
from dataclasses import dataclass, field
from time import time
from typing import Any

_ROUTES = re.compile(r"/(?P<api>v1|v1beta)/models(?:/(?P<name>.+))?")


@dataclass(frozen=True, slots=True)
class ModelCards:
    """Answers `GET /v1/models`, `GET /v1beta/models` and what lies below."""

    model: str
    max_length: int
    """Prompt and completion together, in tokens."""
    created: int = field(default_factory=lambda: int(time()))

    def answer(self, path: str, *, google: bool) -> bytes | None:
        """The body for a path, for a client of Google's or of the others; None if no models are listed there.

        Every name is answered with the one model: a harness may look up whichever name it was told.
        """
        found = _ROUTES.fullmatch(path)
        if found is None:
            return None
        google = google or found["api"] == "v1beta"
        card = self._google() if google else self._card()
        if found["name"] is not None:
            return json.dumps(card).encode()
        edges = {"has_more": False, "first_id": self.model, "last_id": self.model}
        return json.dumps({"models": [card]} if google else {"object": "list", "data": [card], **edges}).encode()

    def _card(self) -> dict[str, Any]:
        """What OpenAI's and Anthropic's clients read, in one."""
        card = {"id": self.model, "object": "model", "created": self.created, "owned_by": "harnessgym"}
        return card | {"type": "model", "display_name": self.model, "max_model_len": self.max_length}

    def _google(self) -> dict[str, Any]:
        return {
            "name": f"models/{self.model}",
            "version": "001",
            "displayName": self.model,
            "inputTokenLimit": self.max_length,
            "outputTokenLimit": self.max_length,
            "supportedGenerationMethods": ["generateContent", "countTokens"],
        }
