"""Random CQL types and values, and their bytes as the Python driver writes them: an independent encoder."""

from __future__ import annotations

import datetime as dt
import ipaddress
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any
from zlib import crc32

import numpy as np
from cassandra import cqltypes
from cassandra.util import Date, Duration, Time
from hypothesis import strategies as st

from penstock.database.columns import Cells
from penstock.database.cql_types import CqlType

PROTOCOL = 4

_INTS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64, "time": 0}
_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_TIMES = st.datetimes(dt.datetime(1, 1, 2), dt.datetime(9999, 12, 30))  # noqa: DTZ001 (the driver's are naive UTC)


def _whole_millis(at: dt.datetime) -> dt.datetime:
    return at.replace(microsecond=at.microsecond // 1000 * 1000)


def _duration(parts: tuple[int, int, int, bool]) -> Duration:
    sign = -1 if parts[3] else 1
    return Duration(sign * parts[0], sign * parts[1], sign * parts[2])


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "ascii": st.text(st.characters(max_codepoint=127), max_size=20),
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "blob": st.binary(max_size=20),
    "boolean": st.booleans(),
    "date": st.dates().map(Date),
    "decimal": st.decimals(allow_nan=False, allow_infinity=False),
    "double": st.floats(allow_nan=False),
    "duration": st.tuples(
        st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1), st.booleans()
    ).map(_duration),
    "float": st.floats(allow_nan=False, width=32),
    # An IPv4-mapped IPv6 address is read as IPv4, so it is written back as other bytes.
    "inet": st.ip_addresses().filter(lambda ip: getattr(ip, "ipv4_mapped", None) is None).map(str),
    "int": st.integers(-(2**31), 2**31 - 1),
    "smallint": st.integers(-(2**15), 2**15 - 1),
    "text": _TEXT,
    "time": st.integers(0, 86_400 * 10**9 - 1).map(Time),
    "timestamp": _TIMES.map(_whole_millis),
    "timeuuid": st.uuids(version=1),
    "tinyint": st.integers(-128, 127),
    "uuid": st.uuids(),
    "varchar": _TEXT,
    "varint": st.integers(),
}


def _udt(kinds: tuple[CqlType, ...]) -> CqlType:
    """A user type named after its fields' types, so that different types have different names."""
    name = f"udt_{crc32(repr(kinds).encode())}"
    return CqlType("udt", kinds, True, tuple(f"f{i}" for i in range(len(kinds))), name)


def _collections(inner: st.SearchStrategy[CqlType]) -> st.SearchStrategy[CqlType]:
    one, few = inner, st.lists(inner, min_size=1, max_size=3).map(tuple)
    return st.one_of(
        one.map(lambda kind: CqlType("list", (kind,), True)),
        one.map(lambda kind: CqlType("set", (kind,), True)),
        st.tuples(st.sampled_from(sorted(VALUES)).map(CqlType), inner).map(lambda pair: CqlType("map", pair, True)),
        few.map(lambda kinds: CqlType("tuple", kinds, True)),
        few.map(_udt),
        st.sampled_from(["int", "float", "bigint"]).map(lambda name: CqlType("vector", (CqlType(name),), True, size=3)),
    )


TYPES = st.recursive(st.sampled_from(sorted(VALUES)).map(CqlType), _collections, max_leaves=4)


def values(kind: CqlType) -> st.SearchStrategy[Any]:
    """Values of a type for the driver; an entry of a collection is never null."""
    inner = [values(arg) for arg in kind.args]
    if kind.name in VALUES:
        return VALUES[kind.name]
    if kind.name in ("list", "set"):
        return st.lists(inner[0], max_size=4)
    if kind.name == "vector":
        return st.lists(inner[0], min_size=kind.size, max_size=kind.size)
    if kind.name == "map":
        return st.lists(st.tuples(*inner), max_size=4)
    return st.tuples(*(st.none() | each for each in inner))


_DRIVER_TYPES = {
    "ascii": cqltypes.AsciiType,
    "bigint": cqltypes.LongType,
    "blob": cqltypes.BytesType,
    "boolean": cqltypes.BooleanType,
    "date": cqltypes.SimpleDateType,
    "decimal": cqltypes.DecimalType,
    "double": cqltypes.DoubleType,
    "duration": cqltypes.DurationType,
    "float": cqltypes.FloatType,
    "inet": cqltypes.InetAddressType,
    "int": cqltypes.Int32Type,
    "smallint": cqltypes.ShortType,
    "text": cqltypes.UTF8Type,
    "time": cqltypes.TimeType,
    "timestamp": cqltypes.DateType,
    "timeuuid": cqltypes.TimeUUIDType,
    "tinyint": cqltypes.ByteType,
    "uuid": cqltypes.UUIDType,
    "varchar": cqltypes.UTF8Type,
    "varint": cqltypes.IntegerType,
}


def _driver_type(kind: CqlType) -> Any:
    if kind.name in _DRIVER_TYPES:
        return _DRIVER_TYPES[kind.name]
    inner = [_driver_type(arg) for arg in kind.args]
    if kind.name == "map":
        return cqltypes.MapType.apply_parameters(inner)
    if kind.name in ("list", "set"):
        return cqltypes.ListType.apply_parameters(inner)
    if kind.name == "vector":
        return cqltypes.VectorType.apply_parameters([inner[0], kind.size], None)
    return cqltypes.TupleType.apply_parameters(inner)


class _Pairs(list[Any]):
    """A map with its entries in the given order and with keys of any type."""

    def items(self) -> list[Any]:
        return list(self)


def _for_driver(kind: CqlType, value: Any) -> Any:
    if value is None or not kind.args:
        return value
    if kind.name == "map":
        return _Pairs((_for_driver(kind.args[0], k), _for_driver(kind.args[1], v)) for k, v in value)
    if kind.name in ("tuple", "udt"):
        return tuple(_for_driver(arg, each) for arg, each in zip(kind.args, value, strict=True))
    return [_for_driver(kind.args[0], each) for each in value]


def to_bytes(kind: CqlType, value: Any) -> bytes | None:
    """The value's cell as the driver would send it."""
    if value is None:
        return None
    return bytes(_driver_type(kind).to_binary(_for_driver(kind, value), PROTOCOL))


def cells_of(items: list[bytes | None]) -> Cells:
    """Cells as in a page, some of them null."""
    lengths = np.array([-1 if item is None else len(item) for item in items], np.int32)
    starts = np.concatenate([[0], np.cumsum(np.maximum(lengths, 0))])[:-1].astype(np.int64)
    return Cells(np.frombuffer(b"".join(item or b"" for item in items) + b"\0", np.uint8), starts, lengths)


def in_spark(kind: CqlType, value: Any) -> Any:
    """The expected value in a Spark frame, computed separately in plain Python."""
    if value is None:
        return None
    if kind.name in _PLAIN:
        return _PLAIN[kind.name](value)
    if kind.name == "map":
        return [(in_spark(kind.args[0], k), in_spark(kind.args[1], v)) for k, v in value]
    if kind.name in ("list", "set", "vector"):
        return [in_spark(kind.args[0], each) for each in value]
    if kind.name in ("tuple", "udt"):
        names = kind.fields or [f"field_{i}" for i in range(len(kind.args))]
        pairs = zip(names, kind.args, value, strict=True)
        return {name: in_spark(arg, each) for name, arg, each in pairs}
    return value


def _inet(text: str) -> str:
    address = ipaddress.ip_address(text)
    if address.version == 4:
        return str(address)
    return ":".join(f"{int(group, 16):x}" for group in address.exploded.split(":"))


def _java_decimal(value: Decimal) -> str:
    """BigDecimal.toString, as its documentation describes it."""
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits))
    adjusted = exponent + len(text) - 1
    minus = "-" if sign and any(digits) else ""
    if exponent <= 0 and adjusted >= -6:
        whole = text.rjust(-exponent + 1, "0")
        return minus + (whole if not exponent else f"{whole[:exponent]}.{whole[exponent:]}")
    fraction = f".{text[1:]}" if len(text) > 1 else ""
    return f"{minus}{text[0]}{fraction}E{adjusted:+d}"


def _duration_text(value: Duration) -> str:
    sign = "-" if min(value.months, value.days, value.nanoseconds) < 0 else ""
    years, months = divmod(abs(value.months), 12)
    text = f"{years}y" * bool(years) + f"{months}mo" * bool(months) + f"{abs(value.days)}d" * bool(value.days)
    rest = abs(value.nanoseconds)
    for unit, size in (("h", 3600 * 10**9), ("m", 60 * 10**9), ("s", 10**9), ("ms", 10**6), ("us", 1000), ("ns", 1)):
        count, rest = divmod(rest, size)
        text += f"{count}{unit}" * bool(count)
    return sign + text


_PLAIN: dict[str, Callable[[Any], Any]] = {
    "date": lambda value: value.date(),
    "decimal": _java_decimal,
    "duration": _duration_text,
    "inet": _inet,
    "time": lambda value: value.nanosecond_time,
    "timestamp": lambda value: value.replace(tzinfo=dt.UTC),
    "timeuuid": str,
    "uuid": lambda value: str(uuid.UUID(bytes=value.bytes)),
    "varint": str,
}
