"""The cells of a CQL column of any type, compared with the native protocol's rules in plain Python and with the driver.

An input is a line of JSON with the type, user types and number of rows, followed by a page with this column. Penstock's
values must be the values of the rules and, if the driver can read the cell, the driver's values. Conventions:

- Penstock refuses some cells that the driver accepts: collections that do not match the length of their cells or have a
  negative count, elements cut off at the end, text that is not ASCII in `ascii` columns, durations with two signs or
  extra bytes, addresses of other lengths;
- an empty cell is null for types without an empty value, where the driver has `EMPTY` for some; a collection or tuple
  of no bytes is empty or has only nulls, where the driver returns None;
- maps with a null key and timestamps beyond Spark's microseconds do not exist in Spark; both are refused.

Cells end at a page of memory that cannot be read, so that a read beyond the end is a crash.
"""

from __future__ import annotations

import ctypes
import ipaddress
import json
import math
import mmap
import random as randoms
import struct
import sys
import uuid
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa
from cassandra.cqltypes import EMPTY
from cassandra.marshal import vints_pack
from cassandra.util import Duration
from cql_values import _driver_type, _duration_text, _inet, _java_decimal

from penstock.database.bad_values import bad_rows
from penstock.database.cells import indexed
from penstock.database.columns import BadValue, Cells, decode
from penstock.database.cql_types import CqlType, parse_type, spark_type
from penstock.errors import PenstockError
from penstock.spark_runtime.arrow_types import to_arrow_type

from .mutate import mutated, noise
from .runner import Decoder, Difference

sys.set_int_max_str_digits(0)

INTEGERS = {"tinyint": 1, "smallint": 2, "int": 4, "bigint": 8, "time": 8}
FLOATS = {"float": ">f", "double": ">d"}
SCALARS = (
    *("ascii", "bigint", "blob", "boolean", "date", "decimal", "double", "duration", "float", "inet", "int"),
    *("smallint", "text", "time", "timestamp", "timeuuid", "tinyint", "uuid", "varchar", "varint"),
)
VECTORS = ("int", "float", "bigint", "double", "boolean", "uuid", "timestamp")
MOST_MICROS = (2**63) // 1000 * 1000


class NoValue(Exception):
    """By the rules a cell is not a valid value of its type, or Spark cannot hold it."""


# The rules


def by_the_rules(kind: CqlType, cell: bytes | None) -> Any:
    """The value of a cell in Spark; dates are days, and timestamps microseconds since 1970."""
    if cell is None:
        return None
    if kind.name in ("list", "set", "map", "tuple", "udt"):
        return _COMPOUND[kind.name](kind, cell)
    if not cell and kind.name not in ("ascii", "blob", "text", "varchar"):
        return None
    if kind.name == "vector":
        return _vector(kind, cell)
    try:
        return _SCALAR[kind.name](cell)
    except (ValueError, struct.error, IndexError) as error:
        raise NoValue from error


def _of_width(width: int, read: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def reader(cell: bytes) -> Any:
        if len(cell) != width:
            raise NoValue
        return read(cell)

    return reader


def _signed(cell: bytes) -> int:
    return int.from_bytes(cell, "big", signed=True)


def _unpacked(code: str) -> Callable[[bytes], Any]:
    return lambda cell: struct.unpack(code, cell)[0]


def _decimal(cell: bytes) -> str:
    if len(cell) < 4:
        raise NoValue
    unscaled = _signed(cell[4:])
    digits = tuple(map(int, str(abs(unscaled))))
    return _java_decimal(Decimal((int(unscaled < 0), digits, -_signed(cell[:4]))))


def _timestamp(cell: bytes) -> int:
    micros = _signed(cell) * 1000
    if abs(micros) > MOST_MICROS:
        raise NoValue
    return micros


def _duration(cell: bytes) -> str:
    numbers, rest = [], cell
    for _ in range(3):
        more = 8 - (rest[0] ^ 0xFF).bit_length()
        if len(rest) <= more:
            raise NoValue
        value = int.from_bytes(rest[: more + 1], "big") & ((1 << (8 * more + 8 - min(more + 1, 8))) - 1)
        value &= (1 << 64) - 1
        numbers.append(value >> 1 if not value & 1 else ~(value >> 1))
        rest = rest[more + 1 :]
    if rest or min(numbers) < 0 < max(numbers):
        raise NoValue
    return _duration_text(Duration(*numbers))


def _address(cell: bytes) -> str:
    if len(cell) == 16 and cell[:12] == bytes(10) + b"\xff\xff":
        cell = cell[12:]
    return _inet(str(ipaddress.ip_address(cell)))


_SCALAR: dict[str, Callable[[bytes], Any]] = {
    **{name: _of_width(width, _signed) for name, width in INTEGERS.items()},
    **{name: _of_width(struct.calcsize(code), _unpacked(code)) for name, code in FLOATS.items()},
    "ascii": lambda cell: cell.decode("ascii"),
    "blob": bytes,
    "boolean": _of_width(1, lambda cell: cell != b"\0"),
    "date": _of_width(4, lambda cell: int.from_bytes(cell, "big") - 2**31),
    "decimal": _decimal,
    "duration": _duration,
    "inet": _address,
    "text": bytes.decode,
    "timestamp": _of_width(8, _timestamp),
    "timeuuid": lambda cell: str(uuid.UUID(bytes=cell)),
    "uuid": lambda cell: str(uuid.UUID(bytes=cell)),
    "varchar": bytes.decode,
    "varint": lambda cell: str(_signed(cell)),
}


def _cells(data: bytes, most: int) -> list[bytes | None]:
    """The cells that make up the data, at most `most`."""
    found: list[bytes | None] = []
    while data:
        if len(data) < 4 or len(found) == most:
            raise NoValue
        length = _signed(data[:4])
        if length > len(data) - 4:
            raise NoValue
        found.append(data[4 : 4 + length] if length >= 0 else None)
        data = data[4 + max(length, 0) :]
    return found


def _elements(cell: bytes, each: int) -> list[bytes | None]:
    if not cell:
        return []
    found = _cells(cell[4:], len(cell))
    if len(cell) < 4 or _signed(cell[:4]) * each != len(found):
        raise NoValue
    return found


def _list(kind: CqlType, cell: bytes) -> list[Any]:
    return [by_the_rules(kind.args[0], each) for each in _elements(cell, 1)]


def _map(kind: CqlType, cell: bytes) -> list[tuple[Any, Any]]:
    cells = _elements(cell, 2)
    keys, values = ([by_the_rules(arg, each) for each in cells[i::2]] for i, arg in enumerate(kind.args))
    if None in keys:
        raise NoValue
    return list(zip(keys, values, strict=True))


def _tuple(kind: CqlType, cell: bytes) -> dict[str, Any]:
    cells = _cells(cell, len(kind.args))
    cells += [None] * (len(kind.args) - len(cells))
    names = kind.fields or [f"field_{i}" for i in range(len(kind.args))]
    return {name: by_the_rules(arg, each) for name, arg, each in zip(names, kind.args, cells, strict=True)}


def _vector(kind: CqlType, cell: bytes) -> list[Any]:
    if len(cell) % kind.size:
        raise NoValue
    width = len(cell) // kind.size
    found = [by_the_rules(kind.args[0], cell[i : i + width]) for i in range(0, len(cell), width)]
    return found


_COMPOUND: dict[str, Callable[[CqlType, bytes], Any]] = {
    "list": _list,
    "set": _list,
    "map": _map,
    "tuple": _tuple,
    "udt": _tuple,
}


# The driver


def by_the_driver(kind: CqlType, cell: bytes) -> Any:
    """The driver's value in the same form; raises the driver's errors."""
    return _from_driver(kind, _driver_type(kind).from_binary(cell, 4))


def _from_driver(kind: CqlType, value: Any) -> Any:
    if value is None or value is EMPTY:
        return None
    if kind.name == "map":
        return [(_from_driver(kind.args[0], key), _from_driver(kind.args[1], item)) for key, item in value.items()]
    if kind.name in ("list", "set", "vector"):
        return [_from_driver(kind.args[0], item) for item in value]
    if kind.name in ("tuple", "udt"):
        names = kind.fields or [f"field_{i}" for i in range(len(kind.args))]
        return {name: _from_driver(arg, item) for name, arg, item in zip(names, kind.args, value, strict=True)}
    return _FROM_DRIVER.get(kind.name, lambda item: item)(value)


_FROM_DRIVER: Mapping[str, Callable[[Any], Any]] = {
    "date": lambda value: value.days_from_epoch,
    "decimal": _java_decimal,
    "duration": _duration_text,
    "inet": lambda value: _address(ipaddress.ip_address(value).packed),
    "time": lambda value: value.nanosecond_time,
    "timeuuid": str,
    "uuid": str,
    "varint": str,
}
NOT_COMPARED = {"timestamp", "date"}
"""The driver uses Python's timestamps and dates, which are coarser and have a smaller range; its times end at a day."""


def comparable(kind: CqlType, value: Any) -> bool:
    """Whether the driver represents every part of the value."""
    if value is None:
        return True
    if kind.name in ("list", "set", "vector"):
        # The driver reads empty cells of collections as None.
        return bool(value) and all(item is not None and comparable(kind.args[0], item) for item in value)
    if kind.name == "map":
        # The driver's maps are sorted by the bytes of keys, and keep one of two equal keys.
        return len(value) == 1 and all(comparable(arg, item) for arg, item in zip(kind.args, value[0], strict=True))
    if kind.name in ("tuple", "udt"):
        fields = list(value.values())
        return any(field is not None for field in fields) and all(map(comparable, kind.args, fields))
    if kind.name == "time":
        return bool(0 <= value < 86_400 * 10**9)
    return kind.name not in NOT_COMPARED


# Ours


def arrow_type(kind: CqlType) -> pa.DataType:
    """The Arrow type of the Spark type, with numbers for timestamps and dates, not all of which Python can hold."""
    if kind.name == "timestamp":
        return pa.int64()
    if kind.name == "date":
        return pa.int32()
    inner = [arrow_type(arg) for arg in kind.args]
    if kind.name in ("list", "set", "vector"):
        return pa.list_(inner[0])
    if kind.name == "map":
        return pa.map_(inner[0], inner[1])
    if kind.name in ("tuple", "udt"):
        names = kind.fields or [f"field_{i}" for i in range(len(inner))]
        return pa.struct(list(zip(names, inner, strict=True)))
    return to_arrow_type(spark_type(kind))


class Guarded:
    """Memory before a page that cannot be read."""

    SIZE = 1 << 20

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, self.SIZE + mmap.PAGESIZE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mprotect(ctypes.c_void_p(address + self.SIZE), ctypes.c_size_t(mmap.PAGESIZE), 0):
            raise OSError(ctypes.get_errno(), "mprotect")

    def holding(self, data: bytes) -> memoryview | bytes:
        """The data, directly before that page if it fits into the memory."""
        if not data or len(data) > self.SIZE:
            return data
        self._map[self.SIZE - len(data) : self.SIZE] = data
        return memoryview(self._map)[self.SIZE - len(data) : self.SIZE]


GUARDED = Guarded()


def same(ours: Any, theirs: Any) -> bool:
    """Whether the values are equal; NaN equals NaN."""
    if isinstance(ours, float) and isinstance(theirs, float):
        return ours == theirs or (math.isnan(ours) and math.isnan(theirs))
    if isinstance(ours, (list, tuple)) and isinstance(theirs, (list, tuple)):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(same(ours[name], theirs[name]) for name in ours)
    return type(ours) is type(theirs) and bool(ours == theirs)


def check(data: bytes) -> bool:
    head, _, page = data.partition(b"\n")
    try:
        about = json.loads(head)
        kind = _type(about["type"], about["udts"])
        rows = int(about["rows"])
    except (ValueError, KeyError, TypeError):
        return False
    try:
        expected = _page(page, rows)
    except NoValue:
        expected = None
    try:
        buffer, starts, lengths = indexed(GUARDED.holding(page), rows, 1, where="fuzz")  # type: ignore[arg-type]
    except PenstockError as error:
        if expected is not None:
            raise Difference(f"{rows} rows of {page.hex()}: {error}") from error
        return False
    if expected is None:
        raise Difference(f"{rows} rows were found in {page.hex()}")
    return _compared(kind, Cells(buffer, starts[:, 0], lengths[:, 0]), expected)


def _page(page: bytes, rows: int) -> list[bytes | None]:
    if rows < 0:
        raise NoValue
    found: list[bytes | None] = []
    for _ in range(rows):
        length = _signed(page[:4]) if len(page) >= 4 else 2**31
        if length > len(page) - 4:
            raise NoValue
        found.append(page[4 : 4 + length] if length >= 0 else None)
        page = page[4 + max(length, 0) :]
    return found


def _compared(kind: CqlType, cells: Cells, expected: list[bytes | None]) -> bool:
    target = arrow_type(kind)
    bad = {}
    try:
        array = decode(kind, cells, target)
    except BadValue:
        bad = dict(bad_rows(lambda some: decode(kind, some, target), cells))
        if not bad:
            raise Difference("the column cannot be read, but each of its cells can") from None
        good = [row for row in range(len(cells)) if row not in bad]
        array = decode(kind, Cells(cells.buffer, cells.starts[good], cells.lengths[good]), target)
    array.validate(full=True)
    ours = iter(array.to_pylist())
    for row, cell in enumerate(expected):
        try:
            value = by_the_rules(kind, cell)
        except NoValue:
            if row not in bad:
                raise Difference(f"{kind}: {cell!r} is {next(ours)!r} and should be refused") from None
            continue
        if row in bad:
            raise Difference(f"{kind}: {cell!r} is {value!r} and was refused: {bad[row]}")
        read = next(ours)
        if not same(read, value):
            raise Difference(f"{kind}: {cell!r} is {value!r}, not {read!r}")
        if cell is not None and comparable(kind, value):
            try:
                theirs = by_the_driver(kind, cell)
            except Exception:  # a decimal without digits, or maps whose keys it cannot find again
                continue
            if not same(read, theirs):
                raise Difference(f"{kind}: {cell!r} is {read!r}, but the driver reads {theirs!r}")
    return not bad


# Inputs


def drawn_type(random: randoms.Random, udts: dict[str, Any], depth: int = 3) -> str:
    """A type as CQL writes it; the user types in it are added to `udts`."""
    if not depth or random.random() < 0.3:
        return random.choice(SCALARS)
    name = random.choice(("list", "set", "map", "tuple", "udt", "vector"))
    if name == "vector":
        return f"vector<{random.choice(VECTORS)}, {random.choice((1, 2, 3, 8))}>"
    count = {"list": 1, "set": 1, "map": 2}.get(name) or random.randint(1, 4)
    inner = [drawn_type(random, udts, depth - 1) for _ in range(count)]
    if name == "udt":
        udts[f"u{len(udts)}"] = [[f"f{i}" for i in range(count)], inner]
        return f"frozen<u{len(udts) - 1}>"
    return f"frozen<{name}<{', '.join(inner)}>>"


def _type(text: str, udts: Mapping[str, Any]) -> CqlType:
    return parse_type(text, {name: (tuple(names), tuple(kinds)) for name, (names, kinds) in udts.items()})


def drawn_cell(random: randoms.Random, kind: CqlType) -> bytes | None:
    """A value's bytes; sometimes null or empty, also where this is not valid."""
    luck = random.random()
    if luck < 0.04:
        return None
    if luck < 0.08:
        return b""
    if luck < 0.1:
        return noise(random, 40)
    if kind.name == "vector":
        return b"".join(drawn_cell(random, kind.args[0]) or b"" for _ in range(kind.size))
    if kind.name in ("tuple", "udt"):
        count = len(kind.args) if random.random() < 0.9 else random.randint(0, len(kind.args))
        return laid(*(drawn_cell(random, arg) for arg in kind.args[:count]))
    if kind.name in ("list", "set", "map"):
        count = random.choice((0, 1, 1, 2, 3, 10))
        cells = [drawn_cell(random, arg) for _ in range(count) for arg in kind.args]
        return struct.pack(">i", count) + laid(*cells)
    return _drawn_scalar(random, kind.name)


def _drawn_scalar(random: randoms.Random, name: str) -> bytes:
    width = INTEGERS.get(name) or {"date": 4, "float": 4, "double": 8, "boolean": 1}.get(name, 0)
    if width:
        return _integer(random, width)
    if name == "timestamp":
        return _integer(random, 8) if random.random() < 0.3 else _integer(random, 6).rjust(8, b"\0")
    if name in ("uuid", "timeuuid"):
        return random.randbytes(16)
    if name == "inet":
        return random.choice((random.randbytes(4), random.randbytes(16), bytes(10) + b"\xff\xff" + random.randbytes(4)))
    if name == "varint":
        return _integer(random, random.choice((1, 2, 8, 9, 20, 300)))
    if name == "decimal":
        scale = random.choice((0, 1, 2, 7, 20, -3)).to_bytes(4, "big", signed=True)
        return (scale if random.random() < 0.9 else random.randbytes(4)) + _integer(random, random.choice((1, 4, 12)))
    if name == "duration":
        sign = random.choice((1, -1))
        return bytes(vints_pack([sign * random.choice((0, 1, 13, 2**31 - 1, 2**40)) for _ in range(3)]))
    if name == "blob":
        return noise(random, 100)
    text = "".join(random.choice("ab \u00e9\u20ac\U0001f600") for _ in range(random.randint(0, 12)))
    return (text if name != "ascii" else text.encode("ascii", "replace").decode()).encode()


def _integer(random: randoms.Random, width: int) -> bytes:
    edge = random.choice((0, 1, -1, 127, -128, 255, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63)))
    value = edge if random.random() < 0.3 else random.getrandbits(8 * width)
    return (value & ((1 << 8 * width) - 1)).to_bytes(width, "big")


def laid(*cells: bytes | None) -> bytes:
    """Cells, each after its length."""
    return b"".join(struct.pack(">i", -1 if cell is None else len(cell)) + (cell or b"") for cell in cells)


def made(text: str, *cells: bytes | None, udts: Mapping[str, Any] | None = None, rows: int | None = None) -> bytes:
    """An input with these cells."""
    about = {"type": text, "udts": udts or {}, "rows": len(cells) if rows is None else rows}
    return json.dumps(about).encode() + b"\n" + laid(*cells)


def draw(random: randoms.Random) -> bytes:
    udts: dict[str, Any] = {}
    text = drawn_type(random, udts)
    kind = _type(text, udts)
    cells = [drawn_cell(random, kind) for _ in range(random.randint(1, 5))]
    damage = random.random()
    if damage < 0.4:
        at = random.randrange(len(cells))
        cells[at] = mutated(random, cells[at] or b"")
    data = made(text, *cells, udts=udts)
    if damage > 0.9:
        head, _, page = data.partition(b"\n")
        data = head + b"\n" + mutated(random, page)
    return data


DECODER = Decoder(name="cql_cells", draw=draw, check=check)
