"""Typed reading of a JSON request body: every wrong field becomes a `RequestProblem` that names it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter, countOf
from typing import Any, NoReturn, TypeVar

from harnessgym.message import Message
from proxies import strict_json
from proxies.dialect import Problem, RequestProblem
from proxies.reading import Made, ReadBody

T = TypeVar("T")
_NUMBERS = frozenset(
    {
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "seed",
    }
)
"""Fields of sampling. Gemini's are read elsewhere: its JSON may write numbers as strings."""


def malformed(message: str) -> NoReturn:
    """Refuse a request that breaks the protocol."""
    raise RequestProblem(Problem("malformed", message))


def unsupported(message: str) -> NoReturn:
    """Refuse a request for something this endpoint does not support."""
    raise RequestProblem(Problem("unsupported", message))


class Fields:
    """A JSON object of a request and its path in the body, e.g. `messages[2].content[0]`."""

    def __init__(self, value: Any, path: str = "") -> None:
        if not isinstance(value, dict):
            malformed(f"{path or 'The request body'}: expected an object, got {_kind(value)}.")
        self.raw: dict[str, Any] = value
        self.path = path
        self._body: ReadBody | None = None

    @classmethod
    def parse(cls, body: bytes) -> "Fields":
        """Parse a request body, which must be a JSON object."""
        if isinstance(body, ReadBody):
            fields = cls(body.value)
            fields._body = body
            return fields
        try:
            value = strict_json.loads_lenient(body.decode())
        except ValueError as error:
            malformed(f"The request body is not valid JSON: {error}")
        return cls(value)

    def at(self, name: str) -> str:
        """The path of a field."""
        return f"{self.path}.{name}" if self.path else name

    def given(self, name: str) -> bool:
        """Whether a field is present and not null."""
        return self.raw.get(name) is not None

    def need(self, name: str) -> Any:
        """The value of a required field."""
        if not self.given(name):
            malformed(f"{self.at(name)}: Field required")
        return self.raw[name]

    def text(self, name: str, default: str | None = None) -> str:
        """A string; without `default` it is required."""
        value = self.need(name) if default is None else self.raw.get(name)
        if value is None:
            return default or ""
        if not isinstance(value, str):
            malformed(f"{self.at(name)}: expected a string, got {_kind(value)}.")
        return value

    def flag(self, name: str, *, default: bool = False) -> bool:
        """A boolean; `default` when absent."""
        value = self.raw.get(name)
        if value is not None and not isinstance(value, bool):
            malformed(f"{self.at(name)}: expected a boolean, got {_kind(value)}.")
        return default if value is None else value

    def count(self, name: str) -> int | None:
        """A positive integer, if given."""
        value = self.raw.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            malformed(f"{self.at(name)}: expected an integer of at least 1.")
        return value

    def child(self, name: str) -> "Fields":
        """An object; empty when absent."""
        return Fields(self.raw[name] if self.given(name) else {}, self.at(name))

    def children(self, name: str) -> list["Fields"]:
        """An array of objects; empty when absent."""
        value = self.raw.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            malformed(f"{self.at(name)}: expected an array, got {_kind(value)}.")
        return [Fields(item, f"{self.at(name)}[{index}]") for index, item in enumerate(value)]

    def each(self, name: str, read: Callable[["Fields"], T]) -> list[T]:
        """Apply `read` to every object in an array; empty when absent.

        Elements that an earlier body of the session had too are not read again, so `read` must be a pure
        function of the element.
        """
        path = self.at(name)
        if self._body is not None:
            made = self._body.make(name, lambda item, index: read(Fields(item, f"{path}[{index}]")))
            if made is not None:
                return made
        return [read(item) for item in self.children(name)]

    def texts(self, name: str) -> tuple[str, ...]:
        """A string or an array of strings; empty when absent."""
        value = self.raw.get(name)
        items = [value] if isinstance(value, str) else value or []
        if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
            malformed(f"{self.at(name)}: expected a string or an array of strings.")
        return tuple(items)

    def only(self, names: tuple[str, ...]) -> dict[str, Any]:
        """The named fields that were sent. Those of sampling must be numbers, as at the provider."""
        for name in _NUMBERS.intersection(names):
            value = self.raw.get(name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
                malformed(f"{self.at(name)}: expected a number, got {_kind(value)}.")
        return {name: self.raw[name] for name in names if name in self.raw}

    def refuse(self, names: tuple[str, ...]) -> None:
        """Refuse the request if it uses any of these unsupported fields."""
        # Clients send defaults such as `false` or `[]` explicitly; those ask for nothing.
        for name in names:
            if self.raw.get(name) not in (None, False, [], {}):
                unsupported(f"{self.at(name)}: not supported by this endpoint.")


def public_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The request headers without those that carry secrets."""
    return {name: value for name, value in headers.items() if name not in _SECRET_HEADERS}


def bearer(headers: Mapping[str, str]) -> str | None:
    """The token of an `Authorization: Bearer` header."""
    scheme, _, token = headers.get("authorization", "").strip().partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


_SECRET_HEADERS = frozenset({"authorization", "x-api-key", "x-goog-api-key", "cookie", "proxy-authorization"})


def _kind(value: Any) -> str:
    return "null" if value is None else type(value).__name__


_ROLE = attrgetter("role")


def merge_systems(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Merge adjacent system messages into one, joined by an empty line.

    Later system messages stay in place: moving them to the top would change the start of the prompt and
    break continuation.
    """
    # `Made` keeps a running count, so a long conversation is not scanned again at every turn.
    systems = (
        messages.tally(_is_system) if isinstance(messages, Made) else countOf(map(_ROLE, messages), "system")
    )
    if systems < 2:
        return tuple(messages)
    out: list[Message] = []
    for message in messages:
        if message.role == "system" and out and out[-1].role == "system":
            out[-1] = replace(out[-1], content=f"{out[-1].content}\n\n{message.content}")
        else:
            out.append(message)
    return tuple(out)


def _is_system(message: Message) -> bool:
    return message.role == "system"
