"""A topic's JSON schema, compiled once: a validator, and a type of msgspec, which checks an event while it decodes it.

The validator checks many events at once, and each event if one is wrong. The type decodes an event without its fields
that the schema does not name, and accepts it only if it surely satisfies the schema; another event is decoded and
validated, which also says what is wrong. So a type has to be right only about what it accepts. It has what most schemas
use: types, properties, required properties and no others, items, lengths, bounds, enumerations of strings, times,
references within the document. A schema with anything else has no type.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import unquote

import jsonschema_rs
import msgspec
from msgspec import Meta, Raw
from msgspec.json import Decoder

from penstock.errors import PenstockError
from penstock.ingest.exchange import EventProblem, shortened

EVENT = "urn:penstock:event"
SMALL = 4096
"""Bytes of an event up to which all of its errors are listed. The library makes all errors of an event or only the
first, and takes about 10 us for each error: an event of 1 MB may have 500 000."""
LARGE = 256 << 10
"""Bytes of an event above which not even the first error is made: with an `anyOf` that took 0.2 s for 1 MB."""
NOT_LISTED = "the event does not satisfy the schema"
"""The reason when the answer already lists enough problems."""
LINEAR = jsonschema_rs.RegexOptions(size_limit=10 << 20)
"""The engine of `pattern` and `patternProperties`: its time grows with the event's size only, whatever the event has.
The library's own engine goes back and tries again for look-around and back-references: `^(a+)+\\1$` held a worker for
4 s with an event of 1 MB. The limit is in bytes of a compiled expression."""
NOT_LINEAR = 'is not a "regex"'
"""The end of what the library says of another expression."""
TOO_LARGE_TO_SAY = f"{NOT_LISTED}; what is wrong is listed for events of at most {LARGE} bytes"


@dataclass(frozen=True, slots=True)
class Numbered:
    """A decoded event with its index in the request, and its size in bytes."""

    index: int
    event: Any
    size: int


class Schema:
    """A schema of any draft that the document names, 2020-12 by default; checks formats, and fetches nothing."""

    def __init__(self, document: Any) -> None:
        self.document = document
        options: dict[str, Any] = {"validate_formats": True, "offline": True, "pattern_options": LINEAR}
        self._one = jsonschema_rs.validator_for(document, **options)
        registry = jsonschema_rs.Registry([(EVENT, document)], retriever=_not_here)
        many = {"type": "array", "items": {"$ref": EVENT}}
        self._many = jsonschema_rs.validator_for(many, registry=registry, **options)

    def problems(self, events: Sequence[Numbered], most: int) -> list[EventProblem]:
        """At least one problem for each event that is not valid; about the first `most` say what is wrong."""
        if self._many.is_valid([numbered.event for numbered in events]):
            return []
        problems: list[EventProblem] = []
        for numbered in events:
            if not self._one.is_valid(numbered.event):
                problems += (
                    self._reasons(numbered) if len(problems) < most else [EventProblem(numbered.index, "", NOT_LISTED)]
                )
        return problems

    def _reasons(self, numbered: Numbered) -> list[EventProblem]:
        if numbered.size <= SMALL:
            return [_problem(numbered.index, error) for error in self._one.iter_errors(numbered.event)]
        if numbered.size > LARGE:
            return [EventProblem(numbered.index, "", TOO_LARGE_TO_SAY)]
        try:
            self._one.validate(numbered.event)
        except jsonschema_rs.ValidationError as error:
            return [_problem(numbered.index, error)]
        return []


def _problem(index: int, error: jsonschema_rs.ValidationError) -> EventProblem:
    return EventProblem(index, shortened(pointer(error.instance_path)), shortened(error.message))


def _not_here(uri: str) -> Any:
    raise ValueError(f"it refers to {uri}, which is not in the file; put it below $defs")


def load(file: Path, topic: str) -> Schema:
    """The schema of a file; raises PenstockError if it cannot be read or is not a JSON schema."""
    where = f"schema of topic {topic}, {file}"
    try:
        document = json.loads(file.read_bytes())
    except OSError as error:
        raise PenstockError(f"it cannot be read: {error.strerror}", where=where, next="check the path") from error
    except ValueError as error:
        raise PenstockError(f"it is not valid JSON: {error}", where=where, next="correct the file") from error
    try:
        return Schema(document)
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
        said, step = _reason(error)
        raise PenstockError(f"it is not a valid JSON schema: {said}", where=where, next=step) from error


def _reason(error: Exception) -> tuple[str, str]:
    """What is wrong with a schema, and what to do."""
    said = getattr(error, "message", str(error))
    if not isinstance(error, jsonschema_rs.ValidationError) or not said.endswith(NOT_LINEAR):
        return said, "correct the file"
    path = error.instance_path
    expression = path[-1] if path[-2:-1] == ["patternProperties"] else error.instance
    what = f"{shortened(str(expression))!r} at {pointer(path)} is not a regular expression of linear time"
    return what, "write it without look-around, back-references and long repetitions; maxLength bounds a length"


def pointer(path: Sequence[str | int]) -> str:
    """A path as a JSON pointer (RFC 6901)."""
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in path)


# The type of a schema.


KEY = "key"
"""The attribute in which a decoded object has the event's key, or the object with the key."""
ANY = frozenset({"object", "array", "string", "number", "boolean", "null"})
_KEYS = frozenset({"string", "integer", "null"})
_SAYS_NOTHING = {"title", "description", "$comment", "default", "examples", "deprecated", "readOnly", "writeOnly"}
_SAYS_NOTHING |= {"$defs", "definitions"}
_AT_ROOT = {"$schema", "$id"}
_KEYWORDS = {
    "object": {"properties", "required", "additionalProperties"},
    "array": {"items", "minItems", "maxItems"},
    "string": {"minLength", "maxLength", "enum", "const", "format"},
    "number": {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"},
}
_KNOWN = {"type"}.union(*_KEYWORDS.values())
_MONTH_DAY = "((0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])|(0[13-9]|1[0-2])-(29|30)|(0[13578]|1[02])-31)"
_TIME = f"^[0-9]{{4}}-{_MONTH_DAY}T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]([.][0-9]{{1,9}})?"
_TIME += r"(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])\Z"
"""Times of RFC 3339, 5.6, but for 29 February, leap seconds and small letters, which the validator decides."""


class _Unknown(Exception):
    """A schema that only the validator can decide."""


def event_decoder(document: Any, key: tuple[str, ...]) -> Decoder[Any] | None:
    """Decodes events that are objects of this schema (True: any), with a key at this path (empty: none).

    Returns None if only the validator can decide.
    """
    try:
        return Decoder(_Types(document).of_root(key or None))
    except (_Unknown, RecursionError, KeyError, TypeError, ValueError, OverflowError):
        return None


def _keywords(schema: Any, ignored: set[str] | frozenset[str] = frozenset()) -> dict[str, Any]:
    """The keywords of a schema that say something about a value."""
    if not isinstance(schema, dict):
        raise _Unknown
    return {name: value for name, value in schema.items() if name not in _SAYS_NOTHING | ignored}


def _types(schema: Mapping[str, Any]) -> frozenset[str]:
    """The types that a value may have; "number" includes "integer"."""
    named = schema.get("type", ANY)
    return frozenset({named} if isinstance(named, str) else named)


class _Types:
    """The types of one document."""

    def __init__(self, document: Any) -> None:
        self._document = document
        self._referred: dict[str, Any] = {}

    def of_root(self, path: tuple[str, ...] | None) -> Any:
        said = {} if self._document is True else _keywords(self._document, _AT_ROOT)
        while list(said) == ["$ref"]:
            said = _keywords(self._at(said["$ref"]))
        return self._of(dict(said, type=list(_types(said) & {"object"})), path)

    def of(self, schema: Any, path: tuple[str, ...] | None = None) -> Any:
        """The type of a value of this schema; with the key at `path`, which is None if the value has no key."""
        said = {} if schema is True else _keywords(schema)
        if "$ref" not in said:
            return self._of(said, path)
        place = said["$ref"]
        if len(said) > 1 or not isinstance(place, str):
            raise _Unknown
        if path is not None:
            return self.of(self._at(place), path)
        if place not in self._referred:
            self._referred[place] = self.of(self._at(place))
        return self._referred[place]

    def _at(self, place: str) -> Any:
        """The schema at a place in the document."""
        if place == "#":
            return _keywords(self._document, _AT_ROOT)
        if not place.startswith("#/"):
            raise _Unknown
        subschema = self._document
        for step in place[2:].split("/"):
            subschema = subschema[unquote(step).replace("~1", "/").replace("~0", "~")]
        return subschema

    def _of(self, said: Mapping[str, Any], path: tuple[str, ...] | None) -> Any:
        if not said and path is None:
            return Raw
        if unknown := set(said) - _KNOWN:
            raise _Unknown(unknown)
        types = _types(said)
        if {"enum", "const"} & set(said):
            types &= {"string"}
        if "format" in said:
            # msgspec 0.22 frees the type of a list beside a pattern twice. Arrays are left to the validator.
            types -= {"array"}
        if path == ():
            types = frozenset("integer" if kind == "number" else kind for kind in types) & _KEYS
        if not types:
            raise _Unknown
        return reduce(or_, [self._of_type(kind, said, path or None) for kind in sorted(types)])

    def _object(self, said: Mapping[str, Any], path: tuple[str, ...] | None = None) -> Any:
        properties, required = dict(said.get("properties", {})), set(said.get("required", ()))
        extra = said.get("additionalProperties", True)
        if not isinstance(extra, bool) or (not extra and required - set(properties)):
            raise _Unknown
        properties |= {name: True for name in required if name not in properties}
        if path and path[0] not in properties:
            if not extra:
                raise _Unknown
            properties[path[0]] = True
        fields: list[tuple[str, Any, Any]] = []
        for number, (name, schema) in enumerate(properties.items()):
            is_key = path is not None and name == path[0]
            kind = self.of(schema, path[1:] if path and is_key else None)
            if kind is Raw and extra and name not in required:
                continue  # any value is valid, or none
            default = {} if name in required else {"default": None}
            fields.append((KEY if is_key else f"f{number}", kind, msgspec.field(name=name, **default)))
        # Fields with a default come last.
        fields.sort(key=lambda field: field[2].default is not msgspec.NODEFAULT)
        return msgspec.defstruct("Event", fields, gc=False, forbid_unknown_fields=not extra)

    def _of_type(self, type: str, said: Mapping[str, Any], path: tuple[str, ...] | None) -> Any:
        match type:
            case "object":
                return self._object(said, path)
            case "array":
                items = said.get("items", True)
                if isinstance(items, list):
                    raise _Unknown
                return _limited(list[self.of(items)], said, "Items")  # type: ignore[misc]
            case "string":
                return _string(said)
            case "integer":
                return _bounded(int, said, math.ceil, math.floor)
            case "number":
                return _bounded(int, said, math.ceil, math.floor) | _bounded(float, said, float, float)
            case "boolean":
                return bool
            case "null":
                return None.__class__
        raise _Unknown


def _string(said: Mapping[str, Any]) -> Any:
    if "enum" in said or "const" in said:
        return _word(said)
    if said.get("format") == "date-time":
        return _limited(Annotated[str, Meta(pattern=_TIME)], said, "Length")
    if "format" in said:
        raise _Unknown
    return _limited(str, said, "Length")


def _word(said: Mapping[str, Any]) -> Any:
    words: Sequence[Any] = said["enum"] if "enum" in said else [said["const"]]
    if {"minLength", "maxLength", "format"} & set(said) or {"enum", "const"} <= set(said):
        raise _Unknown
    if not words or not all(isinstance(word, str) for word in words):
        raise _Unknown
    return Literal[tuple(words)]


def _limited(base: Any, said: Mapping[str, Any], what: str) -> Any:
    """The type with the schema's limits of its length."""
    limits = {
        ours: said[name] for ours, name in (("min_length", f"min{what}"), ("max_length", f"max{what}")) if name in said
    }
    return Annotated[base, Meta(**limits)] if limits else base


def _bounded(base: type, said: Mapping[str, Any], low: Any, high: Any) -> Any:
    """The type with the schema's bounds; `low` and `high` turn a bound into the least or the greatest such number."""
    bounds: dict[str, Any] = {}
    for name, value in ((name, said[name]) for name in _KEYWORDS["number"] if name in said):
        if isinstance(value, bool):
            raise _Unknown
        is_low, exclusive = name.lower().endswith("minimum"), name.startswith("ex")
        bound = low(value) if is_low else high(value)
        exclusive = exclusive and bound == value
        limit = ("gt" if exclusive else "ge") if is_low else ("lt" if exclusive else "le")
        if limit in bounds or (base is float and bound != value):
            raise _Unknown
        bounds[limit] = bound
    return Annotated[base, Meta(**bounds)] if bounds else base
