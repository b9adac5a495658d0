"""JSON values as columns: what is no whole object, no number or no time is bad, and nothing of it is read."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row, SparkSession, functions as F

from penstock.codec.decode_columns import struct_of
from penstock.codec.decode_json import Epoch, JsonDecoder

ANY = "a int, s string, d double, f float, t timestamp, m map<string, double>"
AT = 1_780_210_800_123
SHOWN = "2026-05-31T07:00:00.123Z"


Found = tuple[dict[str, Any], str | None]


def read(spark: SparkSession, schema: str, *values: str, epoch: Epoch = "seconds") -> list[Found]:
    """The columns of each value, as JSON has them, and its reason."""
    decoder = JsonDecoder(struct_of(schema, "test"), epoch=epoch)
    values_of = pa.table({"value": pa.array([value.encode() for value in values], pa.binary())})
    frame = spark.createDataFrame(values_of).select(decoder.decode(F.col("value")).alias("r"), "value")
    fields = [F.col("r").getField(name).alias(name) for name in decoder.schema.names]
    rows: list[Row] = frame.select(
        F.to_json(F.struct(*fields)).alias("found"), decoder.reason(F.col("r"), F.col("value")).alias("reason")
    ).collect()
    return [(json.loads(row.found), row.reason) for row in rows]


NO_OBJECTS = [
    '{"a":1} x',
    '{"a":1}{"a":2}',
    '{"a":1},{"a":2}',
    '{"a":1}]',
    '{"a":1}}',
    '{"a":1}],[{"a":2}',
    "{'a':1}",
    "{\"s\":'x'}",
    '{"d":NaN}',
    '{"d":Infinity}',
    '{"s":"\\ud800"}',
    '{"s":"\\udc00x"}',
    '{"s":"\\ud800\\ud800\\udc00"}',
    '{"s":"\\\\\\ud83d"}',
    '{"\\ud83d":1}',
    '{"a":01}',
    "1",
    '"a"',
    "",
]


def test_a_value_is_one_object_and_nothing_else(spark: SparkSession) -> None:
    for value, (found, reason) in zip(NO_OBJECTS, read(spark, ANY, *NO_OBJECTS), strict=True):
        assert reason and reason.startswith("not a JSON object"), value
        assert found == {}, value


WHOLE: list[tuple[str, dict[str, Any]]] = [
    (' {"a" : 1} \n', {"a": 1}),
    ('{"s":"\\ud83d\\ude00"}', {"s": "\U0001f600"}),
    ('{"s":"\\\\ud83d"}', {"s": "\\ud83d"}),
    ('{"s":"}, ] {\\"_penstock_end\\":1}"}', {"s": '}, ] {"_penstock_end":1}'}),
    ('{"d":1e300,"f":-3.5,"m":{"x":0.5}}', {"d": 1e300, "f": -3.5, "m": {"x": 0.5}}),
    ('{"other":[1,{"a":2}]}', {}),
    ('{"d":"NaN","f":"-Infinity","m":{"x":"Infinity"}}', {"d": "NaN", "f": "-Infinity", "m": {"x": "Infinity"}}),
]


def test_whole_objects_are_read(spark: SparkSession) -> None:
    assert read(spark, ANY, *(value for value, _ in WHOLE)) == [(found, None) for _, found in WHOLE]


TOO_LARGE = [
    ('{"d":1e400}', "d is not a valid double: "),
    ('{"f":-1e39}', "f is not a valid float: "),
    ('{"a":3000000000}', "a is not a valid int: '3000000000'"),
    ('{"m":{"x":1e999}}', "values of other types: "),
]


def test_a_number_that_its_type_does_not_hold_is_bad(spark: SparkSession) -> None:
    said = read(spark, ANY, *(value for value, _ in TOO_LARGE))
    for (value, reason), (_, found) in zip(TOO_LARGE, said, strict=True):
        assert found and found.startswith(reason), value


UNITS: list[tuple[Epoch, int]] = [("seconds", AT // 1000), ("millis", AT), ("micros", AT * 1000)]


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(("epoch", "number"), UNITS)
def test_numbers_are_times_by_their_unit(spark: SparkSession, epoch: Epoch, number: int) -> None:
    schema = "t timestamp, o struct<t: timestamp, n: int>, l array<timestamp>, s array<struct<t: timestamp>>, "
    schema += "m map<string, timestamp>"
    value = {"t": number, "o": {"t": number, "n": 1}, "l": [number, None], "s": [{"t": number}], "m": {"k": number}}
    ((found, reason),) = read(spark, schema, json.dumps(value), epoch=epoch)
    shown = SHOWN.replace(".123", ".000") if epoch == "seconds" else SHOWN
    assert reason is None
    times = {"t": shown, "o": {"t": shown, "n": 1}, "l": [shown, None], "s": [{"t": shown}], "m": {"k": shown}}
    assert found == times
    texts = {"t": SHOWN, "o": {"t": SHOWN}, "l": [SHOWN], "s": [{"t": SHOWN}, {"t": number}], "m": {"k": SHOWN}}
    ((found, reason),) = read(spark, schema, json.dumps(texts), epoch=epoch)
    assert reason is None
    assert found == texts | {"s": [{"t": SHOWN}, {"t": shown}]}


OUTSIDE = [AT, AT * 1000, 253_402_300_800, -62_135_596_801, 1.5, "57971-02-25T00:00:00Z", str(AT)]


def test_a_time_outside_the_years_is_bad(spark: SparkSession) -> None:
    texts = [value if isinstance(value, str) else json.dumps(value) for value in OUTSIDE]
    said = read(spark, "t timestamp", *(json.dumps({"t": value}) for value in OUTSIDE))
    assert said == [({}, f"t is not a valid timestamp: '{text}'") for text in texts]
    deep: list[tuple[str, Callable[[object], object]]] = [
        ("o struct<t: timestamp>", lambda value: {"o": {"t": value}}),
        ("l array<timestamp>", lambda value: {"l": [value]}),
        ("m map<string, timestamp>", lambda value: {"m": {"k": value}}),
    ]
    for schema, inside in deep:
        for _, reason in read(spark, schema, *(json.dumps(inside(value)) for value in OUTSIDE)):
            assert reason and reason.startswith(("values of other types: ", f"{schema[0]} is not a valid "))


@pytest.mark.parametrize("value", [253_402_300_799, -62_135_596_800])
def test_the_first_and_the_last_second_are_times(spark: SparkSession, value: int) -> None:
    ((found, reason),) = read(spark, "t timestamp", json.dumps({"t": value}))
    assert reason is None and found["t"][:4] in ("9999", "0001")
