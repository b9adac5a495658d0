"""Members of JSON objects in columns, against Python's json: what the loop takes is what a whole parser reads.

An input is values with the byte 0x1e between them, one column. What the loop is not sure of, it leaves to Spark's
parser: then all members are null. So nothing is said here of what it leaves.
"""

from __future__ import annotations

import json
import random as randoms
import struct
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import types as st

from penstock.kafka.kafka_records import columns, members

from .mutate import mutated, noise
from .runner import Decoder, Difference

SEPARATOR = b"\x1e"
KINDS: dict[str, st.DataType] = {
    "i": st.IntegerType(),
    "n": st.LongType(),
    "price": st.DoubleType(),
    "ok": st.BooleanType(),
    "name": st.StringType(),
    "at": st.TimestampType(),
    "day": st.DateType(),
    "small": st.ShortType(),
    "tiny": st.ByteType(),
    "share": st.FloatType(),
    "a member with a longer name": st.StringType(),
}
BITS = {"tiny": 8, "small": 16, "i": 32, "n": 64}
WANTED = members(st.StructType([st.StructField(name, kind) for name, kind in KINDS.items()]))
START = datetime(1970, 1, 1, tzinfo=UTC)
TOKENS = (
    *("0", "-0", "7", "-12", "2147483647", "2147483648", "999999999999999999", "1e2", "1.5", "-0.0", "1e400", "0.1"),
    *(
        "123456789012345.6",
        "true",
        "false",
        "null",
        "{}",
        "[]",
        '[1,{"a":[]}]',
        '"a"',
        '"\\u00e9\\n"',
        '"\\ud83d\\ude00"',
    ),
    *('"\\ud800"', '"é"', '"2026-01-31"', '"2024-02-29"', '"2026-01-31T12:00:00.5+05:30"', '"0001-01-01T00:00:00Z"'),
    *('"2026-12-31T23:59:59.123456Z"', '"' + "long text " * 5 + '"', "[" * 59 + "]" * 59, "1099511627776", "NaN"),
)


def _object(random: randoms.Random) -> bytes:
    names = random.sample([*KINDS, "other", "x" * 20], random.randrange(6))
    if random.random() < 0.1:
        names += names[:1]
    parts = []
    for name in names:
        value = random.choice(TOKENS)
        if random.random() < 0.3:
            value = repr(random.choice((random.randrange(-300, 300), round(random.uniform(-1e6, 1e6), 3))))
        space = random.choice(("", "", "", " ", "\n"))
        parts.append(f'"{name}"{space}:{space}{value}{space}')
    return f"{{{','.join(parts)}}}".encode()


def _draw(random: randoms.Random) -> bytes:
    rows = [_object(random) for _ in range(random.randrange(1, 5))]
    if random.random() < 0.6:
        place = random.randrange(len(rows))
        rows[place] = mutated(random, rows[place]) if random.random() < 0.95 else noise(random, 100)
    return SEPARATOR.join(rows)


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        made[""] = [name for name, _ in pairs]
    return made


def _parsed(row: bytes) -> dict[str, Any]:
    def constant(text: str) -> None:
        raise ValueError(text)

    found = json.loads(row.decode(), object_pairs_hook=_pairs, parse_constant=constant)
    if not isinstance(found, dict):
        raise ValueError("no object")
    twice = found.get("")
    if isinstance(twice, list) and any(twice.count(name) > 1 for name in KINDS):
        raise ValueError("a member twice")
    return found


def _expected(name: str, value: Any) -> Any:
    """The cell of a member; a ValueError if it is of another type."""
    if value is None:
        return None
    kind = KINDS[name]
    if isinstance(kind, st.StringType) and isinstance(value, str):
        return value.encode()
    if isinstance(kind, st.BooleanType) and isinstance(value, bool):
        return value
    if name in BITS and type(value) is int and -(1 << BITS[name] - 1) <= value < 1 << BITS[name] - 1:
        return value
    if isinstance(kind, st.DoubleType | st.FloatType) and type(value) in (int, float):
        made = float(value)
        if isinstance(kind, st.FloatType) and float(np.float32(made)) != made:
            raise ValueError(f"{made} is no float of 32 bits")
        return struct.pack(">d", made)
    if isinstance(kind, st.DateType) and isinstance(value, str) and len(value) == 10:
        return (date.fromisoformat(value) - START.date()).days
    if isinstance(kind, st.TimestampType):
        if type(value) is int:
            return value * 1_000_000
        if isinstance(value, str) and len(value) >= 20 and value[10] == "T":
            return (datetime.fromisoformat(value) - START) // timedelta(microseconds=1)
    raise ValueError(f"{value!r} is no {kind.simpleString()}")


def _cell(name: str, value: Any) -> Any:
    return struct.pack(">d", value) if isinstance(value, float) else value


def _check(data: bytes) -> bool:
    rows = data.split(SEPARATOR)
    assert WANTED
    # A slice, as a batch's values are.
    read, cells = columns(pa.array([b"x", *rows], pa.binary()).slice(1), WANTED)
    for column in cells:
        column.validate(full=True)
    plain = [column.cast(pa.binary()) if pa.types.is_string(column.type) else column for column in cells]
    plain = [column.cast(pa.int32()) if pa.types.is_date(column.type) else column for column in plain]
    plain = [column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column for column in plain]
    found = list(zip(*(column.to_pylist() for column in plain), strict=True))
    for row, good, ours in zip(rows, read.to_pylist(), found, strict=True):
        if not good:
            if any(value is not None for value in ours):
                raise Difference(f"{row!r} is left to another parser, and has {ours}")
            continue
        try:
            members_of = _parsed(row)
            expected = [_expected(name, members_of.get(name)) for name in KINDS]
        except ValueError as refusal:
            raise Difference(f"{row!r} is read, and is wrong: {refusal}") from refusal
        if [_cell(name, value) for name, value in zip(KINDS, ours, strict=True)] != expected:
            raise Difference(f"{row!r}: {ours} and {expected}")
    return bool(read.true_count)


DECODER = Decoder(name="json_columns", draw=_draw, check=_check)
