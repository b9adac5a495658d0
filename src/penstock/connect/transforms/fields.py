"""Kafka's transforms of structs, objects and their fields.

InsertField, ReplaceField, MaskField and SetSchemaMetadata change them; ExtractField, HoistField, Flatten and ValueToKey
take values out of structs, and make structs of values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Any, ClassVar

from penstock.codec.connect_schema import Schema
from penstock.codec.typed_records import Side
from penstock.connect.java import numbers as java_numbers
from penstock.connect.records.json_data import MOST_DEPTH
from penstock.connect.records.record import (
    INTEGERS,
    NOWHERE,
    ConnectRecord,
    Date,
    NoValue,
    Part,
    TimeOfDay,
    Timestamp,
    type_name,
)
from penstock.connect.transforms.conversions import LOGICAL, TIMESTAMP
from penstock.connect.transforms.plugin import KAFKA, not_empty, on_key_and_value, plugin, some_names
from penstock.connect.transforms.steps import (
    KEY,
    VALUE,
    Change,
    Fields,
    Misfit,
    PartStep,
    PerSchema,
    Shapes,
    Values,
    basics,
    distinct,
    fields_of,
    is_optional,
    object_of,
    require_fields,
    struct_schema,
)

# A name in backticks ends at the first backtick without a backslash before it and with a dot or the end after it.
_QUOTED = re.compile(r"`(.*?)(?<!\\)`(?=\.|$)")
Inserted = tuple[Schema, Callable[[ConnectRecord], Any]]
"""The schema of a field to insert, and its value."""
_INSERTED: dict[str, Inserted] = {
    "topic": ({"type": "string"}, lambda record: record.topic),
    "partition": ({"type": "int32"}, lambda record: None if record.partition == NOWHERE else record.partition),
    "offset": ({"type": "int64"}, lambda record: None if record.offset == NOWHERE else record.offset),
    "timestamp": (
        {"type": "int64", "name": TIMESTAMP, "version": 1},
        lambda record: None if record.millis is None else Timestamp(record.millis),
    ),
}


def named(spec: str) -> tuple[str, bool]:
    """A field's name and whether it is optional."""
    return (spec[:-1], spec[-1] == "?") if spec[-1:] in ("!", "?") else (spec, True)


def insert_field(side: Side, values: Values) -> PartStep:
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
            if (inserted := of(record)) is not None:
                row[name] = int(inserted) if isinstance(inserted, Timestamp) else inserted
        return row

    def plan(schema: Schema) -> tuple[Schema, Change]:
        fields = fields_of(schema)

        def change(row: Any, record: ConnectRecord) -> dict[str, Any]:
            fields_before = fields.row(row, values["replace.null.with.default"])
            return {**fields_before, **{name: of(record) for name, _, of in chosen}}

        return struct_schema([*fields.schemas.items(), *((name, own) for name, own, _ in chosen)], schema), change

    return PartStep(side, plain, plan)


def _nothing_inserted(values: Values) -> str | None:
    names = ("topic.field", "partition.field", "offset.field", "timestamp.field", "static.field")
    if not any(values[name] for name in names):
        return "No field insertion configured"
    if values["static.field"] and values["static.value"] is None:
        return f"No value specified for static field: {values['static.field']}"
    return None


def replace_field(side: Side, values: Values) -> PartStep:
    exclude, include = values["exclude"] or values["blacklist"], values["include"] or values["whitelist"]
    renamed, defaults = renames(values), values["replace.null.with.default"]

    def old_names(names: Mapping[str, Any]) -> dict[str, str]:
        """The old name of each field by its new one; of fields with the same new name the last."""
        return {
            renamed.get(name, name): name for name in names if name not in exclude and (not include or name in include)
        }

    def plain(value: Any, record: ConnectRecord) -> dict[str, Any]:
        row = object_of(value)
        return {new: row[old] for new, old in old_names(row).items()}

    def plan(schema: Schema) -> tuple[Schema, Change]:
        fields = fields_of(schema)
        names = old_names(fields.schemas)
        left = [name for name in fields.schemas if name not in exclude and (not include or name in include)]
        new_schema = struct_schema([(renamed.get(name, name), fields.schemas[name]) for name in left], schema)
        return new_schema, lambda row, record: {new: fields.get(row, old, defaults) for new, old in names.items()}

    return PartStep(side, plain, plan)


def renames(values: Values) -> dict[str, str]:
    """The new names of ReplaceField by the old ones."""
    return dict(pair.split(":") for pair in values["renames"])


def _pairs(names: list[str]) -> str | None:
    wrong = [pair for pair in names if len([half for half in pair.split(":") if half]) != 2 or pair.count(":") != 1]
    return f"Invalid rename mapping: {wrong[0]}" if wrong else None


# MaskField.


def mask_field(side: Side, values: Values) -> PartStep:
    names, masked = values["fields"], _mask(values["replacement"])

    def plain(value: Any, record: ConnectRecord) -> dict[str, Any]:
        row = object_of(value)
        return {**row, **{name: masked(row.get(name), None) for name in names}}

    def plan(schema: Schema) -> tuple[Schema, Change]:
        fields = fields_of(schema)
        chosen = [(name, fields.schemas[name]) for name in names if name in fields.schemas]

        def change(row: Any, record: ConnectRecord) -> dict[str, Any]:
            unmasked = fields.row(object_of(row), values["replace.null.with.default"])
            return {**unmasked, **{name: masked(unmasked.get(name), own) for name, own in chosen}}

        return schema, change

    def check(schema: Schema) -> None:
        for name in names:
            if (own := fields_of(schema).schemas.get(name)) is not None:
                _require_mask(name, own, values["replacement"])

    return PartStep(side, plain, plan, nulls=True, check=check)


def _require_mask(name: str, schema: Schema, replacement: str | None) -> None:
    """Raise NoValue if no value of a field but null can be masked."""
    try:
        _mask(replacement)(_EXAMPLES[schema["name"] if schema.get("name") in LOGICAL else schema["type"]], schema)
    except NoValue:
        raise Misfit(
            f"a field of type {schema.get('name', schema['type'])} cannot be masked"
            + ("" if replacement is None else f" with {replacement!r}"),
            place=f"field {name}",
            next="remove the field with ReplaceField, or use no replacement or one of the field's type",
        ) from None


_EXAMPLES: dict[str, Any] = {
    **dict.fromkeys(INTEGERS, 0),
    **{name: kind(0) for name, kind in zip(LOGICAL, (Date, TimeOfDay, Timestamp), strict=True)},
    **{"float": 0.0, "double": 0.0, "boolean": False, "string": "", "bytes": b"", "array": [], "map": {}, "struct": {}},
}
"""A value of each type."""


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


def set_schema_metadata(side: Side, values: Values) -> PartStep:
    metadata = {"name": values["schema.name"], "version": values["schema.version"]}

    def plan(schema: Schema) -> tuple[Schema, Change]:
        new_schema = {**schema, **{name: value for name, value in metadata.items() if value is not None}}
        if schema["type"] != "struct":
            return new_schema, lambda value, record: value
        fields, defaults = fields_of(schema), values["replace.null.with.default"]
        return new_schema, lambda row, record: None if row is None else fields.row(row, defaults)

    def plain(value: Any, record: ConnectRecord) -> Any:
        if value is not None:
            raise NoValue(f"its {side} has no schema")
        return None

    return PartStep(side, plain, plan, nulls=True)


def _no_metadata(values: Values) -> str | None:
    has_metadata = values["schema.name"] is not None or values["schema.version"] is not None
    return None if has_metadata else "Neither schema name nor version configured"


def extract_field(side: Side, values: Values) -> PartStep:
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
            require_fields(fields, [name], "it")
            levels.append(fields)
            schema = fields.schemas[name]

        def change(value: Any, record: ConnectRecord) -> Any:
            for name, fields in zip(outer, levels, strict=False):
                value = None if value is None else fields.get(value, name)
            return None if value is None else levels[-1].get(value, last, values["replace.null.with.default"])

        return schema, change

    return PartStep(side, plain, plan, nulls=True)


def _version(version: str) -> str | None:
    return None if version.upper() in ("V1", "V2") else "String must be one of: V1, V2"


def _wrong_path(values: Values) -> str | None:
    return path_problem(values["field"], values["field.syntax.version"])


def hoist_field(side: Side, values: Values) -> PartStep:
    name = values["field"]

    def plan(schema: Schema) -> tuple[Schema, Change]:
        def change(value: Any, record: ConnectRecord) -> dict[str, Any]:
            if value is None and not is_optional(schema):
                raise NoValue(f"its {side} is null, which its schema does not allow")
            return {name: value}

        return struct_schema([(name, schema)]), change

    return PartStep(side, lambda value, record: {name: value}, plan, nulls=True)


@dataclass(frozen=True)
class ValueToKey:
    """Makes a key of fields of the value."""

    names: tuple[str, ...]
    defaults: bool
    reads: ClassVar[frozenset[str]] = frozenset((VALUE,))
    writes: ClassVar[frozenset[str]] = frozenset((KEY,))

    def plan(self, schema: Schema) -> tuple[Schema, Callable[[Any], dict[str, Any]]]:
        fields = fields_of(schema)
        require_fields(fields, self.names, "its value")
        key_schema = struct_schema([(name, fields.schemas[name]) for name in self.names])
        return key_schema, lambda row: {name: fields.get(row, name, self.defaults) for name in self.names}

    @cached_property
    def _plans(self) -> PerSchema[tuple[Schema, Callable[[Any], dict[str, Any]]]]:
        return PerSchema(self.plan)

    def __call__(self, record: ConnectRecord) -> ConnectRecord:
        schema, value = record.value
        if value is None:
            raise NoValue(
                "it has no value to make a key of; leave out such records with the predicate RecordIsTombstone"
            )
        if schema is None:
            row = object_of(value)
            return record._replace(key=Part(None, {name: row.get(name) for name in self.names}))
        key_schema, key = self._plans(schema)
        return record._replace(key=Part(key_schema, key(value)))

    def planned(self, shapes: Shapes) -> Shapes:
        return shapes.with_side(KEY, distinct(self.plan(schema)[0] for schema in shapes.values))


def value_to_key(values: Values) -> ValueToKey:
    return ValueToKey(tuple(values["fields"]), values["replace.null.with.default"])


# Flatten.


def flatten(side: Side, values: Values) -> PartStep:
    delimiter = values["delimiter"]

    def plain(value: Any, record: ConnectRecord) -> dict[str, Any]:
        return dict(_leaves(object_of(value), "", delimiter, 0))

    def plan(schema: Schema) -> tuple[Schema, Change]:
        leaves = [
            (delimiter.join(name for _, name in path), path, own)
            for path, own in _paths(schema, (), is_optional(schema), schema.get("default"))
        ]
        flat_schema = struct_schema([(name, own) for name, _, own in leaves], schema)
        return flat_schema, lambda row, record: {name: _value_at(row, path) for name, path, _ in leaves}

    return PartStep(side, plain, plan)


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
        own_default = own.get("default")
        if own_default is None and isinstance(default, dict):
            own_default = default.get(name)
        if own["type"] == "struct":
            yield from _paths(own, path, may_lack, own_default)
        elif own["type"] == "map":
            raise NoValue(f"the field {name} is a map, which has no fields in a schema")
        else:
            items = {"items": own["items"]} if own["type"] == "array" else {}
            leaf = {"type": own["type"], **items, "optional": may_lack, **basics(own)}
            yield path, leaf if own_default is None else {**leaf, "default": own_default}


# Paths to nested fields: version 2 of the syntax of KIP-821, `a.b`, with backticks around names that contain dots.


def path_steps(path: str, version: str) -> list[str]:
    """The names of a path; raises ValueError for an unpaired backtick."""
    if version.upper() == "V1":
        return [path]
    steps, rest = [], path
    while True:
        if rest.startswith("`"):
            quoted = _QUOTED.match(rest)
            if not quoted:
                raise ValueError(
                    f"Incomplete backtick pair in path: [{path}], consider adding a backslash before backtick "
                    f"at position {len(path) - len(rest)} to escape it"
                )
            # A backslash escapes only a backtick that would end the name.
            steps.append(re.sub(r"\\`(?=\.)", "`", quoted[1]))
            rest = rest[quoted.end() :]
        else:
            name, dot, after = rest.partition(".")
            steps.append(name)
            rest = dot + after
        if not rest:
            return steps
        rest = rest[1:]


def path_problem(path: str, version: str) -> str | None:
    """The error of a path, or None."""
    try:
        path_steps(path, version)
    except ValueError as error:
        return str(error)
    return None


CLASSES = (
    *on_key_and_value("InsertField", insert_field, problem=_nothing_inserted),
    *on_key_and_value("ReplaceField", replace_field, {"renames": _pairs}),
    *on_key_and_value("MaskField", mask_field, {"fields": some_names, "replacement": not_empty}),
    *on_key_and_value("SetSchemaMetadata", set_schema_metadata, problem=_no_metadata),
    *on_key_and_value("ExtractField", extract_field, {"field.syntax.version": _version}, _wrong_path),
    *on_key_and_value("HoistField", hoist_field),
    *on_key_and_value("Flatten", flatten),
    plugin(f"{KAFKA}ValueToKey", value_to_key, {"fields": some_names}),
)
