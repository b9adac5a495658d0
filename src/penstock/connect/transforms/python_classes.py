"""Transforms that are classes of Python: `transforms.x.type=python:package.module.Class`.

The code runs in the worker and in Spark's Python processes, so it comes only from the folders of the worker's own
`plugin.path`, which a connector's configuration cannot change. The prefix tells such names from Java's: a class that
this worker does not know is never imported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from decimal import Decimal
from importlib import import_module, invalidate_caches
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from penstock.codec.connect_schema import Schema
from penstock.connect.definition import Property, listed
from penstock.connect.records.json_data import require_schema
from penstock.connect.records.record import ConnectRecord, NoValue, Part, PassingFault, type_name
from penstock.connect.transforms.plugin import SIDES, TransformPlugin
from penstock.connect.transforms.steps import Shapes, part_of
from penstock.connect.worker.providers import PLUGIN_PATH
from penstock.errors import PenstockError

PREFIX = "python:"
_OWN = ("type", "predicate", "negate")
_METHODS = ("configure", "apply")
Apply = Callable[[ConnectRecord], ConnectRecord | None]


class NoClass(PenstockError):
    """A class of Python that cannot be used, and why."""


class PythonClass(NamedTuple):
    """A class of a transform's type, the folders that it may come from, and its options."""

    name: str
    paths: tuple[str, ...]
    options: Mapping[str, str]

    def apply_method(self) -> Apply:
        """The method of a new object that changes records; it raises NoValue. Raises NoClass."""
        loaded = _loaded(self.name, self.paths)
        try:
            transform = loaded()
            transform.configure(dict(self.options))
        except (Exception, SystemExit) as error:
            raise NoClass(
                f"{self.name} cannot be configured: {type(error).__name__}: {error}",
                where=PREFIX + self.name,
                next="correct the transform's options, or the class",
            ) from error

        def apply(record: ConnectRecord) -> ConnectRecord | None:
            try:
                changed = transform.apply(record)
            except (Exception, SystemExit) as error:
                kind = PassingFault if getattr(error, "retriable", False) else NoValue
                raise kind(f"{type(error).__name__}: {error}") from error
            return None if changed is None else _checked(record, changed)

        return apply


def _checked(record: ConnectRecord, changed: Any) -> ConnectRecord:
    """The changed record, at the old one's place; raises NoValue for anything else."""
    if not isinstance(changed, ConnectRecord):
        raise NoValue(f"apply returned {type(changed).__name__}, and must return a record or None")
    if not isinstance(changed.topic, str) or not isinstance(changed.headers, tuple):
        raise NoValue("apply returned a record whose topic is no text, or whose headers are no tuple")
    for part in (changed.key, changed.value, *(header[1] for header in changed.headers[len(record.headers) :])):
        if part is not record.key and part is not record.value:
            _require_part(part)
    origin = record.origin if changed.topic == record.topic else record.origin or record.topic
    return changed._replace(partition=record.partition, offset=record.offset, origin=origin)


def _require_part(part: Any) -> None:
    """Raise NoValue unless it is a part with values of the kinds that converters read."""
    if not isinstance(part, Part):
        raise NoValue(f"apply returned a key, a value or a header that is {type(part).__name__}, and no part")
    if part.schema is not None:
        require_schema(part.schema)
    try:
        _require_value(part.value)
    except RecursionError:
        raise NoValue("apply returned a value that is nested too deep") from None


def _require_value(value: Any) -> None:
    if isinstance(value, dict):
        for name, member in value.items():
            _require_value(name)
            _require_value(member)
    elif isinstance(value, list):
        for member in value:
            _require_value(member)
    elif value is not None and not isinstance(value, bool | int | float | str | bytes | Decimal):
        raise NoValue(f"apply returned a value with {type(value).__name__}, which no converter reads")


def keeping(apply: Apply, shapes: Shapes) -> Apply:
    """The same for records of a source, which registers the schemas of its records before it has one.

    So a class may change values and headers, and drop records, but it cannot change fields, their types, or the topic.
    """

    def checked(record: ConnectRecord) -> ConnectRecord | None:
        changed = apply(record)
        if changed is None:
            return None
        if changed.topic != record.topic:
            raise NoValue("in a source a class cannot change the topic: use RegexRouter")
        for side in SIDES:
            part = part_of(changed, side)
            if part.value is None:
                continue
            if part.schema is None or part.schema not in shapes.of(side):
                raise NoValue(f"in a source a class cannot change the schema of a {side}")
            _require_kind(part.schema, part.value)
        return changed

    return checked


def _require_kind(schema: Schema, value: Any) -> None:
    """Raise NoValue unless structs, maps and arrays are what a schema says, with no other fields."""
    kind = {"struct": dict, "map": dict, "array": list}.get(schema["type"])
    if value is None or kind is None:
        return
    if not isinstance(value, kind):
        raise NoValue(f"its {schema['type']} is {type_name(value)}")
    if schema["type"] == "array":
        for member in value:
            _require_kind(schema["items"], member)
    elif schema["type"] == "map":
        for member in value.values():
            _require_kind(schema["values"], member)
    else:
        fields = {member["field"]: member for member in schema["fields"]}
        if unknown := next((name for name in value if name not in fields), None):
            raise NoValue(f"in a source a class cannot add a field, such as {unknown}")
        for name, member in value.items():
            _require_kind(fields[name], member)


def classes(config: Mapping[str, str | None]) -> dict[str, TransformPlugin[PythonClass]]:
    """The classes of Python that a configuration's transforms name, by their type."""
    plugins = {}
    for alias in listed(config.get("transforms")):
        prefix = f"transforms.{alias}."
        kind = (config.get(f"{prefix}type") or "").strip()
        if kind.startswith(PREFIX):
            plugins[kind] = _plugin(kind, _options(config, prefix), _paths(config))
    return plugins


def _options(config: Mapping[str, str | None], prefix: str) -> tuple[str, ...]:
    names = (name.removeprefix(prefix) for name in config if name.startswith(prefix))
    return tuple(name for name in names if name not in _OWN)


def _paths(config: Mapping[str, str | None]) -> tuple[str, ...]:
    return tuple(listed(config.get(PLUGIN_PATH)))


def _plugin(kind: str, names: tuple[str, ...], paths: tuple[str, ...]) -> TransformPlugin[PythonClass]:
    def of(values: Mapping[str, Any]) -> PythonClass:
        chosen = {name: text for name, text in values.items() if text is not None}
        return PythonClass(kind.removeprefix(PREFIX), paths, chosen)

    def problem(values: Mapping[str, Any]) -> str | None:
        try:
            of(values).apply_method()
        except NoClass as error:
            return f"{error.what}. Next: {error.next}"
        return None

    options = tuple(Property(name, "STRING", None, "An option of the class.", importance="LOW") for name in names)
    return TransformPlugin(kind, options, of, problem)


def _loaded(name: str, paths: tuple[str, ...]) -> Any:
    """The class; raises NoClass."""
    module, _, last = name.rpartition(".")
    if not module or not all(part.isidentifier() for part in name.split(".")):
        raise _no_class(name, "is not package.module.Class", "write it as python:package.module.Class")
    if not paths:
        raise _no_class(name, "is code that this worker may not run", f"set {PLUGIN_PATH} in the worker's file")
    _require_inside(name, module.partition(".")[0], paths)
    try:
        kind = getattr(import_module(module), last, None)
    except (Exception, SystemExit) as error:
        raise _no_class(name, f"cannot be imported: {type(error).__name__}: {error}", "correct the module") from error
    if not isinstance(kind, type):
        raise _no_class(name, f"is not there: {module} has no class {last}", "correct the type, or the module")
    if missing := [method for method in _METHODS if not callable(getattr(kind, method, None))]:
        raise _no_class(
            name,
            f"has no method {' and no method '.join(missing)}",
            "give it configure(self, properties) and apply(self, record)",
        )
    return kind


def _require_inside(name: str, top: str, paths: tuple[str, ...]) -> None:
    """Raise NoClass unless the module or package `top` is the one in these folders."""
    # At the end: nothing there can take the place of a module of Python or of Penstock.
    sys.path += [path for path in paths if path not in sys.path]
    invalidate_caches()
    try:
        spec = find_spec(top)
    except (ImportError, ValueError):
        spec = None
    folders = [Path(path).resolve() for path in paths]
    if spec is None:
        raise _no_class(name, f"is not there: no module {top} in {', '.join(paths)}", f"put it into {PLUGIN_PATH}")
    if not all(any(place.is_relative_to(folder) for folder in folders) for place in _places(spec)):
        raise _no_class(name, f"is not of {PLUGIN_PATH}: {top} is another module of this process", "rename the module")


def _places(spec: ModuleSpec) -> list[Path]:
    """The files or folders of a module; of one that is built in, a place that is in no folder."""
    if spec.origin and spec.has_location:
        return [Path(spec.origin).resolve()]
    return [Path(place).resolve() for place in spec.submodule_search_locations or ()] or [Path("/")]


def _no_class(name: str, why: str, step: str) -> NoClass:
    return NoClass(f"{name} {why}", where=PREFIX + name, next=step)
