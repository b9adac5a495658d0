"""Every CQL type from the driver's bytes to Arrow and Spark's types and back, with nothing lost on the way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from cql_values import TYPES, VALUES, in_spark, to_bytes, values
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_type

from penstock.database.columns import Cells, decode
from penstock.database.encode import as_bytes, encode
from penstock.errors import PenstockError
from penstock.schema import Column, CqlType, Table, parse_type, spark_type


def cells_of(items: list[bytes | None]) -> Cells:
    """Cells as they would stand in a page, nulls among them."""
    lengths = np.array([-1 if item is None else len(item) for item in items], np.int32)
    starts = np.concatenate([[0], np.cumsum(np.maximum(lengths, 0))])[:-1].astype(np.int64)
    return Cells(np.frombuffer(b"".join(item or b"" for item in items) + b"\0", np.uint8), starts, lengths)


def decoded(kind: CqlType, items: list[bytes | None]) -> pa.Array:
    array = decode(kind, cells_of(items), to_arrow_type(spark_type(kind), timezone="UTC"))
    array.validate(full=True)
    return array


@st.composite
def typed_values(draw: st.DrawFn) -> tuple[CqlType, list[Any]]:
    kind = draw(TYPES)
    return kind, draw(st.lists(st.none() | values(kind), min_size=2, max_size=6))


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(typed_values())
def test_values_of_any_type_arrive_whole(case: tuple[CqlType, list[Any]]) -> None:
    kind, items = case
    driver = [to_bytes(kind, item) for item in items]
    array = decoded(kind, driver)
    assert array.to_pylist() == [in_spark(kind, v) for v in items]
    assert as_bytes(encode(kind, array)) == driver
    # A part of an array, as filters and slices leave it.
    assert as_bytes(encode(kind, array.slice(1, len(items) - 2))) == driver[1:-1]


@pytest.mark.parametrize("name", sorted(set(VALUES) - {"ascii", "blob", "text", "varchar"}))
def test_an_empty_cell_of_a_type_without_empty_values_is_null(name: str) -> None:
    assert decoded(CqlType(name), [b"", None]).to_pylist() == [None, None]


def test_numbers_of_any_length_keep_their_digits() -> None:
    digits = "9" * 5000
    data = (10**5000 - 1).to_bytes(2100, "big")
    negative = (1 - 10**5000).to_bytes(2100, "big", signed=True)
    scale = (2).to_bytes(4, "big")
    assert decoded(CqlType("varint"), [data, negative]).to_pylist() == [digits, f"-{digits}"]
    texts = [f"{digits[2:]}.99", f"-{digits[2:]}.99"]
    assert decoded(CqlType("decimal"), [scale + data, scale + negative]).to_pylist() == texts


def test_timestamps_reach_as_far_as_sparks() -> None:
    farthest = 9_223_372_036_854_775
    cells: list[bytes | None] = [(sign * farthest).to_bytes(8, "big", signed=True) for sign in (1, -1)]
    assert decoded(CqlType("timestamp"), cells).cast("int64").to_pylist() == [farthest * 1000, -farthest * 1000]
    for beyond in (farthest + 1, -farthest - 1):
        with pytest.raises(PenstockError, match=f"{beyond} ms is outside"):
            decoded(CqlType("timestamp"), [beyond.to_bytes(8, "big", signed=True)])


def test_an_ipv4_address_in_ipv6_is_written_as_java_does() -> None:
    mapped, compatible = bytes(10) + b"\xff\xff\1\2\3\4", bytes(12) + b"\1\2\3\4"
    assert decoded(CqlType("inet"), [mapped, compatible]).to_pylist() == ["1.2.3.4", "0:0:0:0:0:0:102:304"]


def test_empty_text_is_not_null() -> None:
    assert decoded(CqlType("text"), [b"", None]).to_pylist() == ["", None]


def test_a_user_type_that_has_grown_reads_old_values() -> None:
    kind = parse_type("u", {"u": (("a", "b"), ("int", "text"))})
    old = to_bytes(CqlType("tuple", (CqlType("int"),), True), (1,))
    assert decoded(kind, [old]).to_pylist() == [{"a": 1, "b": None}]


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("int", b"\0\0\1"),
        ("uuid", b"\1" * 15),
        ("list<int>", b"\0\0\0\2\0\0\0\4\0\0\0\1"),
        ("map<int, int>", b"\0\0\0\1\0\0\0\4\0\0\0\1\0\0\0\x7f"),
        ("tuple<int, int>", b"\0\0\0\7\0\0\0\1"),
        ("vector<float, 3>", b"\0" * 11),
        ("timestamp", b"\x7f" + b"\xff" * 7),
    ],
)
def test_bytes_that_are_no_value_are_an_error_and_not_a_guess(text: str, data: bytes) -> None:
    with pytest.raises(PenstockError, match=r"cannot be read|outside"):
        decoded(parse_type(text, {}), [data])


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("uuid", "123e4567"),
        ("uuid", "123e4567-e89b-12d3-a456-42661417400x"),
        ("timeuuid", "123e4567-e89b-12d3-a456-4266141740000"),
        ("decimal", "1.2.3"),
        ("decimal", "NaN"),
        ("varint", "0x1"),
        ("inet", "1.2.3"),
        ("decimal", "1E-99999999999"),
        ("duration", "1y5q"),
        ("duration", "99999999999999999999h"),
        ("duration", "3000000000mo"),
        ("duration", "-9223372036854775809ns"),
    ],
)
def test_texts_that_are_no_value_of_their_type_are_named(kind: str, text: str) -> None:
    with pytest.raises(PenstockError, match=f"'{text}' is no {kind}"):
        encode(CqlType(kind), pa.array([None, text]))


def arrow(kind: CqlType, *items: Any) -> pa.Array:
    return pa.array(items, to_arrow_type(spark_type(kind), timezone="UTC"))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("list<int>", [1, None]),
        ("frozen<set<text>>", [None]),
        ("map<text, int>", [("x", None)]),
        ("vector<float, 2>", [1.0, None]),
        ("list<frozen<list<int>>>", [[1], [2, None]]),
        ("tuple<int, frozen<list<int>>>", {"field_0": 1, "field_1": [None]}),
    ],
)
def test_a_null_in_a_collection_is_refused(text: str, value: Any) -> None:
    kind = parse_type(text, {})
    with pytest.raises(PenstockError, match=r"a \S*(list|set|map|vector)<.*> has a null in it.*array_compact"):
        encode(kind, arrow(kind, None, value))


@pytest.mark.parametrize(
    ("text", "value"),
    [("tuple<int, text>", {"field_0": None, "field_1": None}), ("list<frozen<tuple<int>>>", [{"field_0": None}])],
)
def test_a_null_in_a_tuple_is_none_in_a_collection(text: str, value: Any) -> None:
    kind = parse_type(text, {})
    array = arrow(kind, value, None)
    cells = as_bytes(encode(kind, array))
    assert decoded(kind, cells).to_pylist() == array.to_pylist()


@pytest.mark.parametrize("nanos", [-1, 86_400 * 10**9])
def test_a_time_beyond_the_day_is_refused(nanos: int) -> None:
    with pytest.raises(PenstockError, match=f"{nanos} is no time.*from 0 to 86399999999999"):
        encode(CqlType("time"), pa.array([0, None, nanos]))
    assert encode(CqlType("time"), pa.array([], pa.int64())).lengths.tolist() == []


@pytest.mark.parametrize(
    ("text", "word"), [("'org.example.Odd'", "Odd"), ("nosuch", "nosuch"), ("vector<text, 2>", "fixed-width")]
)
def test_types_that_are_not_supported_are_named(text: str, word: str) -> None:
    with pytest.raises(PenstockError, match=word):
        parse_type(text, {})


@settings(max_examples=100)
@given(TYPES)
def test_a_type_reads_back_from_its_own_text(kind: CqlType) -> None:
    table = Table("ks", "t", (Column("c", kind, "regular"),))
    udts = {name: (udt.fields, tuple(map(str, udt.args))) for name, udt in table.udts.items()}
    assert parse_type(str(kind), udts) == kind
