"""Answers of calls, decoded from the sampled tokens with the tokenizer and template of the policy.

The store names the policy's folder. If it is missing, the tokens cannot be decoded, and the answer says why.
Answers of outside models are also stored as text.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self

from sqlalchemy import Connection

from harnessgym.errors import ConfigError, HarnessGymError
from harnessgym.message import Message, ToolCall, ToolSpec
from harnessgym.registry import load
from harnessgym.store import policies, rollout_tokens
from harnessgym.store.bodies import StoredBodies
from harnessgym.store.facts import CallFacts, RolloutFacts, run_config_of
from harnessgym.tokens import IdArray

AnswerSource = Literal["tokens", "body", "replay"]
"""tokens: decoded from the sampled tokens. body: the answer that the outside model sent. replay: the answer
as the harness sent it back in a later request, which may lack something."""


@dataclass(frozen=True, slots=True)
class ReadAnswer:
    """The answer of a call, if it is known."""

    message: Message | None = None
    source: AnswerSource | None = None
    missing: str | None = None
    """Why the message is missing, if there should be one."""


@dataclass
class Languages:
    """Languages (tokenizer, template and parser) of policies. Each folder is read once."""

    folder: Path | None = None
    """Folder to use for a rollout's own policy instead of the one that the store names."""
    folders: Mapping[str, Path] = field(default_factory=dict)
    """Folders to use instead, by name of the policy."""
    parser: str | None = None
    """Parser to use instead of the one that the run's settings name."""
    renderer: str = "auto"
    _known: dict[tuple[Path, str], Any] = field(default_factory=dict)

    @classmethod
    def of(cls, values: Sequence[str] | None) -> Self:
        """Parse the values of an option: `FOLDER`, or `NAME=FOLDER` for one of several policies.

        Raises `ConfigError` if a policy is given two folders.
        """
        named: dict[str, Path] = {}
        for text in values or ():
            name, equals, folder = text.partition("=")
            key = name if equals and "/" not in name else ""
            if key in named:
                raise ConfigError(
                    f"Two folders are given for {f'the policy {key!r}' if key else 'the policy'}: leave one "
                    "out."
                )
            named[key] = Path(folder if key else text)
        return cls(named.pop("", None), named)

    def of_rollout(self, conn: Connection, rollout: RolloutFacts, policy_id: str | None = None) -> Any:
        """Return the language of a rollout's policy, or of another policy of its run.

        If there is none, returns a text that says why.
        """
        policy_id = policy_id or rollout.policy_id
        override = self._chosen_folder(conn, rollout, policy_id)
        folders = _folders(conn, rollout, policy_id) if override is None else [override]
        usable = [folder for folder in folders if (folder / "tokenizer.json").is_file()]
        if not usable:
            named = ", ".join(map(str, folders)) or "the store names none"
            return f"there is no folder with the policy's tokenizer ({named}): give one to decode its answers"
        key = usable[0], self.parser or _parser(conn, rollout, policy_id)
        if key not in self._known:
            try:
                language = load("language", "policy").of_policy(*key, self.renderer)
            except HarnessGymError as error:
                language = f"the policy folder {usable[0]} cannot be read: {error}"
            self._known[key] = language
        return self._known[key]

    def _chosen_folder(self, conn: Connection, rollout: RolloutFacts, policy_id: str) -> Path | None:
        """Return the folder to use instead of the stored ones; None if none was given."""
        if self.folders:
            names = {id_: name for name, id_ in policies.of_run(conn, rollout.run_id).items()}
            if names.get(policy_id) in self.folders:
                return self.folders[names[policy_id]]
        return self.folder if policy_id == rollout.policy_id else None


@dataclass
class CallCompletions:
    """The answers of one rollout's calls."""

    _languages: Mapping[str | None, Any]
    """Language by policy id (None is the rollout's own), or a text that says why there is none."""
    _ids: Mapping[str, IdArray]
    """Sampled ids by segment id."""
    _told: StoredBodies

    @classmethod
    def load(cls, conn: Connection, rollout: RolloutFacts, languages: Languages) -> "CallCompletions":
        """Read a rollout's sampled tokens, its stored answers and the languages of its policies."""
        ids = rollout_tokens.completions_of(conn, rollout.id)
        called = rollout_tokens.policies_called(conn, rollout.id)
        known = {policy_id: languages.of_rollout(conn, rollout, policy_id) for policy_id in {None, *called}}
        return cls(known, ids, StoredBodies.load(conn, rollout.id, "answer"))

    def of_call(
        self,
        call: CallFacts,
        *,
        id_prefix: str,
        tools: bool,
        raw: bool,
        offered: Sequence[ToolSpec] = (),
    ) -> ReadAnswer:
        """Return a call's answer.

        Ids of tool calls begin with `id_prefix`. Without `tools`, tool calls are not parsed; `offered` are
        those of the request, if it is known. With `raw`, the answer is plain text and nothing is parsed.
        """
        ids = self._ids.get(call.completion_segment or "", ())
        body = self._told.of_call(call.id)
        language = self._languages[call.policy_id]
        if isinstance(language, str):
            if body is not None:
                return ReadAnswer(_message_in(body), "body")
            return ReadAnswer(missing=language if len(ids) else None)
        if not len(ids):
            return ReadAnswer() if body is None else ReadAnswer(_message_in(body), "body")
        if raw:
            message = _raw(language, ids)
        else:
            parser = language.parser(call_prefix=id_prefix, tools=tools, offered=offered)
            parser.feed(list(map(int, ids)))
            message = parser.finish()
        return ReadAnswer(
            replace(message, content=_before(call.sampling.get("stop", ()), message.content)), "tokens"
        )

    def text(self, call: CallFacts, ids: Sequence[int]) -> str | None:
        """Decode tokens of a call's policy; None if its language is missing."""
        language = self._languages[call.policy_id]
        return None if isinstance(language, str) else _text(language, ids)


def _raw(language: Any, ids: IdArray | tuple[()]) -> Message:
    ended = frozenset(language.stop_token_ids)
    return Message("assistant", _text(language, [token for token in map(int, ids) if token not in ended]))


def _text(language: Any, ids: Sequence[int]) -> str:
    written: bytes = language.renderer.written(list(ids))
    return written.decode("utf-8", "replace")


def _folders(conn: Connection, rollout: RolloutFacts, policy_id: str) -> list[Path]:
    """Return the folders that may hold a policy's files: the run's source first, then its newest version."""
    path = _section(conn, rollout, policy_id).get("path")
    folders = [Path(path)] if isinstance(path, str) else []
    published = policies.latest(conn, policy_id)
    return folders if published is None or "://" in published.path else [*folders, Path(published.path)]


def _parser(conn: Connection, rollout: RolloutFacts, policy_id: str) -> str:
    """Return the name of the parser with which a policy's answers were read."""
    return str(_section(conn, rollout, policy_id).get("parser", "auto"))


def _section(conn: Connection, rollout: RolloutFacts, policy_id: str) -> Mapping[str, Any]:
    """Return what the settings of a rollout's run say about a policy."""
    config = run_config_of(conn, rollout.run_id)
    named = config.get("policy")
    if policy_id != rollout.policy_id:
        names = {id_: name for name, id_ in policies.of_run(conn, rollout.run_id).items()}
        named = next(
            (each for each in config.get("policies", ()) if each["name"] == names.get(policy_id)), None
        )
    # Runs of other commands than `train` have the folder alone.
    return named if isinstance(named, dict) else {"path": named, "parser": config.get("parser", "auto")}


def _message_in(body: bytes) -> Message | None:
    """Return the message of a stored `chat.completion`; None if the body is not one."""
    try:
        message = json.loads(body)["choices"][0]["message"]
        made = tuple(
            ToolCall(
                call.get("id") or "", call["function"]["name"], call["function"].get("arguments") or "{}"
            )
            for call in message.get("tool_calls") or ()
        )
    except (ValueError, LookupError, TypeError, AttributeError):
        return None
    return Message(
        "assistant",
        message.get("content") or "",
        reasoning=message.get("reasoning_content") or "",
        tool_calls=made,
    )


def _before(stops: Sequence[str], text: str) -> str:
    """Return the text before the first stop string. Clients do not see the rest."""
    return text[: min((at for stop in stops if stop and (at := text.find(stop)) >= 0), default=len(text))]
