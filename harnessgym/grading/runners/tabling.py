"""A lookup table of calls: records what functions answer, or answers calls that were recorded before.

It runs inside a package whose functions are decorated with `tabled(name, everywhere)`. The first line of the
file `_calls.table` beside it is `record N`, and a table is written behind that; or `answer N`, and the table
behind that answers. A process reads N values in arguments, and then calls functions as they are. A call in
the table gets the recorded result, exception or items of a generator, and the recorded changes of its
arguments. All others run the function itself, and so do all in tests of files named `*_untabled.py`. What
prints or warns is not recorded.

Two calls are one if their arguments have the same content, private attributes included. Results are pickled;
an object that was an argument, or lies in one, is stored by its position there. A table is unpickled
only in a sandbox whose other code is no more trusted.
"""

from __future__ import annotations

import binascii
import builtins
import collections
import contextlib
import functools
import hashlib
import io
import os
import pickle
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

_NODES = 500
"""Most values in the arguments of one call."""
_CALLS = 1_000
"""Most recorded calls of one function and process."""
_ITEMS = 1_000
"""Most items of a recorded generator."""
_BYTES = 8 << 20
"""Most bytes of a table."""
_PLAIN: tuple[type, ...] = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    type(...),
    type(NotImplemented),
)
_MEMORY = (io.StringIO, io.BytesIO)


class Unknown(Exception):
    """Arguments whose content cannot be known."""

    def __init__(self, size: int = 0) -> None:
        """`size` is the number of values that were read in them."""
        super().__init__(size)
        self.size = size


class Arguments:
    """The content of a call's arguments, as a text, and the objects in them, in the order of a walk."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raises Unknown."""
        self.objects: list[Any] = []
        self._number: dict[int, int] = {}
        self.size = 0
        self._parts: list[str] = []
        try:
            self._walk([*args, *sorted(kwargs.items())])
        except Exception as error:
            raise Unknown(self.size) from error
        self.text = "".join(self._parts)

    def position(self, value: object) -> int | None:
        """Where an object is in the walk; None if it is not in the arguments."""
        return self._number.get(id(value))

    def _walk(self, value: Any) -> None:
        self.size += 1
        if self.size > _NODES:
            raise Unknown
        kind = type(value)
        if kind in _PLAIN:
            self._parts.append(f"{kind.__name__} {value!r},")
            return
        if (number := self._number.get(id(value))) is not None:
            self._parts.append(f"again {number},")
            return
        self._number[id(value)] = len(self.objects)
        self.objects.append(value)
        # A variant of a test has another module than the test.
        module = "" if kind.__module__.rpartition(".")[2].startswith("test_") else kind.__module__
        self._parts.append(f"{module}.{kind.__qualname__}(")
        if isinstance(value, type | types.BuiltinFunctionType | types.ModuleType):
            self._parts.append(getattr(value, "__qualname__", None) or value.__name__)
        elif isinstance(value, types.FunctionType):
            self._function(value)
        elif isinstance(value, types.MethodType):
            self._walk(value.__func__)
            self._walk(value.__self__)
        elif isinstance(value, _MEMORY):
            self._parts.append(f"{_items(value)!r}")
        elif isinstance(value, types.GeneratorType | io.IOBase):
            raise Unknown
        else:
            self._content(value)
        self._parts.append(")")

    def _function(self, value: types.FunctionType) -> None:
        code = value.__code__
        constants = [each for each in code.co_consts if type(each) in _PLAIN]
        digest = hashlib.sha256(code.co_code).hexdigest()
        self._parts.append(f"{value.__qualname__} {digest} {constants!r} {code.co_names!r}")
        for cell in value.__closure__ or ():
            self._walk(cell.cell_contents)
        self._walk(value.__defaults__)

    def _content(self, value: Any) -> None:
        base = next((kind for kind in _PLAIN if isinstance(value, kind)), None)
        items = _items(value)
        if base is not None:
            self._parts.append(str.__repr__(value) if base is str else repr(base(value)))
        elif items is not None:
            for each in items:
                self._walk(each)
        elif _is_plain_object(type(value)):
            # A type written in C may have more content than its attributes. Then this fails.
            object.__reduce_ex__(value, 2)
        else:
            for each in value.__reduce_ex__(2)[:4]:
                self._walk(list(each) if isinstance(each, Iterator) else each)
        for name, item in sorted(_fields(value).items()):
            self._parts.append(f"{name}=")
            self._walk(item)


def _is_plain_object(kind: Any) -> bool:
    """Whether objects of a type are pickled as nothing but their attributes."""
    return kind.__reduce_ex__ is object.__reduce_ex__ and kind.__reduce__ is object.__reduce__


def _items(value: Any) -> Any:
    """The items of a container; None for anything else."""
    if isinstance(value, dict):
        return [each for pair in dict.items(value) for each in pair]
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    if isinstance(value, list | tuple | collections.deque | bytearray):
        return list(value)
    if isinstance(value, _MEMORY):
        return [value.getvalue(), value.tell()]
    return None


def _fields(value: Any) -> dict[str, Any]:
    fields = dict(getattr(value, "__dict__", None) or {})
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else tuple(slots):
            try:
                fields[name] = object.__getattribute__(value, name)
            except AttributeError:
                continue
    return {name: item for name, item in fields.items() if name not in ("__dict__", "__weakref__")}


def _state(value: Any) -> Any:
    """What can be changed of an object."""
    fixed = isinstance(value, type | types.FunctionType | types.ModuleType)
    return _items(value), {} if fixed else _fields(value)


def _restore(value: Any, state: Any) -> None:
    """Gives an object this state."""
    items, fields = state
    if isinstance(value, dict):
        dict.clear(value)
        for key, item in zip(items[::2], items[1::2], strict=True):
            dict.__setitem__(value, key, item)
    elif isinstance(value, set):
        set.clear(value)
        set.update(value, items)
    elif isinstance(value, list):
        list.__setitem__(value, slice(None), items)
    elif isinstance(value, bytearray):
        value[:] = bytes(items)
    elif isinstance(value, collections.deque):
        value.clear()
        value.extend(items)
    elif isinstance(value, _MEMORY):
        value.seek(0)
        value.truncate()
        value.write(items[0])
        value.seek(items[1])
    for name in _fields(value).keys() - fields.keys():
        object.__delattr__(value, name)
    for name, item in fields.items():
        object.__setattr__(value, name, item)


class _Pickler(pickle.Pickler):
    """Stores arguments by position, and values that a module holds by its name there: a sentinel, for one,
    is compared by identity.
    """

    def __init__(self, file: Any, arguments: Arguments) -> None:
        super().__init__(file, 4)
        self._arguments = arguments

    def persistent_id(self, value: Any) -> Any:
        position = self._arguments.position(value)
        module = sys.modules.get(getattr(type(value), "__module__", ""))
        named = isinstance(value, type | types.FunctionType) or type(value) in _PLAIN
        if position is not None or named or module in (None, builtins):
            return position
        names = (name for name, held in vars(module).items() if held is value)
        name = next(names, None)
        return None if name is None else (getattr(module, "__name__", ""), name)


class _Unpickler(pickle.Unpickler):
    """Reads what `_Pickler` wrote."""

    def __init__(self, file: Any, arguments: Arguments) -> None:
        super().__init__(file)
        self._objects = arguments.objects

    def persistent_load(self, key: Any) -> Any:
        if isinstance(key, int):
            return self._objects[key]
        return getattr(sys.modules[key[0]], key[1])


class CallTable:
    """The table of one process."""

    def __init__(self, path: str) -> None:
        self._path = path
        with open(path, "rb") as file:
            mode, most = file.readline().split()
            self.records = mode == b"record"
            # A limit of time would make the table depend on the load.
            self._most = int(most)
            self._answers: dict[str, bytes] = {}
            self._functions: collections.Counter[str] = collections.Counter()
            for line in file:
                # A test that is killed while it writes leaves a part of a line.
                with contextlib.suppress(ValueError):
                    key, name, answer = line.split()
                    self._answers.setdefault(key.decode(), binascii.a2b_base64(answer, strict_mode=True))
                    self._functions[name.decode()] += 1
        self._busy = False
        self._read = 0
        self.depth = 0

    def run(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls a function itself."""
        self.depth += 1
        try:
            return function(*args, **kwargs)
        finally:
            self.depth -= 1

    def call(
        self, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Calls a function, or answers in its place."""
        run = functools.partial(self.run, function, args, kwargs)
        known = self._functions[name]
        unused = known >= _CALLS if self.records else not known
        if self._busy or unused or self._read > self._most:
            return run()
        if not self.records and "_untabled.py" in os.environ.get("PYTEST_CURRENT_TEST", ""):
            return run()
        try:
            with self._working():
                arguments = Arguments(args, kwargs)
                self._read += arguments.size
                key = hashlib.sha256(f"{name}\n{arguments.text}".encode(errors="surrogatepass")).hexdigest()
                answer = self._answers.get(key)
                before = self._states(arguments) if self.records and answer is None else []
        except Unknown as error:
            self._read += error.size
            return run()
        if self.records and answer is None:
            self._functions[name] += 1
            return self._recorded(name, key, arguments, before, run)
        return run() if self.records or answer is None else self._answered(answer, arguments, run)

    @contextlib.contextmanager
    def _working(self) -> Iterator[None]:
        """Around what reads objects of the package, whose methods are decorated too."""
        self._busy = True
        try:
            yield
        finally:
            self._busy = False

    def _states(self, arguments: Arguments) -> list[bytes | None]:
        return [_packed(_state(each), arguments) for each in arguments.objects]

    def _recorded(
        self, name: str, key: str, arguments: Arguments, before: list[Any], run: Callable[[], Any]
    ) -> Any:
        effects = _effects()

        def keep(kind: str, value: object) -> None:
            if effects != _effects():
                return
            with self._working():
                after = self._states(arguments)
                changed = {
                    at: each for at, each in enumerate(after) if each is not None and each != before[at]
                }
                packed = _packed((kind, value), arguments)
                if packed is not None:
                    self._write(key, name, pickle.dumps((packed, changed)))

        try:
            value = run()
        except Exception as error:
            keep("raised", (type(error), error.args, dict(vars(error))))
            raise
        if isinstance(value, types.GeneratorType):
            return self._items(value, keep)
        keep("returned", value)
        return value

    def _items(self, generator: Iterator[Any], keep: Callable[[str, object], None]) -> Iterator[Any]:
        items: list[Any] = []
        whole = False
        try:
            for item in generator:
                if len(items) < _ITEMS:
                    items.append(item)
                yield item
            whole = len(items) < _ITEMS
        finally:
            keep("yielded", (items, whole))

    def _answered(self, answer: bytes, arguments: Arguments, run: Callable[[], Any]) -> Any:
        kind = ""
        value: Any = None
        # Objects of the package run its code when they are made again.
        with self._working(), contextlib.suppress(Exception):
            packed, changed = pickle.loads(answer)  # noqa: S301
            states = {at: _unpacked(each, arguments) for at, each in changed.items()}
            result = _unpacked(packed, arguments)
            for at, state in states.items():
                _restore(arguments.objects[at], state)
            kind, value = result
        if kind == "returned":
            return value
        if kind == "yielded":
            items, whole = value
            return self._again(items, whole, run)
        if kind == "raised":
            error = value[0].__new__(value[0], *value[1])
            error.args = value[1]
            vars(error).update(value[2])
            raise error
        return run()

    def _again(self, items: list[Any], whole: bool, run: Callable[[], Any]) -> Iterator[Any]:
        yield from items
        if not whole:
            rest = run()
            for _ in items:
                next(rest, None)
            yield from rest

    def _write(self, key: str, name: str, answer: bytes) -> None:
        if key not in self._answers:
            self._answers[key] = answer
            with open(self._path, "ab") as file:
                if file.tell() < _BYTES:
                    file.write(b"%s %s %s" % (key.encode(), name.encode(), binascii.b2a_base64(answer)))


_WARNED = [0]


def _effects() -> tuple[object, ...]:
    """Changes when something is printed or warned of, which a recorded answer would leave out."""
    return _WARNED[0], *(_written(stream) for stream in (sys.stdout, sys.stderr))


def _written(stream: Any) -> int:
    try:
        return int(stream.tell())
    except (OSError, ValueError, AttributeError):
        return 0


def _count_warnings() -> None:
    warn = warnings.warn

    def counting(
        message: Any, category: Any = None, stacklevel: int = 1, source: Any = None, **kwargs: Any
    ) -> None:
        _WARNED[0] += 1
        warn(message, category, stacklevel + 1, source, **kwargs)

    warnings.warn = counting


def _packed(value: Any, arguments: Arguments) -> bytes | None:
    file = io.BytesIO()
    try:
        pickler = _Pickler(file, arguments)
        pickler.dump(value)
        _unpacked(file.getvalue(), arguments)
    except Exception:  # noqa: BLE001  # whatever a value does when it is pickled
        return None
    return file.getvalue()


def _unpacked(packed: bytes, arguments: Arguments) -> Any:
    return _Unpickler(io.BytesIO(packed), arguments).load()


_TABLE = CallTable(os.path.join(os.path.dirname(os.path.abspath(__file__)), "_calls.table"))
if _TABLE.records:
    _count_warnings()


def tabled(name: str, everywhere: bool) -> Callable[[Any], Any]:
    """A decorator for the function of this name.

    Its calls are in the table `everywhere`, or only if no other decorated function makes them.
    """

    def decorate(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if everywhere or not _TABLE.depth:
                return _TABLE.call(name, function, args, kwargs)
            return function(*args, **kwargs)

        return wrapper

    return decorate
