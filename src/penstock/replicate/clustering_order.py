"""The order of rows in a partition, for values as bytes: what CQL compares, as something that Python compares.

A position is before, at, or after all rows that begin with some values of the clustering key.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from functools import total_ordering
from typing import Any

from penstock.database.cql_types import Column, CqlType


def position(key: Sequence[Column], values: Sequence[bytes], weight: int) -> tuple[Any, ...]:
    """The place of the first values of a clustering key; `weight` is -1 before, 0 at, and 1 after them."""
    parts = [(0, _part(column, cell)) for column, cell in zip(key, values, strict=False)]
    return (*parts, (weight,))


def _part(column: Column, cell: bytes) -> Any:
    sort_key = ordered(column.type, cell)
    return _Descending(sort_key) if column.descending else sort_key


@total_ordering
class _Descending:
    """A value that is smaller the greater it is."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Descending) and bool(self.value == other.value)

    def __lt__(self, other: _Descending) -> bool:
        return bool(other.value < self.value)

    def __hash__(self) -> int:
        return hash(self.value)


def ordered(kind: CqlType, cell: bytes) -> Any:
    """A value that compares like the cell in the database; an empty cell is the smallest."""
    return (0,) if not cell and kind.name not in _BYTES else (1, _ORDERS.get(kind.name, _bytes)(kind, cell))


def _bytes(kind: CqlType, cell: bytes) -> Any:
    return cell


def _signed(kind: CqlType, cell: bytes) -> Any:
    return int.from_bytes(cell, "big", signed=True)


def _float(kind: CqlType, cell: bytes) -> Any:
    """As Java orders them: -0.0 before 0.0, and NaN last."""
    (value,) = struct.unpack(">f" if len(cell) == 4 else ">d", cell)
    return (1, 0.0, 0.0) if math.isnan(value) else (0, value, math.copysign(1.0, value))


class _Decimal:
    """A decimal of any scale, compared exactly; the difference of scales may be too large for a power of ten."""

    def __init__(self, cell: bytes) -> None:
        self.scale = int.from_bytes(cell[:4], "big", signed=True)
        self.unscaled = int.from_bytes(cell[4:], "big", signed=True)

    def _order(self) -> tuple[int, int, str]:
        digits = str(abs(self.unscaled)).rstrip("0")
        if not self.unscaled:
            return 0, 0, ""
        return (1 if self.unscaled > 0 else -1), len(str(abs(self.unscaled))) - self.scale, digits

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Decimal) and self._order() == other._order()

    def __lt__(self, other: _Decimal) -> bool:
        (sign, size, digits), (other_sign, other_size, other_digits) = self._order(), other._order()
        if sign != other_sign:
            return sign < other_sign
        smaller = (size, digits) < (other_size, other_digits)
        return smaller if sign > 0 else (size, digits) > (other_size, other_digits)

    def __hash__(self) -> int:
        return hash(self._order())


def _decimal(kind: CqlType, cell: bytes) -> Any:
    return _Decimal(cell)


def _uuid_time(cell: bytes) -> int:
    """The time of a uuid of version 1, whose high bits come last."""
    return int.from_bytes(bytes([cell[6] & 0x0F]) + cell[7:8] + cell[4:6] + cell[:4], "big")


def _timeuuid(kind: CqlType, cell: bytes) -> Any:
    return _uuid_time(cell), bytes(byte ^ 0x80 for byte in cell[8:])


def _uuid(kind: CqlType, cell: bytes) -> Any:
    """By version; those of version 1 by time, and then by their bytes."""
    version = cell[6] >> 4
    return (version, _uuid_time(cell), cell[8:]) if version == 1 else (version, 0, cell)


def _elements(kind: CqlType, cell: bytes) -> Any:
    """Lists, sets and maps: element by element."""
    elements: list[Any] = []
    at = 4
    kinds = kind.args
    while at < len(cell):
        length = int.from_bytes(cell[at : at + 4], "big", signed=True)
        at += 4
        elements.append(ordered(kinds[len(elements) % len(kinds)], cell[at : at + max(length, 0)]))
        at += max(length, 0)
    return tuple(elements)


def _fields(kind: CqlType, cell: bytes) -> Any:
    """Tuples and user types: field by field, null first."""
    fields: list[Any] = []
    at = 0
    while at < len(cell):
        length = int.from_bytes(cell[at : at + 4], "big", signed=True)
        at += 4
        fields.append((-1,) if length < 0 else ordered(kind.args[len(fields)], cell[at : at + length]))
        at += max(length, 0)
    return tuple(fields)


_BYTES = ("ascii", "blob", "text", "varchar")
_ORDERS: dict[str, Callable[[CqlType, bytes], Any]] = {
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint", "varint", "timestamp", "time"), _signed),
    **dict.fromkeys(("float", "double"), _float),
    **dict.fromkeys(("list", "set", "map"), _elements),
    **dict.fromkeys(("tuple", "udt"), _fields),
    "decimal": _decimal,
    "timeuuid": _timeuuid,
    "uuid": _uuid,
}
