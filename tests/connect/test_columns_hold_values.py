"""Each type of value in each type of column of each sink: the column has the value, or the value is refused.

Values are drawn beside the edges of the columns. What a column must hold is computed here with fractions, so that the
rule of the sinks is not compared with itself.
"""

from __future__ import annotations

import io
import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
import pyarrow.parquet as pq
import pytest

from penstock.codec.connect_schema import Schema
from penstock.connect.records.json_data import of_json
from penstock.connect.records.record import DATA, Part, TimeOfDay, Timestamp
from penstock.connect.records.semantic_types import MicroTime, MicroTimestamp, NanoTime, NanoTimestamp
from penstock.connect.sinks.cql.values import cell
from penstock.connect.sinks.destination import BadRecord, Unfit
from penstock.connect.sinks.files.formats import ParquetRows, columns_of
from penstock.connect.sinks.jdbc.transaction import RefusedStatement, Transaction
from penstock.connect.sinks.jdbc.values import text_of
from penstock.database.cql_types import parse_type
from penstock.postgres.postgres_columns import COLUMNS, TargetColumn
from penstock.postgres.postgres_session import literal

Number: TypeAlias = Fraction | float
"""A stored number: a float only if it is not finite."""
FLOAT, DOUBLE = 24, 53
NANOS = 1_000_000_000
DAY = 86_400 * NANOS
DRAWS = 40
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# Values.


def _digits(random: random.Random) -> str:
    """A number as people write it, of up to 40 digits."""
    whole = str(random.randrange(10 ** random.choice([1, 3, 5, 8, 17, 20, 40])))
    part = "".join(random.choices("0123456789", k=random.choice([0, 1, 2, 3, 20])))
    power = random.choice(["", "", "", f"e{random.randrange(-30, 30)}"])
    return random.choice(["", "-"]) + whole + (f".{part}" if part else "") + power


EDGES = [
    *(sign * (1 << bits) + by for bits in (7, 8, 15, 24, 31, 53, 63, 64) for sign in (1, -1) for by in (-1, 0, 1)),
    *(0, 1, 100_000),
]
SHARP = ["1.239", "2.505", "12.345", "999.99", "1000", "-999.995", "0.10", "1e400", "-1e400", "1e-400", "1e39", "1e-50"]
SHARP += ["12345678901234567.89", "100000000000000000000.01", "0.1", "16777216.5", "9007199254740993", "1e20", "1.0"]


def _integers(random: random.Random) -> Iterator[Any]:
    yield from EDGES
    yield from (random.randrange(-(10**20), 10**20) for _ in range(DRAWS))


def _doubles(random: random.Random) -> Iterator[Any]:
    yield from (float(text) for text in SHARP if abs(float(text)) != float("inf"))
    yield from (float(edge) for edge in EDGES)
    yield from (struct.unpack(">d", random.randbytes(8))[0] for _ in range(DRAWS))
    yield from (float("nan"), float("inf"), float("-inf"))


def _texts(random: random.Random) -> Iterator[Any]:
    yield from (*SHARP, *map(str, EDGES))
    yield from (_digits(random) for _ in range(DRAWS))


NUMBERS: dict[str, Callable[[random.Random], Iterator[Any]]] = {
    "integer": _integers,
    "double": _doubles,
    "decimal": lambda random: map(Decimal, _texts(random)),
    "text": _texts,
    "JSON": lambda random: (of_json(text.encode(), enveloped=False).value for text in _texts(random)),
}
TIMES_OF_DAY = {"millis": (TimeOfDay, 1_000_000), "micros": (MicroTime, 1_000), "nanos": (NanoTime, 1)}
TIMESTAMPS = {"millis": (Timestamp, 1_000_000), "micros": (MicroTimestamp, 1_000), "nanos": (NanoTimestamp, 1)}


def _times(random: random.Random, unit: int, largest: int) -> Iterator[int]:
    yield from (number // unit for number in (0, NANOS, DAY // 2, DAY - 1, DAY - 1000, DAY - 1_000_000, 1, 10**6))
    yield from (random.randrange(largest // unit) for _ in range(DRAWS // 2))


# Columns.


@dataclass(frozen=True)
class Numeric:
    """What a column of numbers can hold: whole numbers in a range, decimals of a scale, or floats of `bits`."""

    low: Fraction | None = None
    high: Fraction | None = None
    scale: int | None = None
    bits: int = 0

    def must_hold(self, value: Fraction) -> bool:
        if self.bits:
            nearest = _nearest(value, self.bits)
            if abs(nearest) == float("inf") or (nearest == 0 and value):
                return False
            same_digits = Fraction(Decimal(str(np.float32(nearest) if self.bits == FLOAT else nearest))) == value
            return abs(value) <= 1 << self.bits or Fraction(nearest) == value or same_digits
        if self.scale is not None and (value * 10**self.scale).denominator != 1:
            return False
        return (self.low is None or self.low <= value) and (self.high is None or value <= self.high)

    def held(self, value: Fraction) -> Number:
        return Fraction(_nearest(value, self.bits)) if self.bits else value


def _nearest(value: Fraction, bits: int) -> float:
    """The nearest float or double of a fraction, by comparing the two on both sides of it."""
    size, form, width = (32, ">f", "I") if bits == FLOAT else (64, ">d", "Q")
    low, high = 0, (0x7F << 24 | 0x80 << 16) if size == 32 else 0x7FF << 52
    largest = Fraction(2) ** (128 if size == 32 else 1024)

    def at(pattern: int) -> Fraction:
        found: float = struct.unpack(form, struct.pack(f">{width}", pattern))[0]
        return largest if found == float("inf") else Fraction(found)

    wanted, top = abs(value), high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if at(middle) <= wanted else (low, middle)
    nearer = at(high) - wanted, wanted - at(low)
    pattern = high if nearer[0] < nearer[1] or (nearer[0] == nearer[1] and high % 2 == 0) or wanted >= at(top) else low
    found: float = struct.unpack(form, struct.pack(f">{width}", min(pattern, top)))[0]
    return -found if value < 0 else found


def whole(bits: int) -> Numeric:
    return Numeric(Fraction(-(1 << bits - 1)), Fraction((1 << bits - 1) - 1), 0)


def decimals(digits: int, scale: int) -> Numeric:
    most = Fraction(10**digits - 1, 10**scale)
    return Numeric(-most, most, scale)


EXACT = Numeric()
REALS = {"float": Numeric(bits=FLOAT), "double": Numeric(bits=DOUBLE)}
CQL_NUMBERS = {
    **{name: whole(bits) for name, bits in {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}.items()},
    "varint": Numeric(scale=0),
    "decimal": EXACT,
    **REALS,
}
JDBC_NUMBERS = {
    **{name: whole(bits) for name, bits in {"smallint": 16, "integer": 32, "bigint": 64}.items()},
    "numeric": EXACT,
    "numeric(5,2)": decimals(5, 2),
    "numeric(10,2)": decimals(10, 2),
    "numeric(20,0)": decimals(20, 0),
    "money": Numeric(Fraction(-(1 << 63), 100), Fraction((1 << 63) - 1, 100), 2),
    "real": REALS["float"],
    "double precision": REALS["double"],
}
PARQUET_NUMBERS: dict[str, tuple[Schema, Numeric, type]] = {
    **{f"int{bits}": ({"type": f"int{bits}"}, whole(bits), int) for bits in (8, 16, 32, 64)},
    "decimal(38,2)": (
        {"type": "bytes", "name": f"{DATA}Decimal", "parameters": {"scale": "2"}},
        decimals(38, 2),
        Decimal,
    ),
    **{name: ({"type": name}, REALS[name], float) for name in ("float", "double")},
}
CQL_FORMS = {"float": ">f", "double": ">d"}


def wrong(column: Numeric, value: Any, found: Number | None) -> str:
    """What is wrong with what a column has of a value, None if it was refused; "" if nothing is."""
    if isinstance(value, float) and value - value != 0:
        if found is None:
            return "refused" if column.bits else ""
        same = isinstance(found, float) and str(found).lower() == str(value)
        return "" if same else f"became {found}"
    # A double is the number that it shows, or the whole number that it is.
    meanings = {Fraction(Decimal(str(value))), *([Fraction(value)] if isinstance(value, float) else [])}
    is_integer = not isinstance(value, Decimal) and str(value).lstrip("-").isdigit()
    can = [one for one in meanings if column.must_hold(one) and not (is_integer and column.held(one) != one)]
    if found is None:
        is_notation = isinstance(value, str) and column.scale == 0 and not value.lstrip("-").isdigit()
        return "refused" if can and not is_notation else ""
    return "" if found in map(column.held, can) else f"became {found}"


def wrong_pairs(name: str, column: Numeric, stored: Callable[[Any], Number | None]) -> list[str]:
    """The types of values with a wrong value in a column, each with its first one."""
    pairs = []
    for source, draw in NUMBERS.items():
        values = draw(random.Random(name))
        first = next(((value, why) for value in values if (why := wrong(column, value, stored(value)))), None)
        pairs += [] if first is None else [f"{source} in {name}: {str(first[0])[:60]} {first[1]!s:.60}"]
    return pairs


# CQL.


@pytest.mark.parametrize("name", CQL_NUMBERS)
def test_numbers_in_columns_of_cql(name: str) -> None:
    kind = parse_type(name, {})

    def stored(value: Any) -> Number | None:
        try:
            data = cell(kind, value)
        except Unfit:
            return None
        assert data is not None
        if name in CQL_FORMS:
            real: float = struct.unpack(CQL_FORMS[name], data)[0]
            return real if real - real != 0 else Fraction(real)
        if name != "decimal":
            return Fraction(int.from_bytes(data, "big", signed=True))
        scale = int.from_bytes(data[:4], "big", signed=True)
        return Fraction(int.from_bytes(data[4:], "big", signed=True)) / Fraction(10) ** scale

    assert not wrong_pairs(name, CQL_NUMBERS[name], stored)


@pytest.mark.parametrize("unit", TIMES_OF_DAY)
def test_times_in_columns_of_cql(unit: str) -> None:
    """A time of day stays whole; a timestamp is rounded down to milliseconds."""
    made, nanos = TIMES_OF_DAY[unit]
    for number in _times(random.Random(unit), nanos, DAY):
        assert cell(parse_type("time", {}), made(number)) == (number * nanos).to_bytes(8, "big")
    made, nanos = TIMESTAMPS[unit]
    for number in _times(random.Random(unit), nanos, 50_000 * DAY):
        wanted = number * nanos // 1_000_000
        assert cell(parse_type("timestamp", {}), made(number)) == wanted.to_bytes(8, "big", signed=True)


# PostgreSQL, by assignment to a column of a table.

Store: TypeAlias = Callable[[str, Any], str | None]


@pytest.fixture(scope="module")
def stored(postgres: str) -> Iterator[Store]:
    """What a column of PostgreSQL shows of a value, None if it is refused."""
    transaction = Transaction(postgres, "a test")
    for statement in ("SET TIME ZONE 'UTC'", "SET extra_float_digits = 1"):
        transaction.run(statement)
    known: dict[str, tuple[str, TargetColumn]] = {}

    def stored(kind: str, value: Any) -> str | None:
        if kind not in known:
            name = f"t{len(known)}"
            transaction.run(f"CREATE TEMPORARY TABLE {name} (c {kind})")
            known[kind] = name, TargetColumn(*transaction.rows(COLUMNS.format(table=literal(name)))[0])
        name, column = known[kind]
        try:
            text = text_of(column, value, UTC)
        except Unfit:
            return None
        transaction.run("SAVEPOINT stored")
        try:
            shown = "c::numeric" if kind == "money" else "c"
            insert = f"INSERT INTO {name} VALUES ({literal(text or '')}) RETURNING {shown}::text"
            return str(transaction.rows(insert)[0][0])
        except RefusedStatement:
            return None
        finally:
            transaction.run("ROLLBACK TO SAVEPOINT stored")
            transaction.run("RELEASE SAVEPOINT stored")

    yield stored
    transaction.close()


@pytest.mark.parametrize("name", JDBC_NUMBERS)
def test_numbers_in_columns_of_postgres(stored: Store, name: str) -> None:
    column = JDBC_NUMBERS[name]

    def number(value: Any) -> Number | None:
        shown = stored(name, value)
        if shown is None:
            return None
        if shown in ("NaN", "Infinity", "-Infinity"):
            return float(shown)
        if column.bits:  # the shortest digits stand for the whole number
            return Fraction(float(np.float32(shown)) if column.bits == FLOAT else float(shown))
        return Fraction(shown)

    assert not wrong_pairs(name, column, number)


@pytest.mark.parametrize("digits", [0, 3, 6])
@pytest.mark.parametrize("unit", TIMES_OF_DAY)
def test_times_in_columns_of_postgres(stored: Store, unit: str, digits: int) -> None:
    """What is smaller than a microsecond is cut off, and no digit that a column is declared without."""
    step = 10 ** (6 - digits)
    made, nanos = TIMES_OF_DAY[unit]
    for number in _times(random.Random(unit), nanos, DAY):
        micros, found = number * nanos // 1000, stored(f"time({digits})", made(number))
        assert (found is None) == (micros % step != 0), (number, found)
        assert found is None or time.fromisoformat(found) == (EPOCH + timedelta(microseconds=micros)).time()
    made, nanos = TIMESTAMPS[unit]
    for number in _times(random.Random(unit), nanos, 50_000 * DAY):
        micros, found = number * nanos // 1000, stored(f"timestamp({digits})", made(number))
        assert (found is None) == (micros % step != 0), (number, found)
        wanted = (EPOCH + timedelta(microseconds=micros)).replace(tzinfo=None)
        assert found is None or datetime.fromisoformat(found) == wanted


@pytest.mark.parametrize(
    ("kind", "value", "found"),
    [
        ("varchar(3)", "abc   ", None),
        ("varchar(3)", "ab ", "ab "),
        ("name", "é" * 32, None),
        ('"char"', "ab", None),
        ("money", "$2.505", None),
        ("money", "$1,234.50", "1234.50"),
        ("numeric(5,2)", "1.2300", "1.23"),
        ("numeric(5,2)[]", ["1.23", Decimal("1.239")], None),
        ("time(0)", "10:00:00.6", None),
        ("time", "10:00:00.1234567", None),
        ("timestamp", "2026-01-31 10:00:00.1234567", None),
        ("timestamptz(3)", "2026-01-31T10:00:00.123400Z", None),
        ("timestamptz(3)", "2026-01-31T10:00:00.123000Z", "2026-01-31 10:00:00.123+00"),
        ("interval(0)", "00:00:01.5", None),
        ("interval", "1.5 hours", "01:30:00"),
    ],
)
def test_text_that_postgres_would_cut_or_round_is_refused(stored: Store, kind: str, value: Any, found: str) -> None:
    assert stored(kind, value) == found


# Parquet, whose columns are those of the schema.


@pytest.mark.parametrize("name", PARQUET_NUMBERS)
def test_numbers_in_columns_of_parquet(name: str) -> None:
    schema, column, kind = PARQUET_NUMBERS[name]
    part_schema: Schema = {"type": "struct", "fields": [{**schema, "field": "c", "optional": True}]}

    def stored(value: Any) -> Number | None:
        rows = ParquetRows("none", columns_of)
        try:
            rows.add(Part(part_schema, {"c": value}))
        except BadRecord:
            return None
        found = pq.read_table(io.BytesIO(rows.data()))["c"][0].as_py()
        return found if isinstance(found, float) and found - found != 0 else Fraction(found)

    # A converter has given values of the column's own type already.
    values = [value for draw in NUMBERS.values() for value in draw(random.Random(name)) if type(value) is kind]
    found = [(value, why) for value in values if (why := wrong(column, value, stored(value)))]
    assert not found, found[:5]
