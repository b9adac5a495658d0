"""Kafka's transforms of structs and their fields.

InsertField, ReplaceField, MaskField and SetSchemaMetadata change them; ExtractField, HoistField, Flatten and ValueToKey
take values out of structs, and make structs of values.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator

from pyspark.sql import functions as F

from penstock.codec.connect_schema import nothing, spark_type
from penstock.codec.typed_records import RecordPart, Side
from penstock.connect.transforms.conversions import INTEGERS, TIMESTAMP, is_time
from penstock.connect.transforms.state import (
    KAFKA,
    State,
    Step,
    Values,
    basics,
    each_field,
    fields,
    not_empty,
    on_each,
    on_key_and_value,
    optional_text,
    plugin,
    rebuilt,
    some_names,
    struct_schema,
    topic_column,
)
from penstock.errors import PenstockError

# A name in backticks ends at the first backtick without a backslash before it and with a dot or the end after it.
_QUOTED = re.compile(r"`(.*?)(?<!\\)`(?=\.|$)")
UNSET = "records of a source have no {} yet when transforms run; remove the !, and the field is null"


def named(spec: str) -> tuple[str, bool]:
    """A field's name and whether it is optional."""
    return (spec[:-1], spec[-1] == "?") if spec[-1:] in ("!", "?") else (spec, True)


def _insert_field(side: Side, values: Values) -> Step:
    def apply(state: State) -> State:
        return state.each(side, lambda part: rebuilt(part, [*fields(part, "InsertField").items(), *added(state)]))

    def added(state: State) -> list[tuple[str, RecordPart]]:
        found = []
        if values["topic.field"]:
            name, optional = named(values["topic.field"])
            found.append((name, RecordPart(topic_column(state.topic), optional_text(optional))))
        if values["partition.field"]:
            schema = {"type": "int32", "optional": True}
            found.append((named(values["partition.field"])[0], RecordPart(nothing(schema), schema)))
        if values["timestamp.field"]:
            schema = {"type": "int64", "optional": True, "name": TIMESTAMP, "version": 1}
            found.append((named(values["timestamp.field"])[0], RecordPart(nothing(schema), schema)))
        if values["static.field"]:
            name, optional = named(values["static.field"])
            found.append((name, RecordPart(F.lit(values["static.value"]), optional_text(optional))))
        return found

    return apply


def _nothing_inserted(values: Values) -> str | None:
    names = ("topic.field", "partition.field", "offset.field", "timestamp.field", "static.field")
    if not any(values[name] for name in names):
        return "No field insertion configured"
    if values["static.field"] and values["static.value"] is None:
        return f"No value specified for static field: {values['static.field']}"
    return None


def _may_be_null(what: str) -> Callable[[str], str | None]:
    return lambda spec: UNSET.format(what) if spec.endswith("!") else None


def _replaced(part: RecordPart, values: Values) -> RecordPart:
    exclude, include = values["exclude"] or values["blacklist"], values["include"] or values["whitelist"]
    renamed = renames(values)
    return rebuilt(
        part,
        (
            (renamed.get(name, name), field)
            for name, field in fields(part, "ReplaceField").items()
            if name not in exclude and (not include or name in include)
        ),
    )


def renames(values: Values) -> dict[str, str]:
    """The new names of ReplaceField by the old ones."""
    return dict(pair.split(":") for pair in values["renames"])


def _pairs(names: list[str]) -> str | None:
    wrong = [pair for pair in names if len([half for half in pair.split(":") if half]) != 2 or pair.count(":") != 1]
    return f"Invalid rename mapping: {wrong[0]}" if wrong else None


def _masked(part: RecordPart, values: Values) -> RecordPart:
    return each_field(
        part,
        "MaskField",
        lambda name, field: _mask(name, field, values["replacement"]) if name in values["fields"] else field,
    )


def _mask(name: str, field: RecordPart, replacement: str | None) -> RecordPart:
    kind = field.schema["type"]
    wrong = PenstockError(
        f"a field of type {field.schema.get('name', kind)} cannot be masked"
        + ("" if replacement is None else f" with {replacement!r}"),
        where=f"the transform MaskField, field {name}",
        next="remove the field with ReplaceField, or use no replacement or one of the field's type",
    )
    instead = _replacement(field, replacement) if replacement is not None else _empty(kind)
    if instead is None:
        raise wrong
    return RecordPart(F.when(field.payload.isNotNull(), F.lit(instead).cast(spark_type(field.schema))), field.schema)


def _empty(kind: str) -> object:
    if kind in ("struct", "bytes"):
        return None
    if kind == "array":
        return F.array()
    return {"string": "", "boolean": False}.get(kind, 0)


def _replacement(field: RecordPart, text: str) -> object:
    kind = field.schema["type"]
    if kind == "string":
        return text
    try:
        number = float(text)
    except ValueError:
        return None
    if kind in ("float", "double"):
        return number
    if kind not in INTEGERS or is_time(field.schema) or not math.isfinite(number):
        return None
    # Java keeps the lowest bits of an integer that is too large.
    half = 1 << (INTEGERS[kind] - 1)
    whole = int(text) if text.lstrip("+-").isdigit() else int(number)
    return (whole + half) % (2 * half) - half


def _set_metadata(part: RecordPart, values: Values) -> RecordPart:
    schema = dict(part.schema)
    if values["schema.name"] is not None:
        schema["name"] = values["schema.name"]
    if values["schema.version"] is not None:
        schema["version"] = values["schema.version"]
    order = ("type", "items", "keys", "values", "fields", "optional", "name", "version", "parameters", "default")
    return RecordPart(part.payload, {name: schema[name] for name in order if name in schema})


def _no_metadata(values: Values) -> str | None:
    given = values["schema.name"] is not None or values["schema.version"] is not None
    return None if given else "Neither schema name nor version configured"


# ExtractField, HoistField, Flatten, ValueToKey.


def _version(version: str) -> str | None:
    return None if version.upper() in ("V1", "V2") else "String must be one of: V1, V2"


def _field_at(part: RecordPart, path: list[str], name: str) -> RecordPart:
    for step in path:
        found = fields(part, f"the transform {name}")
        if step not in found:
            raise PenstockError(
                f"Unknown field: {'.'.join(path)}",
                where=f"the transform {name}",
                next=f"use a field that the record has: {', '.join(found)}",
            )
        part = found[step]
    return part


def _extracted(part: RecordPart, values: Values) -> RecordPart:
    return _field_at(part, path_steps(values["field"], values["field.syntax.version"]), "ExtractField")


def _wrong_path(values: Values) -> str | None:
    return path_problem(values["field"], values["field.syntax.version"])


def _hoisted(part: RecordPart, values: Values) -> RecordPart:
    name = values["field"]
    payload = F.when(part.payload.isNotNull(), F.struct(part.payload.alias(name)))
    return RecordPart(payload, struct_schema([(name, part.schema)]))


def _flattened(part: RecordPart, values: Values) -> RecordPart:
    return rebuilt(part, _leaves(part, "", values["delimiter"], part.schema["optional"]))


def _leaves(part: RecordPart, prefix: str, delimiter: str, optional: bool) -> Iterator[tuple[str, RecordPart]]:
    """The fields below a struct; a field below an optional struct is optional."""
    for name, field in fields(part, "the transform Flatten").items():
        full = f"{prefix}{delimiter}{name}" if prefix else name
        may_lack = optional or field.schema["optional"]
        if field.schema["type"] == "struct":
            yield from _leaves(field, full, delimiter, may_lack)
        else:
            yield full, RecordPart(field.payload, {**field.schema, "optional": may_lack})


def _value_to_key(values: Values) -> Step:
    names = values["fields"]

    def key(part: RecordPart) -> RecordPart:
        members = [(name, _field_at(part, [name], "ValueToKey")) for name in names]
        made = rebuilt(part, members)
        return RecordPart(
            made.payload, {name: made.schema[name] for name in made.schema if name not in basics(part.schema)}
        )

    def apply(state: State) -> State:
        if not state.values:
            return state
        held = state.pinned("value")
        keys = [key(part) for part in held.values]
        if held.tombstones:
            # A tombstone has no value for a new key, and keeps its key.
            keys += [RecordPart(F.when(held.valueless, part.payload), part.schema) for part in held.keys]
        return held.with_parts("key", keys)

    return apply


# Paths to nested fields: version 2 of the syntax of KIP-821, `a.b`, with backticks around names that contain dots.


def path_steps(path: str, version: str) -> list[str]:
    """The names of a path; raises ValueError for an unpaired backtick."""
    if version.upper() == "V1":
        return [path]
    found, rest = [], path
    while True:
        if rest.startswith("`"):
            quoted = _QUOTED.match(rest)
            if not quoted:
                raise ValueError(
                    f"Incomplete backtick pair in path: [{path}], consider adding a backslash before backtick "
                    f"at position {len(path) - len(rest)} to escape it"
                )
            # A backslash escapes only a backtick that would end the name.
            found.append(re.sub(r"\\`(?=\.)", "`", quoted[1]))
            rest = rest[quoted.end() :]
        else:
            name, dot, after = rest.partition(".")
            found.append(name)
            rest = dot + after
        if not rest:
            return found
        rest = rest[1:]


def path_problem(path: str, version: str) -> str | None:
    """The error of a path, or None."""
    try:
        path_steps(path, version)
    except ValueError as error:
        return str(error)
    return None


CLASSES = (
    *on_key_and_value(
        "InsertField",
        _insert_field,
        {
            "partition.field": _may_be_null("partition"),
            "offset.field": lambda spec: "records of a source have no offset; only a sink connector can insert it",
            "timestamp.field": _may_be_null("timestamp"),
        },
        _nothing_inserted,
    ),
    *on_key_and_value("ReplaceField", on_each(_replaced), {"renames": _pairs}),
    *on_key_and_value("MaskField", on_each(_masked), {"fields": some_names, "replacement": not_empty}),
    *on_key_and_value("SetSchemaMetadata", on_each(_set_metadata), problem=_no_metadata),
    *on_key_and_value("ExtractField", on_each(_extracted), {"field.syntax.version": _version}, _wrong_path),
    *on_key_and_value("HoistField", on_each(_hoisted)),
    *on_key_and_value("Flatten", on_each(_flattened)),
    plugin(f"{KAFKA}ValueToKey", _value_to_key, {"fields": some_names}),
)
