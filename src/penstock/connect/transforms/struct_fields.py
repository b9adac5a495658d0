"""InsertField, ReplaceField, MaskField and SetSchemaMetadata: change fields, values or names of structs."""

from __future__ import annotations

import math
from collections.abc import Callable

from pyspark.sql import functions as F

from penstock.codec.connect_schema import nothing, spark_type
from penstock.codec.typed_records import RecordPart, Side
from penstock.connect.transforms.conversions import INTEGERS, TIMESTAMP, is_time
from penstock.connect.transforms.state import (
    State,
    Step,
    Values,
    each_field,
    fields,
    not_empty,
    on_each,
    on_key_and_value,
    optional_text,
    rebuilt,
    some_names,
    topic_column,
)
from penstock.errors import PenstockError

UNSET = "records of a source have no {} yet when transforms run; remove the !, and the field is null"


def _named(spec: str) -> tuple[str, bool]:
    """A field's name and whether it is optional."""
    return (spec[:-1], spec[-1] == "?") if spec[-1:] in ("!", "?") else (spec, True)


def _insert_field(side: Side, values: Values) -> Step:
    def apply(state: State) -> State:
        return state.each(side, lambda part: rebuilt(part, [*fields(part, "InsertField").items(), *added(state)]))

    def added(state: State) -> list[tuple[str, RecordPart]]:
        found = []
        if values["topic.field"]:
            name, optional = _named(values["topic.field"])
            found.append((name, RecordPart(topic_column(state.topic), optional_text(optional))))
        if values["partition.field"]:
            schema = {"type": "int32", "optional": True}
            found.append((_named(values["partition.field"])[0], RecordPart(nothing(schema), schema)))
        if values["timestamp.field"]:
            schema = {"type": "int64", "optional": True, "name": TIMESTAMP, "version": 1}
            found.append((_named(values["timestamp.field"])[0], RecordPart(nothing(schema), schema)))
        if values["static.field"]:
            name, optional = _named(values["static.field"])
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
    renames = dict(pair.split(":") for pair in values["renames"])
    return rebuilt(
        part,
        (
            (renames.get(name, name), field)
            for name, field in fields(part, "ReplaceField").items()
            if name not in exclude and (not include or name in include)
        ),
    )


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
)
