"""Values of records as text as Java's `String.valueOf` writes them, which is what Kafka's FileStreamSink writes.

Times are shown in UTC, where Java takes the machine's time zone. Entries of maps are in the record's order, which
Java's hash tables lose. Bytes alone stay bytes, and inside other values they are base64: Java shows only where it keeps
them.
"""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from typing import Any

from penstock.codec.connect_schema import Schema
from penstock.connect.java import numbers as java_numbers
from penstock.connect.java.date_patterns import MONTHS, WEEKDAYS
from penstock.connect.records.record import Date, Part, TimeOfDay, Timestamp
from penstock.connect.records.semantic_types import AlsoNumber

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def line_of(part: Part) -> bytes:
    """The line of a value, without its end."""
    if isinstance(part.value, bytes):
        return bytes(part.value)
    return _text(part.value, part.schema).encode("utf-8", "surrogatepass")


def _text(value: Any, schema: Schema | None) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, dict):
        return _struct(value, schema) if schema and schema["type"] == "struct" else _map(value, schema)
    if isinstance(value, list):
        items = (schema or {}).get("items")
        return f"[{', '.join(_text(element, items) for element in value)}]"
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Date | TimeOfDay | Timestamp) and not isinstance(value, AlsoNumber):
        return _moment(value)
    if isinstance(value, float):
        return java_numbers.text(value, is_single=schema is not None and schema["type"] == "float")
    # As a plain number: classes of times have names of their own.
    return str(int(value)) if isinstance(value, int) else str(value)


def _struct(value: dict[str, Any], schema: Schema) -> str:
    schemas = {field["field"]: field for field in schema["fields"]}
    fields = ((name, field) for name, field in value.items() if field is not None)
    return f"Struct{{{','.join(f'{name}={_text(field, schemas.get(name))}' for name, field in fields)}}}"


def _map(value: dict[Any, Any], schema: Schema | None) -> str:
    keys, values = ((schema or {}).get(name) for name in ("keys", "values"))
    return f"{{{', '.join(f'{_text(key, keys)}={_text(entry, values)}' for key, entry in value.items())}}}"


def _moment(value: Date | TimeOfDay | Timestamp) -> str:
    """As java.util.Date does; a year that Python does not know stays a number."""
    try:
        at = _EPOCH + (
            timedelta(days=value) if isinstance(value, Date) else timedelta(milliseconds=value.count_of(1_000_000))
        )
    except OverflowError:
        return str(int(value))
    return f"{WEEKDAYS[at.isoweekday() % 7][:3]} {MONTHS[at.month - 1][:3]} {at:%d %H:%M:%S} UTC {at.year}"
