"""Kafka's transforms of structs, objects and their fields, for records.

InsertField, ReplaceField, MaskField and SetSchemaMetadata change them; ExtractField, HoistField, Flatten and ValueToKey
take values out of structs, and make structs of values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any

from penstock.codec.connect_schema import Schema
from penstock.codec.typed_records import Side
from penstock.connect.java import numbers as java_numbers
from penstock.connect.record_transforms.record_steps import (
    Change,
    Fields,
    PerSchema,
    Step,
    Values,
    basics,
    fields_of,
    is_optional,
    object_of,
    on_part,
    struct_schema,
)
from penstock.connect.records.json_data import MOST_DEPTH
from penstock.connect.records.record import (
    INTEGERS,
    ConnectRecord,
    Date,
    NoValue,
    Part,
    TimeOfDay,
    Timestamp,
    type_name,
)
from penstock.connect.transforms.conversions import TIMESTAMP
from penstock.connect.transforms.struct_fields import named, path_steps, renames

Inserted = tuple[Schema, Callable[[ConnectRecord], Any]]
"""The schema of a field to insert, and its value."""
_INSERTED: dict[str, Inserted] = {
    "topic": ({"type": "string"}, lambda record: record.topic),
    "partition": ({"type": "int32"}, lambda record: record.partition),
    "offset": ({"type": "int64"}, lambda record: record.offset),
    "timestamp": (
        {"type": "int64", "name": TIMESTAMP, "version": 1},
        lambda record: None if record.millis is None else Timestamp(record.millis),
    ),
}


def insert_field(side: Side, values: Values) -> Step:
    static: Inserted = {"type": "string"}, lambda record: values["static.value"]
    chosen: list[tuple[str, Schema, Callable[[ConnectRecord], Any]]] = []
    for what, (about, of) in {**_INSERTED, "static": static}.items():
        if values[f"{what}.field"]:
            name, optional = named(values[f"{what}.field"])
            chosen.append((name, {**about, "optional": optional}, of))

    def plain(value: Any, record: ConnectRecord) -> dict[str, Any]:
        row = dict(object_of(value))
        for name, _, of in chosen:
            # Without a schema a time is the number of its milliseconds, and nothing is inserted if there is none.
            if (given := of(record)) is not None:
                row[name] = int(given) if isinstance(given, Timestamp) else given
        return row

    def plan(schema: Schema) -> tuple[Schema, Change]:
        fields = fields_of(schema)

        def change(row: Any, record: ConnectRecord) -> dict[str, Any]:
            kept = fields.row(row, values["replace.null.with.default"])
            return {**kept, **{name: of(record) for name, _, of in chosen}}

        return struct_schema([*fields.schemas.items(), *((name, own) for name, own, _ in chosen)], schema), change

    return on_part(side, plain, plan)


def replace_field(side: Side, values: Values) -> Step:
    exclude, include = values["exclude"] or values["blacklist"], values["include"] or values["whitelist"]
    renamed, defaults = renames(values), values["replace.null.with.default"]

    def kept(names: Mapping[str, Any]) -> dict[str, str]:
        """The old name of each field by its new one; of fields with the same new name the last."""
        return {
            renamed.get(name, name): name for name in names if name not in exclude and (not include or name in include)
        }

    def plain(value: Any, record: ConnectRecord) -> dict[str, Any]:
        row = object_of(value)
        return {new: row[old] for new, old in kept(row).items()}

    def plan(schema: Schema) -> tuple[Schema, Change]:
        fields = fields_of(schema)
        names = kept(fields.schemas)
        left = [name for name in fields.schemas if name not in exclude and (not include or name in include)]
        made = struct_schema([(renamed.get(name, name), fields.schemas[name]) for name in left], schema)
        return made, lambda row, record: {new: fields.get(row, old, defaults) for new, old in names.items()}

    return on_part(side, plain, plan)


# MaskField.


def mask_field(side: Side, values: Values) -> Step:
    names, masked = values["fields"], _mask(values["replacement"])

    def plain(value: Any, record: ConnectRecord) -> dict[str, Any]:
        row = object_of(value)
        return {**row, **{name: masked(row.get(name), None) for name in names}}

    def plan(schema: Schema) -> tuple[Schema, Change]:
        fields = fields_of(schema)
        chosen = [(name, fields.schemas[name]) for name in names if name in fields.schemas]

        def change(row: Any, record: ConnectRecord) -> dict[str, Any]:
            found = fields.row(object_of(row), values["replace.null.with.default"])
            return {**found, **{name: masked(found.get(name), own) for name, own in chosen}}

        return schema, change

    return on_part(side, plain, plan, nulls=True)


def _mask(replacement: str | None) -> Callable[[Any, Schema | None], Any]:
    def masked(value: Any, schema: Schema | None) -> Any:
        if value is None:
            return None
        kind = schema["type"] if schema else ""
        return _empty(value, kind) if replacement is None else _instead(value, kind, replacement)

    return masked


def _empty(value: Any, kind: str) -> Any:
    if isinstance(value, dict) and kind != "struct":
        return {}
    if isinstance(value, bytes | dict):
        raise NoValue(f"{'bytes' if isinstance(value, bytes) else 'a struct'} cannot be masked; remove the field")
    return type(value)()


def _instead(value: Any, kind: str, replacement: str) -> Any:
    if isinstance(value, str):
        return replacement
    if isinstance(value, Decimal):
        return java_numbers.parsed_decimal(replacement)
    if isinstance(value, bool | Date | TimeOfDay | Timestamp) or not isinstance(value, int | float):
        raise NoValue(f"a value of type {type_name(value)} cannot be masked with a replacement")
    number = java_numbers.parsed_decimal(replacement)
    if isinstance(value, float):
        return java_numbers.single(number) if kind == "float" else java_numbers.double(number)
    return java_numbers.integer(number, kind if kind in INTEGERS else "int64")


# SetSchemaMetadata, ExtractField, HoistField, ValueToKey.


def set_schema_metadata(side: Side, values: Values) -> Step:
    given = {"name": values["schema.name"], "version": values["schema.version"]}

    def plan(schema: Schema) -> tuple[Schema, Change]:
        made = {**schema, **{name: value for name, value in given.items() if value is not None}}
        if schema["type"] != "struct":
            return made, lambda value, record: value
        fields, defaults = fields_of(schema), values["replace.null.with.default"]
        return made, lambda row, record: None if row is None else fields.row(row, defaults)

    def plain(value: Any, record: ConnectRecord) -> Any:
        if value is not None:
            raise NoValue(f"its {side} has no schema")
        return None

    return on_part(side, plain, plan, nulls=True)


def extract_field(side: Side, values: Values) -> Step:
    path = path_steps(values["field"], values["field.syntax.version"])
    *outer, last = path

    def plain(value: Any, record: ConnectRecord) -> Any:
        for name in path:
            if value is None:
                return None
            value = object_of(value).get(name)
        return value

    def plan(schema: Schema) -> tuple[Schema, Change]:
        levels = []
        for name in path:
            fields = fields_of(schema)
            if name not in fields.schemas:
                raise NoValue(f"it has no field {values['field']}; it has {', '.join(fields.schemas)}"[:300])
            levels.append(fields)
            schema = fields.schemas[name]

        def change(value: Any, record: ConnectRecord) -> Any:
            for name, fields in zip(outer, levels, strict=False):
                value = None if value is None else fields.get(value, name)
            return None if value is None else levels[-1].get(value, last, values["replace.null.with.default"])

        return schema, change

    return on_part(side, plain, plan, nulls=True)


def hoist_field(side: Side, values: Values) -> Step:
    name = values["field"]

    def plan(schema: Schema) -> tuple[Schema, Change]:
        def change(value: Any, record: ConnectRecord) -> dict[str, Any]:
            if value is None and not is_optional(schema):
                raise NoValue(f"its {side} is null, which its schema does not allow")
            return {name: value}

        return struct_schema([(name, schema)]), change

    return on_part(side, lambda value, record: {name: value}, plan, nulls=True)


def value_to_key(values: Values) -> Step:
    names = values["fields"]

    def plan(schema: Schema) -> tuple[Schema, Callable[[Any], dict[str, Any]]]:
        fields = fields_of(schema)
        if missing := [name for name in names if name not in fields.schemas]:
            raise NoValue(f"its value has no field {', '.join(missing)}; it has {', '.join(fields.schemas)}"[:300])
        made = struct_schema([(name, fields.schemas[name]) for name in names])
        defaults = values["replace.null.with.default"]
        return made, lambda row: {name: fields.get(row, name, defaults) for name in names}

    plans = PerSchema(plan)

    def step(record: ConnectRecord) -> ConnectRecord:
        schema, value = record.value
        if value is None:
            raise NoValue(
                "it has no value to make a key of; leave out such records with the predicate RecordIsTombstone"
            )
        if schema is None:
            row = object_of(value)
            return record._replace(key=Part(None, {name: row.get(name) for name in names}))
        made, key = plans(schema)
        return record._replace(key=Part(made, key(value)))

    return step


# Flatten.


def flatten(side: Side, values: Values) -> Step:
    delimiter = values["delimiter"]

    def plain(value: Any, record: ConnectRecord) -> dict[str, Any]:
        return dict(_leaves(object_of(value), "", delimiter, 0))

    def plan(schema: Schema) -> tuple[Schema, Change]:
        found = [
            (delimiter.join(name for _, name in path), path, own)
            for path, own in _paths(schema, (), is_optional(schema), schema.get("default"))
        ]
        made = struct_schema([(name, own) for name, _, own in found], schema)
        return made, lambda row, record: {name: _value_at(row, path) for name, path, _ in found}

    return on_part(side, plain, plan)


def _leaves(row: dict[str, Any], prefix: str, delimiter: str, depth: int) -> Iterator[tuple[str, Any]]:
    if depth > MOST_DEPTH:
        raise NoValue(f"it is nested more than {MOST_DEPTH} deep")
    for name, value in row.items():
        full = f"{prefix}{delimiter}{name}" if prefix else name
        if isinstance(value, dict):
            yield from _leaves(value, full, delimiter, depth + 1)
        else:
            yield full, value


Path = tuple[tuple[Fields, str], ...]
"""The fields of each struct on the way to a value, and the name of one of them."""


def _value_at(row: Any, path: Path) -> Any:
    for fields, name in path:
        if row is None:
            return None
        row = fields.get(row, name)
    return row


def _paths(schema: Schema, above: Path, optional: bool, default: Any) -> Iterator[tuple[Path, Schema]]:
    """The fields below a struct that are no structs, each with its schema in the flat struct.

    A field below an optional struct is optional, and its default may be in that of the struct.
    """
    fields = fields_of(schema)
    for name, own in fields.schemas.items():
        path, may_lack = (*above, (fields, name)), optional or is_optional(own)
        given = own.get("default")
        if given is None and isinstance(default, dict):
            given = default.get(name)
        if own["type"] == "struct":
            yield from _paths(own, path, may_lack, given)
        elif own["type"] == "map":
            raise NoValue(f"the field {name} is a map, which has no fields in a schema")
        else:
            items = {"items": own["items"]} if own["type"] == "array" else {}
            made = {"type": own["type"], **items, "optional": may_lack, **basics(own)}
            yield path, made if given is None else {**made, "default": given}
