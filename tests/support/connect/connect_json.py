"""Values of vectors as records of Kafka Connect's JsonConverter, and as what a CQL driver returns."""

from __future__ import annotations

import base64
import datetime as dt
import ipaddress
import json
import re
import uuid
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from cassandra.util import Date, Duration, Time

LOGICAL = {
    "date": ("int32", "Date"),
    "time": ("int32", "Time"),
    "timestamp": ("int64", "Timestamp"),
}
NAMES = {"float32": "float", "float64": "double"}
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def schema(given: Any) -> dict[str, Any] | None:
    """A schema of the vectors as JsonConverter writes it."""
    if given is None:
        return None
    if isinstance(given, dict):
        fields = [{**_some(schema(kind)), "field": name} for name, kind in given["fields"]]
        return {"type": "struct", "fields": fields, "optional": bool(given.get("optional"))}
    text, optional = given.removesuffix("?"), given.endswith("?")
    if text in LOGICAL:
        kind, name = LOGICAL[text]
        return {"type": kind, "name": f"org.apache.kafka.connect.data.{name}", "version": 1, "optional": optional}
    if found := re.fullmatch(r"decimal\((-?\d+)\)", text):
        name = "org.apache.kafka.connect.data.Decimal"
        return {"type": "bytes", "name": name, "parameters": {"scale": found[1]}, "optional": optional}
    if found := re.fullmatch(r"array<(.+)>", text):
        return {"type": "array", "items": schema(found[1]), "optional": optional}
    if found := re.fullmatch(r"map<([^,<]+), ?(.+)>", text):
        return {"type": "map", "keys": schema(found[1]), "values": schema(found[2]), "optional": optional}
    return {"type": NAMES.get(text, text), "optional": optional}


def _some(found: dict[str, Any] | None) -> dict[str, Any]:
    assert found is not None
    return found


def encoded(part: Mapping[str, Any]) -> bytes | None:
    """The bytes of a key or a value, with its schema."""
    if part["value"] is None and part["schema"] is None:
        return None
    made = schema(part["schema"])
    return json.dumps({"schema": made, "payload": payload(made, part["value"])}).encode()


def payload(made: dict[str, Any] | None, value: Any) -> Any:
    """A value of a vector as JsonConverter writes it under this schema."""
    if isinstance(value, list):
        return [payload(made and made["items"], one) for one in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1 and (name := next(iter(value))).startswith("$"):
        return _tagged(made, name, value[name])
    fields = {one["field"]: one for one in made["fields"]} if made else {}
    return {name: payload(fields.get(name), one) for name, one in value.items()}


def _tagged(made: dict[str, Any] | None, name: str, value: Any) -> Any:
    if name == "$map":
        inner = made or {"keys": None, "values": None}
        pairs = [(payload(inner["keys"], key), payload(inner["values"], one)) for key, one in value]
        text = all(isinstance(key, str) for key, _ in pairs)
        return dict(pairs) if text else [list(pair) for pair in pairs]
    if name == "$hex":
        return base64.b64encode(bytes.fromhex(value)).decode()
    if name == "$decimal":
        return _decimal(made, Decimal(value))
    if name == "$date":
        return (dt.date.fromisoformat(value) - dt.date(1970, 1, 1)).days
    if name == "$time":
        return _nanos(value) // 1_000_000
    if name == "$timestamp":
        return (dt.datetime.fromisoformat(value) - EPOCH) // dt.timedelta(milliseconds=1)
    return value


def _decimal(made: dict[str, Any] | None, value: Decimal) -> Any:
    if made is None:
        return float(value)
    number = int(value.scaleb(int(made["parameters"]["scale"])))
    return base64.b64encode(number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)).decode()


def _nanos(text: str) -> int:
    clock, _, part = text.partition(".")
    hours, minutes, seconds = map(int, clock.split(":"))
    return ((hours * 60 + minutes) * 60 + seconds) * 10**9 + int(part.ljust(9, "0") or 0)


def driven(value: Any) -> Any:
    """An expected value as the driver returns it, made comparable by `plain`."""
    if isinstance(value, list):
        return [driven(one) for one in value]
    if not isinstance(value, dict) or not next(iter(value), "").startswith("$"):
        return value if not isinstance(value, dict) else {name: driven(one) for name, one in value.items()}
    ((name, inner),) = value.items()
    if name == "$map":
        return {_hashable(driven(key)): driven(one) for key, one in inner}
    if name == "$set":
        return sorted(driven(inner), key=str)
    if name in ("$tuple", "$vector"):
        return driven(inner)
    if name == "$udt":
        return [driven(one) for one in (inner.values() if isinstance(inner, dict) else inner)]
    if name == "$duration":
        return [inner["months"], inner["days"], inner["nanoseconds"]]
    return _SCALARS[name](inner)


class _Any:
    def __eq__(self, other: object) -> bool:
        return other is not None

    __hash__ = object.__hash__


ANY = _Any()


_SCALARS: dict[str, Any] = {
    "$decimal": Decimal,
    "$varint": int,
    "$hex": bytes.fromhex,
    "$date": lambda text: (dt.date.fromisoformat(text) - dt.date(1970, 1, 1)).days,
    "$time": _nanos,
    "$timestamp": lambda text: dt.datetime.fromisoformat(text).replace(tzinfo=None),
    "$uuid": uuid.UUID,
    "$inet": lambda text: str(ipaddress.ip_address(text)),
    "$any": lambda kind: ANY,
}


def plain(value: Any) -> Any:
    """What the driver returned, in the form of `driven`."""
    if isinstance(value, Date):
        return value.days_from_epoch
    if isinstance(value, Time):
        return value.nanosecond_time
    if isinstance(value, Duration):
        return [value.months, value.days, value.nanoseconds]
    if hasattr(value, "_fields"):
        return [plain(one) for one in value]
    if isinstance(value, Mapping) or type(value).__name__ == "OrderedMapSerializedKey":
        return {_hashable(plain(key)): plain(one) for key, one in value.items()}
    if isinstance(value, set | frozenset) or type(value).__name__ == "SortedSet":
        return sorted(map(plain, value), key=str)
    return [plain(one) for one in value] if isinstance(value, list | tuple) else value


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
