"""The settings of a model as dotted keys, for `--show-settings` and for corrections of mistyped keys.

A field may be a plain table in the model because another package reads it. It then names the model of its
content: `Field(default_factory=dict, json_schema_extra={"settings": "module:Class"})`.
"""

import ast
import difflib
import functools
import inspect
import itertools
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

_CLOSE = 0.6
_SURE = 0.85
"""Similarity of two keys: from `_CLOSE` on one may be a typo of the other, from `_SURE` on it surely is."""
_MOST = 3


def setting_rows(model: type[BaseModel]) -> list[tuple[str, str, str]]:
    """Key, default and meaning of every setting, including those of optional and repeated tables."""
    return [
        (key, "required" if field.is_required() else _default(field), meanings(owner).get(name, ""))
        for key, owner, name, field in _settings(model)
    ]


@functools.cache
def meanings(model: type[BaseModel]) -> dict[str, str]:
    """The strings under the fields of a model. They are read from its source when they are asked for:
    pydantic's `use_attribute_docstrings` reads it whenever a process imports the model.
    """
    docstrings: dict[str, str] = {}
    for owner in reversed(model.__mro__):
        if not issubclass(owner, BaseModel) or owner is BaseModel:
            continue
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
        assert isinstance(definition, ast.ClassDef)
        for field, below in itertools.pairwise(definition.body):
            match field, below:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    docstrings[name] = inspect.cleandoc(text)
    return docstrings


def _settings(
    model: type[BaseModel], prefix: str = ""
) -> Iterator[tuple[str, type[BaseModel], str, FieldInfo]]:
    """Key, model, name and field of every setting."""
    for name, field in model.model_fields.items():
        if _extra(field, "set_by") or _is_tag_field(field):
            continue
        inner = _table(field)
        key = prefix + name
        if inner is None or not (inner == field.annotation or _extra(field, "settings")):
            yield key, model, name, field
        if inner is not None:
            yield from _settings(inner, f"{key}.")


def suggestion(model: type[BaseModel], unknown: Sequence[str | int], value: Any = None) -> str:
    """A message that suggests what an unknown key may have meant.

    A setting of exactly that name in another section is preferred to a similar name in the same section.
    """
    path = [part for part in unknown if isinstance(part, str)]
    leaf = _first_leaf(path, value)
    keys = [key for key, *_ in _settings(model)]
    dotted = ".".join(leaf)
    section = ".".join(path[:-1])
    same = sorted(
        (key for key in keys if key.split(".")[-1] == leaf[-1]), key=lambda key: -_similarity(key, dotted)
    )
    if same and _similarity(same[0], dotted) > _SURE:
        same = same[:1]
    if not same:
        beside = [key for key in _with_sections(keys) if key.rpartition(".")[0] == section]
        inside = _close(dotted, keys) if len(leaf) > len(path) else []
        same = inside or _close(".".join(path), beside)
    if same:
        shown = [
            key.removeprefix(f"{section}.") if key.rpartition(".")[0] == section else key
            for key in same[:_MOST]
        ]
        return f"Did you mean {' or '.join(map(repr, shown))}?"
    if service := _service(leaf):
        return service
    return f"Known: {known_at(model, unknown[:-1])}."


def known_at(model: type[BaseModel], location: Iterable[str | int]) -> str:
    """Names of the settings in a section, as text."""
    for part in location:
        field = model.model_fields.get(str(part))
        inner = None if field is None else _table(field)
        model = inner or model
    return ", ".join(sorted(model.model_fields))


def without_tags(model: type[BaseModel], location: Sequence[str | int]) -> tuple[str | int, ...]:
    """The path of a setting as people write it, without the type names that pydantic inserts for unions."""
    at: type[BaseModel] | None = model
    field: FieldInfo | None = None
    out: list[str | int] = []
    for part in location:
        known = None if at is None else at.model_fields.get(str(part))
        if known is not None:
            out.append(part)
            field = known
            at = _table(known)
        elif isinstance(part, int) or field is None or not _is_tag(str(part), field):
            out.append(part)
    return tuple(out)


def _is_tag(part: str, field: FieldInfo) -> bool:
    return part in _type_names(field.annotation) or part.startswith(
        ("literal[", "tuple[", "dict[", "list[", "function-", "constrained-")
    )


def _type_names(annotation: Any) -> set[str]:
    """The names of the types in an annotation, those of a tuple's items included."""
    inner = get_args(annotation)
    own = {annotation.__name__} if isinstance(annotation, type) and not inner else set[str]()
    return own.union(*map(_type_names, inner))


def _first_leaf(path: Sequence[str], value: Any) -> list[str]:
    """Path of the first value in an unknown section."""
    leaf = list(path)
    while isinstance(value, Mapping) and value:
        name, value = next(iter(value.items()))
        leaf.append(str(name))
    return leaf


def _with_sections(keys: Iterable[str]) -> list[str]:
    """The keys and all their sections."""
    parts = [key.split(".") for key in keys]
    return list(dict.fromkeys(".".join(part[:end]) for part in parts for end in range(1, len(part) + 1)))


def _close(name: str, known: Sequence[str]) -> list[str]:
    return difflib.get_close_matches(name, known, n=1, cutoff=_CLOSE)


def _similarity(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()


def _service(leaf: Sequence[str]) -> str | None:
    """A message if a setting is written as the section of a command that runs a single process."""
    from harnessgym.errors import ConfigError
    from harnessgym.registry import load, names

    if leaf[0] not in names("settings"):
        return None
    try:
        known = {key for key, *_ in _settings(load("settings", leaf[0]))}
    except ConfigError:  # its package is not installed
        return None
    rest = ".".join(leaf[1:])
    if rest not in known:
        return None
    return f"`harnessgym {leaf[0]}` has the setting {rest!r}; a run starts that process itself, and sets it."


def _default(field: FieldInfo) -> str:
    """A default as text. For a secret only its environment variable, for a named table only the name."""
    if variable := _extra(field, "environment"):
        return f"${variable}"
    value = field.get_default(call_default_factory=True)
    return repr(getattr(value, "name", value) if isinstance(value, BaseModel) else value)


def _extra(field: FieldInfo, name: str) -> str | None:
    extra = field.json_schema_extra
    entry = extra.get(name) if isinstance(extra, dict) else None
    return None if entry is None else str(entry)


def _table(field: FieldInfo) -> type[BaseModel] | None:
    """The only settings class in a field: `Section`, `Section | None`, `tuple[Section, ...]`, or a named
    one.
    """
    from harnessgym.registry import load

    if named := _extra(field, "settings"):
        model: type[BaseModel] = load("settings", named)
        return model
    tables = _tables(field.annotation)
    if len(tables) != 1 or _is_one_of_several(field):
        return None
    return tables.pop()


def _is_one_of_several(field: FieldInfo) -> bool:
    """Whether a field's default is of a subclass: the name in its table then decides its other fields."""
    kind = field.annotation
    return isinstance(kind, type) and isinstance(field.default, kind) and type(field.default) is not kind


def _is_tag_field(field: FieldInfo) -> bool:
    """Whether a field has only one possible value, which identifies its table."""
    return get_origin(field.annotation) is Literal and len(get_args(field.annotation)) == 1


def _tables(annotation: Any) -> set[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return {annotation}
    return set[type[BaseModel]]().union(*map(_tables, get_args(annotation)))
