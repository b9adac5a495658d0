"""Every CQL type from the driver's bytes to Arrow and Spark's types and back, without loss."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from cql_values import TYPES, VALUES, cells_of, in_spark, to_bytes, values
from growth import assert_linear
from hypothesis import HealthCheck, given, settings, strategies as st

from penstock.database.cells import indexed
from penstock.database.columns import BadValue, Cells, decode
from penstock.database.cql_types import Column, CqlTable, CqlType, parse_type, spark_type
from penstock.database.encode_cells import as_bytes, encode
from penstock.errors import PenstockError
from penstock.spark_runtime.arrow_types import to_arrow_type


def decoded(kind: CqlType, items: list[bytes | None]) -> pa.Array:
    array = decode(kind, cells_of(items), to_arrow_type(spark_type(kind), timezone="UTC"))
    array.validate(full=True)
    return array


@st.composite
def typed_values(draw: st.DrawFn) -> tuple[CqlType, list[Any]]:
    kind = draw(TYPES)
    return kind, draw(st.lists(st.none() | values(kind), min_size=2, max_size=6))


@pytest.mark.slow
@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(typed_values())
def test_values_of_any_type_arrive_whole(case: tuple[CqlType, list[Any]]) -> None:
    kind, items = case
    driver = [to_bytes(kind, item) for item in items]
    array = decoded(kind, driver)
    assert array.to_pylist() == [in_spark(kind, v) for v in items]
    assert as_bytes(encode(kind, array)) == driver
    # A slice of an array, as filters produce it.
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


CUT = ["", "list<int", "vector<int", "vector<int,", "vector<int, 3", "vector<int, x>", "int>"]


@pytest.mark.parametrize("text", CUT)
def test_a_type_that_is_cut_short_is_refused(text: str) -> None:
    with pytest.raises(PenstockError, match="cannot read the CQL type"):
        parse_type(text, {})


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
        ("text", b"\xff"),
        ("varchar", b"\xed\xa0\x80"),
        ("ascii", "\u00e9".encode()),
        ("decimal", b"\0\0\0"),
        ("inet", b"\1\2\3\4\5"),
        ("inet", bytes(10) + b"\xff\xff\1\2\3"),
        ("duration", b"\0\0"),
        ("duration", b"\0\0\xff\1"),
        ("duration", b"\0\0\0\0"),
        ("duration", b"\1\2\0"),
        ("list<int>", b"\0\0"),
        ("list<int>", b"\xff\xff\xff\x9c"),
        ("list<int>", b"\x7f\xff\xff\xff" + bytes(8)),
        ("list<int>", b"\0\0\0\1\0\0\0\4\0\0\0\1\0"),
        ("map<int, int>", b"\0\0\0\2" + bytes(12)),
        ("tuple<int, frozen<list<int>>>", b"\xff\xff\xff\xff\0\0\0\4\xff\xff\xff\x9c"),
        ("tuple<int, int>", b"\x7f\xff\xff\xff"),
    ],
)
def test_bytes_that_are_no_value_are_an_error_and_not_a_guess(text: str, data: bytes) -> None:
    with pytest.raises(BadValue, match=r"cannot be read|outside"):
        decoded(parse_type(text, {}), [data])


@pytest.mark.parametrize("text", ["int", "uuid", "frozen<list<int>>", "date", "decimal"])
@pytest.mark.parametrize("key", [b"", None])
def test_a_key_that_arrow_would_end_the_process_for_is_found_before(text: str, key: bytes | None) -> None:
    """`INSERT ... {blob_as_int(0x): 'x'}` is plain CQL; a null key is not, but a server's bytes may have it."""
    cell = b"\xff\xff\xff\xff" if key is None else b"\0\0\0\0"
    kind = parse_type(f"map<{text}, text>", {})
    if "list" in text and key == b"":
        assert decoded(kind, [b"\0\0\0\1" + cell + b"\0\0\0\1x"]).to_pylist() == [[([], "x")]]
        return
    with pytest.raises(BadValue, match=r"a map<.*> has a key that is null or empty"):
        decoded(kind, [b"\0\0\0\1" + cell + b"\0\0\0\1x"])


def test_keys_that_are_empty_in_part_or_as_text_are_keys() -> None:
    entries = b"\0\0\0\1\0\0\0\0\0\0\0\1x"
    assert decoded(parse_type("map<text, text>", {}), [entries]).to_pylist() == [[("", "x")]]
    pairs = decoded(parse_type("map<frozen<tuple<int, int>>, text>", {}), [entries]).to_pylist()
    assert pairs == [[({"field_0": None, "field_1": None}, "x")]]


def test_counts_that_cancel_out_write_behind_no_array() -> None:
    """The counts -100 and 105 would give an array of 5 elements, to which 105 are written."""
    few, many = (-100).to_bytes(4, "big", signed=True), (105).to_bytes(4, "big") + bytes(4 * 105)
    with pytest.raises(BadValue, match="the number of its elements does not fit its length"):
        decoded(parse_type("list<int>", {}), [few, many])
    with pytest.raises(BadValue, match="the number of its elements does not fit its length"):
        decoded(parse_type("map<int, int>", {}), [many])


TYPES_OF_LOOPS = (
    "bigint",
    "text",
    "uuid",
    "varint",
    "list<int>",
    "map<int, int>",
    "tuple<int, int>",
    "vector<float, 4>",
    "vector<uuid, 2147483647>",
)


@pytest.mark.parametrize("text", TYPES_OF_LOOPS)
@pytest.mark.parametrize(("start", "length"), [(1, 16), (2**62, 16), (-8, 16), (-(2**62), 4), (0, 2**31 - 1)])
def test_a_cell_that_is_not_in_its_buffer_is_not_read(text: str, start: int, length: int) -> None:
    kind = parse_type(text, {})
    cells = Cells(np.zeros(16, np.uint8), np.array([start], np.int64), np.array([length], np.int32))
    with pytest.raises(BadValue, match=r"cannot be read|do not fit"):
        decode(kind, cells, to_arrow_type(spark_type(kind), timezone="UTC"))


def test_values_that_do_not_fit_one_arrow_array_are_refused_before_it_is_made() -> None:
    cells = Cells(np.zeros(1 << 20, np.uint8), np.zeros(2049, np.int64), np.full(2049, 1 << 20, np.int32))
    for text in ("blob", "list<int>"):
        kind = parse_type(text, {})
        if text == "list<int>":
            cells.buffer[:4] = np.frombuffer(((1 << 18) - 1).to_bytes(4, "big"), np.uint8)
            cells = Cells(cells.buffer, np.zeros(8200, np.int64), np.full(8200, 1 << 20, np.int32))
        with pytest.raises(BadValue, match=r"do not fit one Arrow array.*smaller page_size"):
            decode(kind, cells, to_arrow_type(spark_type(kind), timezone="UTC"))


def test_short_tuples_do_not_unpack_to_gigabytes() -> None:
    kind = CqlType("list", (CqlType("tuple", (CqlType("int"),) * 100, True),))
    with pytest.raises(BadValue, match="unpack to 5000000 fields"):
        decoded(kind, [(50_000).to_bytes(4, "big") + bytes(4 * 50_000)])


def test_a_page_that_is_shorter_than_its_rows_is_refused_before_anything_is_made() -> None:
    for rows, columns in ((2**31 - 1, 3), (-1, 3), (2, 1)):
        with pytest.raises(PenstockError, match=r"ends inside a row.*here"):
            indexed(b"\0\0\0\1x", rows, columns, where="here")
    with pytest.raises(PenstockError, match="ends inside a row"):
        indexed(b"\0\0\0\2x", 1, 1, where="here")
    assert [array.tolist() for array in indexed(b"\0\0\0\1x", 1, 1, where="here")[1:]] == [[[4]], [[1]]]


def test_digits_of_long_numbers_take_no_time_by_their_square() -> None:
    """Python's own conversion takes 0.9 s for 100 000 bytes, and a minute and a half for 1 MB."""
    number = -(7**300_000)
    data = number.to_bytes(-(-number.bit_length() // 8) + 1, "big", signed=True)
    assert len(data) > 105_000
    assert_linear(lambda size: decoded(CqlType("varint"), [data[:size]]), len(data) // 4)
    (text,) = decoded(CqlType("varint"), [data]).to_pylist()
    assert len(text) == 253_531 and text[0] == "-" and int(text[-4000:]) == 7**300_000 % 10**4000
    (text,) = decoded(CqlType("decimal"), [b"\0\0\0\1" + data]).to_pylist()
    assert len(text) == 253_532 and text[-2] == "."


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
    with pytest.raises(PenstockError, match=f"'{text}' is not a valid {kind}"):
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
    with pytest.raises(PenstockError, match=r"a \S*(list|set|map|vector)<.*> contains a null.*array_compact"):
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
    with pytest.raises(PenstockError, match=f"{nanos} is not a valid time.*from 0 to 86399999999999"):
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
    table = CqlTable("ks", "t", (Column("c", kind, "regular"),))
    udts = {name: (udt.fields, tuple(map(str, udt.args))) for name, udt in table.udts.items()}
    assert parse_type(str(kind), udts) == kind
