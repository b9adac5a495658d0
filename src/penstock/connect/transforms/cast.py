"""Cast: converts fields, or whole keys and values, to another primitive type, by Java's rules for numbers."""

from __future__ import annotations

from pyspark.sql import Column, functions as F

from penstock.codec.connect_schema import PRIMITIVES
from penstock.codec.typed_records import RecordPart
from penstock.connect.transforms.header_text import text
from penstock.connect.transforms.state import DEFAULTS, KAFKA, Values, needed, on_key_and_value
from penstock.connect.transforms.struct_edits import fields, rebuilt
from penstock.connect.transforms.struct_fields import INTEGERS, on_each
from penstock.errors import PenstockError

# Connect's names of types, and their names in JSON schemas.
TYPES = {
    **{name: name for name in ("int8", "int16", "int32", "int64", "boolean", "string")},
    "float32": "float",
    "float64": "double",
}


def _spec(items: list[str]) -> dict[str, str]:
    """The new types by field; the name of the whole value is empty."""
    pairs = [item.rpartition(":") for item in items]
    return {name.strip(): TYPES[kind.strip().lower()] for name, _, kind in pairs}


def _wrong_spec(items: list[str]) -> str | None:
    if not items:
        return "Must specify at least one field to cast."
    for item in items:
        if item.count(":") > 1:
            return f"Invalid cast mapping: {item}"
        kind = item.rpartition(":")[2].strip()
        if kind.lower() not in TYPES:
            return f"Invalid type found in casting spec: {kind}; supported types are {', '.join(TYPES)}"
    if len(items) > 1 and any(":" not in item for item in items):
        return "Cast transformations that cast the entire value may only have a single cast in their spec"
    return None


def _cast_part(part: RecordPart, values: Values) -> RecordPart:
    wanted = _spec(values["spec"])
    if "" in wanted:
        return _cast(part, wanted[""], "the whole record")
    members = {
        name: _cast(field, wanted[name], name) if name in wanted else field
        for name, field in fields(part, "the transform Cast").items()
    }
    return rebuilt(part, members.items(), optional=part.schema["optional"])


def _cast(part: RecordPart, kind: str, name: str) -> RecordPart:
    source = part.schema["type"]
    if source not in PRIMITIVES or (source == "bytes" and kind != "string"):
        raise PenstockError(
            f"a value of type {source} cannot be cast to {kind}",
            where=f"the transform Cast, {name}",
            next="cast primitive values; bytes only to string",
        )
    schema = {"type": kind, "optional": part.schema["optional"]}
    if "default" in part.schema:
        raise PenstockError(
            "a field with a default value cannot be cast",
            where=f"the transform Cast, {name}",
            next="remove it from spec",
        )
    return RecordPart(_value(part, kind), schema)


def _value(part: RecordPart, kind: str) -> Column:
    payload, source = part.payload, part.schema["type"]
    if kind == "string":
        return text(part)
    if kind == "boolean":
        if source == "string":
            return F.lower(payload) == "true"
        return payload if source == "boolean" else _integer(payload, source, "int64") != 0
    if source == "string":
        parsed = payload.try_cast(PRIMITIVES[kind])
        wrong = F.concat(F.lit("Value ("), payload, F.lit(f") was out of range for requested data type {kind}"))
        return F.when(payload.isNotNull(), F.coalesce(parsed, F.raise_error(wrong).cast(PRIMITIVES[kind])))
    return _integer(payload, source, kind) if kind in INTEGERS else payload.cast(PRIMITIVES[kind])


def _integer(payload: Column, source: str, kind: str) -> Column:
    """Java's narrowing: a fraction is cut off and limited to an int or a long, then only its lowest bits remain."""
    bits = INTEGERS[kind]
    if source in ("float", "double"):
        payload = _cut(payload.cast("double"), max(bits, 32))
    number = payload.cast("bigint")
    if bits < 64:
        number = F.shiftright(F.shiftleft(number, 64 - bits), 64 - bits)
    return number.cast(PRIMITIVES[kind])


def _cut(number: Column, bits: int) -> Column:
    high, low = 2 ** (bits - 1) - 1, -(2 ** (bits - 1))
    inside = F.when(number >= float(high), F.lit(high)).when(number <= float(low), F.lit(low))
    return F.when(F.isnan(number), F.lit(0)).otherwise(inside.otherwise(number.cast("bigint")))


CLASSES = on_key_and_value(
    f"{KAFKA}Cast",
    (
        needed(
            "spec",
            "LIST",
            f"Pairs field:type, or one type for the whole key or value. Types: {', '.join(TYPES)}.",
            _wrong_spec,
        ),
        DEFAULTS,
    ),
    on_each(_cast_part),
)
