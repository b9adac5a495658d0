"""Arrow arrays to cells: limits and odd values of each CQL type, as the driver reads them back."""

from __future__ import annotations

import datetime as dt
import math
import struct
import uuid
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from cassandra.cluster import Session
from cql_values import PROTOCOL, TYPES, _driver_type, cells_of, in_spark, to_bytes, values
from hypothesis import HealthCheck, example, given, settings, strategies as st

from penstock.database.bad_values import bad_rows
from penstock.database.cells import lay_cells, lay_collections
from penstock.database.columns import BadValue, Cells, decode, decode_list_in_log
from penstock.database.cql_types import CqlType, log_value_type, parse_type, spark_type
from penstock.database.encode_cells import as_bytes, encode, gathered, laid_out, list_bytes
from penstock.errors import PenstockError
from penstock.spark_runtime.arrow_types import to_arrow_type


def kind_of(text: str) -> CqlType:
    return parse_type(text, {"place": (("city", "n"), ("text", "int"))})


def arrow(kind: CqlType, items: list[Any]) -> pa.Array:
    return pa.array(items, to_arrow_type(spark_type(kind), timezone="UTC"))


def cell(text: str, value: Any) -> bytes:
    (found,) = as_bytes(encode(kind_of(text), arrow(kind_of(text), [value])))
    assert found is not None
    return found


def read(text: str, *items: bytes | None) -> list[Any]:
    kind = kind_of(text)
    array = decode(kind, cells_of(list(items)), to_arrow_type(spark_type(kind), timezone="UTC"))
    array.validate(full=True)
    found: list[Any] = array.to_pylist()
    return found


LIMITS: list[tuple[str, Any, str]] = [
    ("tinyint", -128, "80"),
    ("tinyint", 127, "7f"),
    ("smallint", -(2**15), "8000"),
    ("int", -(2**31), "80000000"),
    ("int", 2**31 - 1, "7fffffff"),
    ("bigint", -(2**63), "8000000000000000"),
    ("bigint", -1, "ffffffffffffffff"),
    ("counter", 2**63 - 1, "7fffffffffffffff"),
    ("boolean", True, "01"),
    ("boolean", False, "00"),
    ("float", -0.0, "80000000"),
    ("float", math.inf, "7f800000"),
    ("double", -math.inf, "fff0000000000000"),
    ("double", 5e-324, "0000000000000001"),
    ("date", dt.date(1970, 1, 1), "80000000"),
    ("date", dt.date(1969, 12, 31), "7fffffff"),
    ("date", dt.date.max, "802cc0a0"),
    ("time", 0, "0000000000000000"),
    ("time", 86_399_999_999_999, "00004e94914effff"),
    ("varint", "0", "00"),
    ("varint", "127", "7f"),
    ("varint", "128", "0080"),
    ("varint", "-128", "80"),
    ("varint", "-129", "ff7f"),
    ("varint", "32768", "008000"),
    ("decimal", "0", "0000000000"),
    ("decimal", "0.00", "0000000200"),
    ("decimal", "-1.28", "0000000280"),
    ("decimal", "1E+2147483648", "8000000001"),
    ("decimal", "1E-2147483647", "7fffffff01"),
    ("duration", "", "000000"),
    ("duration", "1mo1d1ns", "020202"),
    ("duration", "-1mo1d1ns", "010101"),
    ("duration", "64ns", "00008080"),
    ("inet", "127.0.0.1", "7f000001"),
    ("inet", "0:0:0:0:0:0:0:1", "00" * 15 + "01"),
    ("uuid", "00000000-0000-0000-0000-000000000000", "00" * 16),
    ("uuid", "ffffffff-ffff-ffff-ffff-ffffffffffff", "ff" * 16),
    ("text", "", ""),
    ("text", "\0\U0001f600", "00f09f9880"),
    ("blob", b"", ""),
    ("list<int>", [], "00000000"),
    ("map<text, int>", [], "00000000"),
    ("vector<float, 2>", [1.0, -0.0], "3f80000080000000"),
    ("tuple<int, text>", {"field_0": None, "field_1": ""}, "ffffffff00000000"),
    ("place", {"city": None, "n": None}, "ffffffffffffffff"),
]


@pytest.mark.parametrize(("text", "value", "data"), LIMITS)
def test_limits_are_the_bytes_of_the_protocol_in_both_directions(text: str, value: Any, data: str) -> None:
    if text != "counter":  # no column of counters can be written
        assert cell(text, value).hex() == data
    (found,) = read(text, bytes.fromhex(data))
    assert found == value and str(found) == str(value)


@pytest.mark.parametrize("text", ["float", "double"])
def test_numbers_that_are_not_numbers_stay_so(text: str) -> None:
    (found,) = read(text, cell(text, math.nan))
    assert math.isnan(found)


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@example((CqlType("tuple", (CqlType("uuid"),), True), [None]))  # Arrow gives the field of a null tuple an empty string
@given(TYPES.flatmap(lambda kind: st.tuples(st.just(kind), st.lists(st.none() | values(kind), max_size=5))))
def test_the_driver_reads_what_is_written(case: tuple[CqlType, list[Any]]) -> None:
    """The other direction: Arrow values to cells, and the driver's own deserialisers and serialisers on them."""
    kind, items = case
    cells = as_bytes(encode(kind, arrow(kind, [in_spark(kind, item) for item in items])))
    assert [data is None for data in cells] == [item is None for item in items]
    for data, item in zip(cells, items, strict=True):
        if data is not None and not kind.args:
            again = _driver_type(kind).from_binary(data, PROTOCOL)
            assert to_bytes(kind, again) == to_bytes(kind, item) == data


@given(st.lists(st.none() | st.datetimes(dt.datetime(1, 1, 2), dt.datetime(9999, 12, 30)), min_size=1))  # noqa: DTZ001
@example([dt.datetime(1969, 12, 31, 23, 59, 59, 999_999)])  # noqa: DTZ001
def test_timestamps_are_rounded_down_to_milliseconds(times: list[dt.datetime | None]) -> None:
    """CQL has milliseconds: a time before 1970 is rounded like others, and not to 1970."""
    array = pa.array([at and at.replace(tzinfo=dt.UTC) for at in times], pa.timestamp("us", "UTC"))
    cells = as_bytes(encode(CqlType("timestamp"), array))
    epoch = dt.datetime(1970, 1, 1)  # noqa: DTZ001
    expected = [at and (at - epoch) // dt.timedelta(milliseconds=1) for at in times]
    assert [data and int.from_bytes(data, "big", signed=True) for data in cells] == expected


@given(st.lists(st.none() | st.uuids(), max_size=6), st.integers(0, 3))
def test_uuids_in_capital_letters_and_slices_are_uuids(ids: list[uuid.UUID | None], skip: int) -> None:
    texts = pa.array([None if each is None else str(each).upper() for each in ids], pa.string())
    cells = as_bytes(encode(CqlType("uuid"), texts.slice(skip)))
    assert cells == [None if each is None else each.bytes for each in ids[skip:]]


@pytest.mark.parametrize(
    "texts",
    [
        ["----" + "1" * 32],
        ["1" * 32 + "----"],
        # Together they have the digits of two uuids, but each has its hyphens elsewhere.
        ["-----" + "1" * 31, "---" + "2" * 33],
        ["12345678-1234-1234-1234-1234567890ab", "123456781-234-1234-1234-1234567890ab"],
        ["é2345678-1234-1234-1234-1234567890ab"],
        ["{2345678-1234-1234-1234-1234567890ab"],
        ["12345678-1234-1234-1234-1234567890a\n"],
        [""],
    ],
)
@pytest.mark.parametrize("name", ["uuid", "timeuuid"])
def test_hyphens_and_digits_in_other_places_are_no_uuid(name: str, texts: list[str]) -> None:
    wrong = texts[-1] if texts[0][:8] == "12345678" else texts[0]
    with pytest.raises(PenstockError, match="is not a valid") as raised:
        encode(CqlType(name), pa.array([None, *texts]))
    assert raised.value.what == f"{wrong!r} is not a valid {name}"


@pytest.mark.parametrize("digits", [4000, 4001, 4301, 20_000])
@pytest.mark.parametrize("sign", ["", "-"])
def test_numbers_that_can_be_read_can_be_written(digits: int, sign: str) -> None:
    """Python's own conversion refuses more than 4300 digits."""
    number = sign + "1234567890" * (digits // 10) + "7" * (digits % 10)
    assert read("varint", cell("varint", number)) == [number]
    for text in (f"{number[:-2]}.{number[-2:]}", number):
        data = cell("decimal", text)
        assert read("decimal", data) == [text]


@pytest.mark.parametrize("text", ["1" * 5000 + "x", "1" * 5000 + ".0", "1" * 5000 + "E5", "--" + "1" * 5000, "1e5", ""])
def test_a_long_text_that_is_no_whole_number_is_refused(text: str) -> None:
    with pytest.raises(PenstockError, match="is not a valid varint"):
        encode(CqlType("varint"), pa.array([text]))


@given(st.integers() | st.integers(-(10**300), 10**300) | st.integers(0, 80).map(lambda bits: -(2**bits)))
def test_a_varint_has_the_fewest_bytes(number: int) -> None:
    data = cell("varint", str(number))
    assert int.from_bytes(data, "big", signed=True) == number
    assert len(data) == 1 or not -(1 << 8 * (len(data) - 1) - 1) <= number < 1 << 8 * (len(data) - 1) - 1


@given(st.decimals(allow_nan=False, allow_infinity=False))
def test_a_decimal_keeps_its_value_and_its_zeros(number: Decimal) -> None:
    (text,) = read("decimal", cell("decimal", str(number)))
    # Java's decimals have no negative zero.
    assert Decimal(text).as_tuple() == (number if number else abs(number)).as_tuple()


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("1y2mo3d4h5m6s7ms8us9ns", True),
        ("9ns1y", True),
        ("2147483647mo2147483647d9223372036854775807ns", True),
        ("-2147483648mo", True),
        ("2147483648mo", False),
        ("178956971y", False),
        ("2147483648d", False),
        ("9223372036854775808ns", False),
        ("-", False),
        ("1", False),
        ("1.5h", False),
        ("+1h", False),
        ("1h-1m", False),
        ("1h ", False),
        ("P", False),
        ("PT", False),
        ("P1YT", False),
        ("P1W2D", False),
        ("P1D1Y", False),
        ("P1Y-1M", False),
        ("p1y", False),
        ("P2026-1-1T00:00:00", False),
        ("\u0661y", False),
    ],
)
def test_durations_have_32_bits_of_months_and_days_and_64_of_nanoseconds(text: str, good: bool) -> None:
    if good:
        assert _driver_type(CqlType("duration")).from_binary(cell("duration", text), PROTOCOL)
        return
    with pytest.raises(PenstockError, match="is not a valid duration"):
        cell("duration", text)


def test_durations_are_read_in_each_notation_of_cql(cql: Session, keyspace: str) -> None:
    texts = ["1y2w3d", "1Y2MO3D4H5M6S7MS8US9NS", "5\u00b5s", "-2w", "P1Y2M3DT4H5M6S", "PT4H", "P3W", "-P1M", "P0Y"]
    texts += ["P0001-02-03T04:05:06"]
    cql.execute(f"CREATE TABLE {keyspace}.durations (id int PRIMARY KEY, d duration)")
    for number, text in enumerate(texts):
        cql.execute(f"INSERT INTO {keyspace}.durations (id, d) VALUES ({number}, {text})")
    theirs = dict(cql.execute(f"SELECT id, d FROM {keyspace}.durations"))
    ours = [_driver_type(CqlType("duration")).from_binary(cell("duration", text), PROTOCOL) for text in texts]
    assert ours == [theirs[number] for number in range(len(texts))]


@pytest.mark.parametrize("text", ["1.2.3.256", "1.2.3", "::g", "1::2::3", "", "localhost", "1.2.3.4/8"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(PenstockError, match="is not a valid inet"):
        cell("inet", text)


@pytest.mark.parametrize(("size", "given"), [(3, 2), (3, 4), (3, 0), (1, 2)])
def test_a_vector_has_as_many_elements_as_its_type(size: int, given: int) -> None:
    kind = CqlType("vector", (CqlType("float"),), True, size=size)
    with pytest.raises(PenstockError, match=rf"vector<float, {size}>> cannot have {given} elements.*{size} elements"):
        encode(kind, arrow(kind, [None, [1.0] * size, [1.0] * given]))


# Parts of rows, laid side by side.

ROWS = st.integers(1, 3).flatmap(
    lambda columns: st.lists(st.tuples(*[st.none() | st.binary(max_size=6)] * columns), min_size=1, max_size=8)
)


@given(ROWS)
def test_cells_of_rows_are_laid_out_each_after_its_length(rows: list[tuple[bytes | None, ...]]) -> None:
    columns = [cells_of(list(column)) for column in zip(*rows, strict=True)]
    packed = [b"".join(struct.pack(">i", -1 if c is None else len(c)) + (c or b"") for c in row) for row in rows]
    assert as_bytes(laid_out(columns)) == packed


@given(st.lists(st.lists(st.binary(max_size=6), max_size=4), min_size=1, max_size=6))
def test_collections_are_their_count_and_their_elements(rows: list[list[bytes]]) -> None:
    elements = laid_out([cells_of([each for row in rows for each in row])])
    bounds = np.cumsum([0, *map(len, rows)])
    assert as_bytes(gathered(elements, bounds)) == [list_bytes(row) for row in rows]


def test_rows_that_do_not_fit_are_reported_and_not_written() -> None:
    buffer, starts = np.arange(8, dtype=np.uint8), np.array([[0, 4], [4, 6]], np.int64)
    lengths = np.array([[4, 2], [2, 3]], np.int32)
    out = np.full(40, 99, np.uint8)
    assert lay_cells(buffer, starts, lengths, out) == 1  # the last cell ends behind the buffer
    assert (
        lay_cells(buffer, starts[:1], lengths[:1], out[:13]) == 0
        and lay_cells(buffer, starts[:1], lengths[:1], out) == -1
    )
    assert set(out[14:18].tolist()) != {99} and set(out[24:].tolist()) == {99}
    assert lay_collections(buffer, np.array([0, 9]), np.array([1], np.int32), out) == 0
    assert lay_collections(buffer, np.array([4, 0]), np.array([1], np.int32), out) == 0
    assert lay_collections(buffer, np.array([0, 8]), np.array([1], np.int32), out[:11]) == 0
    with pytest.raises(PenstockError, match="the cells of row 0 are outside their buffer"):
        laid_out([Cells(buffer, np.array([5]), np.array([4], np.int32))])


# Columns of the log.


@settings(max_examples=40)
@given(TYPES.flatmap(lambda kind: st.tuples(st.just(kind), st.lists(values(kind), max_size=4))))
def test_a_list_in_the_log_is_read_from_its_map_in_the_order_of_the_ids(case: tuple[CqlType, list[Any]]) -> None:
    kind, items = case
    of = CqlType("list", (kind,))
    entries = [(uuid.UUID(int=number << 80 | 1 << 76), item) for number, item in enumerate(items)]
    data = to_bytes(log_value_type(of), entries)
    target = to_arrow_type(spark_type(of), timezone="UTC")
    array = decode_list_in_log(of, cells_of([data, None]), target)
    array.validate(full=True)
    assert array.to_pylist() == [[in_spark(kind, item) for item in items], None]


def test_an_empty_collection_in_the_log_is_null_and_others_stay() -> None:
    cells = cells_of([b"\0\0\0\0", b"\0\0\0\1", None, b"", b"\0\0\0\0\0"]).without_empty_collections()
    assert cells.lengths.tolist() == [-1, 4, -1, 0, 5]
    assert cells_of([]).without_empty_collections().lengths.tolist() == []


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(
    TYPES.flatmap(
        lambda kind: st.tuples(
            st.just(kind),
            st.lists(st.none() | values(kind).map(lambda v: to_bytes(kind, v)) | st.binary(max_size=12), max_size=9),
        )
    )
)
def test_a_column_with_bad_cells_is_read_as_its_cells_alone(case: tuple[CqlType, list[bytes | None]]) -> None:
    """Good and random bytes: a cell is good or bad by itself, whatever else its page holds."""
    kind, items = case
    target = to_arrow_type(spark_type(kind), timezone="UTC")

    def alone(data: bytes | None) -> tuple[Any, bool]:
        try:
            return repr(decode(kind, cells_of([data]), target).to_pylist()[0]), False
        except BadValue:
            return None, True
        except (OverflowError, ValueError):  # a date that Python does not have
            return None, False

    expected = [alone(data) for data in items]
    cells = cells_of(items)
    bad = [row for row, _ in bad_rows(lambda some: decode(kind, some, target), cells)]
    assert bad == [row for row, (_, wrong) in enumerate(expected) if wrong]
    lengths = cells.lengths.copy()
    lengths[bad] = -1
    array = decode(kind, Cells(cells.buffer, cells.starts, lengths), target)
    array.validate(full=True)
    for row, (value, wrong) in enumerate(expected):
        assert wrong or value is None or repr(array[row].as_py()) == value
