"""ExtractField, HoistField, Flatten and ValueToKey: take values out of structs, and make structs of values."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pyspark.sql import functions as F

from penstock.codec.typed_records import RecordPart
from penstock.connect.transforms.state import (
    KAFKA,
    State,
    Step,
    Values,
    basics,
    fields,
    on_each,
    on_key_and_value,
    plugin,
    rebuilt,
    some_names,
    struct_schema,
)
from penstock.errors import PenstockError

# A name in backticks ends at the first backtick without a backslash before it and with a dot or the end after it.
_QUOTED = re.compile(r"`(.*?)(?<!\\)`(?=\.|$)")


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
    return path_problem(values["field"] or "", values["field.syntax.version"])


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


CLASSES = (
    *on_key_and_value("ExtractField", on_each(_extracted), {"field.syntax.version": _version}, _wrong_path),
    *on_key_and_value("HoistField", on_each(_hoisted)),
    *on_key_and_value("Flatten", on_each(_flattened)),
    plugin(f"{KAFKA}ValueToKey", _value_to_key, {"fields": some_names}),
)


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
