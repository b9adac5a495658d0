"""Reads JSON as Kafka Connect's JsonConverter does, with schemas or without; and values of schemas in JSON."""

from __future__ import annotations

import base64
import binascii
import math
import struct
from collections.abc import Callable, Hashable
from decimal import Decimal
from functools import lru_cache
from typing import Any

from msgspec.json import Decoder

from penstock.codec import exact_json
from penstock.codec.connect_schema import Schema
from penstock.connect.records.record import DATA, INTEGERS, NOTHING, Date, NoValue, Part, Reader, TimeOfDay, Timestamp


def of_json(data: bytes | None, *, enveloped: bool) -> Part:
    """The part that these bytes are; with `enveloped` they have the schema, too. Raises NoValue."""
    if data is None:
        return NOTHING
    if not enveloped:
        return Part(None, _parsed(data))
    try:
        return _after_known_schema(data) or _enveloped(_parsed(data))
    except RecursionError:
        raise NoValue("it is nested too deep") from None


def _enveloped(envelope: Any) -> Part:
    """The part that an object with a schema and a value is; raises NoValue, or RecursionError for deep ones."""
    if not isinstance(envelope, dict) or set(envelope) != {"schema", "payload"}:
        raise NoValue(
            'it is not an object with only "schema" and "payload"; set schemas.enable=false if records have no schema'
        )
    if envelope["schema"] is None:
        return Part(None, envelope["payload"])
    text = exact_json.dumps(envelope["schema"])
    return Part(*_with_schema(text, envelope["payload"]))


_decode = Decoder(float_hook=exact_json.number).decode


def _parsed(data: bytes) -> Any:
    try:
        return _decode(data)
    except (ValueError, RecursionError):
        pass  # Python's reader takes more, such as integers of 100 digits, and says where the text is wrong.
    try:
        return exact_json.loads(data)
    except (ValueError, RecursionError) as error:
        raise NoValue(f"it is not JSON: {error}") from None


_SCHEMA, _PAYLOAD = b'{"schema":', b',"payload":'


def _after_known_schema(data: bytes) -> Part | None:
    """The part, where only its value must be read, since the bytes of its schema are known; None for others."""
    end = data.find(_PAYLOAD)
    if not 0 < end <= MOST_KEPT or data[-1:] != b"}" or (known := _schema_before(data[:end])) is None:
        return None
    try:
        # A value alone: with more fields behind it, it is not JSON.
        payload = _decode(data[end + len(_PAYLOAD) : -1])
    except (ValueError, RecursionError):
        return None
    schema, read = known
    return Part(schema, read(payload))


@lru_cache(maxsize=1000)
def _schema_before(head: bytes) -> tuple[Schema, Reader] | None:
    """The schema that a record begins with, and what reads its values; None if the whole record must be read."""
    try:
        schema = _parsed(head.removeprefix(_SCHEMA)) if head.startswith(_SCHEMA) else None
        return None if schema is None else _compiled(exact_json.dumps(schema))
    except NoValue:
        return None


def _with_schema(text: str, payload: Any) -> tuple[Schema, Any]:
    schema, read = (_compiled if len(text) <= MOST_KEPT else _compiled.__wrapped__)(text)
    return schema, read(payload)


@lru_cache(maxsize=1000)
def _compiled(text: str) -> tuple[Schema, Reader]:
    schema = exact_json.loads(text)
    return schema, _reader(schema, 0)


MOST_DEPTH = 64
MOST_UNSCALED = 1660
"""Bytes of a decimal's digits: 4000 of them."""
MOST_KEPT = 1 << 16
"""Characters of a schema up to which its reader is kept for the next record."""


def _reader(schema: Any, depth: int) -> Reader:
    """Reads JSON values of a schema."""
    if not isinstance(schema, dict) or not isinstance(schema.get("type"), str):
        raise NoValue(f"its schema has the type {str(schema)[:80]}")
    if depth > MOST_DEPTH:
        raise NoValue(f"its schema is nested more than {MOST_DEPTH} deep")
    read = _logical(schema) or _of_type(schema, depth)
    missing = _default(schema, read)

    def reader(value: Any) -> Any:
        return missing() if value is None else read(value)

    return reader


def require_schema(schema: Any) -> None:
    """Raise NoValue unless it is a schema."""
    _reader(schema, 0)


def default_of(schema: Schema) -> Any:
    """The default of a schema that has one; raises NoValue if it is not a value of the schema."""
    return _reader(schema, 0)(None)


def _default(schema: Schema, read: Reader) -> Callable[[], Any]:
    if schema.get("default") is not None:
        default = read(schema["default"])
        return lambda: default
    if schema.get("optional"):
        return lambda: None

    def refuse() -> Any:
        raise NoValue(f"it has null for a required {schema.get('name') or schema['type']}")

    return refuse


def _of_type(schema: Schema, depth: int) -> Reader:
    kind = schema["type"]
    if kind in INTEGERS:
        return _integer(kind)
    if kind == "array":
        each = _reader(schema.get("items"), depth + 1)
        return lambda value: [each(element) for element in _as(list, value, kind)]
    if kind == "map":
        return _map(schema, depth)
    if kind == "struct":
        return _struct(schema, depth)
    if kind not in _SCALARS:
        raise NoValue(f"its schema has the unknown type {kind[:80]}")
    return _SCALARS[kind]


def _as(wanted: type, value: Any, kind: str) -> Any:
    if type(value) is not wanted:
        raise NoValue(f"{_shown(value)} is no {kind}")
    return value


def _integer(kind: str) -> Reader:
    least, most = -(1 << INTEGERS[kind] - 1), (1 << INTEGERS[kind] - 1) - 1

    def read(value: Any) -> int:
        number: int = _as(int, value, kind)
        if not least <= number <= most:
            raise NoValue(f"{number} is no {kind}")
        return number

    return read


def _shown(value: Any) -> str:
    return exact_json.dumps(value, other=str)[:80]


def _double(value: Any) -> float:
    if type(value) is str and value in ("NaN", "Infinity", "-Infinity"):
        return float(value)
    if type(value) not in (int, float, Decimal):
        raise NoValue(f"{_shown(value)} is no number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if math.isinf(number):
        raise NoValue(f"{_shown(value)} is no double")
    return number


def _float(value: Any) -> float:
    try:
        nearest: float = struct.unpack(">f", struct.pack(">f", _double(value)))[0]
    except OverflowError:
        raise NoValue(f"{str(value)[:80]} is no float") from None
    return nearest


def _bytes(value: Any) -> bytes:
    try:
        return base64.b64decode(_as(str, value, "base64 text"), validate=True)
    except (binascii.Error, ValueError):
        raise NoValue(f"{_shown(value)} is not base64") from None


_SCALARS: dict[str, Reader] = {
    "boolean": lambda value: _as(bool, value, "boolean"),
    "string": lambda value: _as(str, value, "string"),
    "bytes": _bytes,
    "double": _double,
    "float": _float,
}


def _map(schema: Schema, depth: int) -> Reader:
    """An object, or an array of pairs where keys are no strings."""
    of_key, of_value = (_reader(schema.get(name), depth + 1) for name in ("keys", "values"))

    def read(value: Any) -> dict[Any, Any]:
        pairs = value.items() if isinstance(value, dict) else _as(list, value, "map")
        entries = {}
        for pair in pairs:
            if not isinstance(pair, list | tuple) or len(pair) != 2:
                raise NoValue(f"{_shown(pair)} is no pair of a key and a value")
            key = of_key(pair[0])
            if not isinstance(key, Hashable):
                raise NoValue("a map has structs, arrays or maps as keys")
            entries[key] = of_value(pair[1])
        return entries

    return read


def _struct(schema: Schema, depth: int) -> Reader:
    fields = schema.get("fields")
    if not isinstance(fields, list) or not all(
        isinstance(field, dict) and isinstance(field.get("field"), str) for field in fields
    ):
        raise NoValue("its schema has a struct without a list of named fields")
    readers = [(field["field"], _reader(field, depth + 1)) for field in fields]

    def read(value: Any) -> dict[str, Any]:
        members = _as(dict, value, "struct")
        struct = {}
        for name, of_field in readers:
            try:
                struct[name] = of_field(members.get(name))
            except NoValue as error:
                raise NoValue(f"field {name}: {error}") from None
        return struct

    return read


def _logical(schema: Schema) -> Reader | None:
    name, kind = str(schema.get("name") or ""), schema["type"]
    if name == f"{DATA}Decimal" and kind == "bytes":
        scale = _scale(schema)
        return lambda value: _decimal(value, scale)
    whole = {
        f"{DATA}Date": ("int32", Date),
        f"{DATA}Time": ("int32", TimeOfDay),
        f"{DATA}Timestamp": ("int64", Timestamp),
    }
    if name not in whole or kind != whole[name][0]:
        return None
    read, of_time = _integer(kind), whole[name][1]
    return lambda value: of_time(read(value))


def _scale(schema: Schema) -> int:
    try:
        return int(schema["parameters"]["scale"])
    except (KeyError, TypeError, ValueError):
        raise NoValue("its schema has a Decimal without a scale") from None


def _decimal(value: Any, scale: int) -> Decimal:
    """Base64 of the unscaled number, or a number (`decimal.format=NUMERIC`), with its digits as they are written."""
    if type(value) is Decimal:
        return value
    if type(value) in (int, float):
        return Decimal(str(value))
    return decimal_of(_bytes(value), scale)


def decimal_of(unscaled: bytes, scale: int) -> Decimal:
    """Raises NoValue for more digits than Python converts."""
    if len(unscaled) > MOST_UNSCALED:
        raise NoValue(f"it has a decimal of {len(unscaled)} bytes; the most are {MOST_UNSCALED}")
    number = int.from_bytes(unscaled, "big", signed=True)
    return Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -scale))
