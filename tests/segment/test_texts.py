"""Predicates divided into strings and a rest are true for the same rows as in Spark."""

from __future__ import annotations

import random
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import Column, SparkSession, functions as F, types as st

from penstock.segment.predicate_index import WORD, IndexedPredicate, divided, index

SCHEMA = (
    st.StructType()
    .add("Kind", st.StringType())
    .add("page", st.StringType())
    .add("amount", st.DoubleType())
    .add("n", st.IntegerType())
    .add("cost", st.DecimalType(10, 2))
    .add("ok", st.BooleanType())
    .add("other", st.StringType("UTF8_LCASE"))
)
TEXTS = ["buy", "Buy", "buy ", "", "it and that", "x AND y", "é", "e\u0301", "a,b", "(a)", "%", "1", "null"]
PARTS = [
    *(f"{name} {sign} '{text}'" for name in ("kind", "KIND", "page") for sign in ("=", "==") for text in TEXTS),
    *("page IN ('buy', 'é')", "kind in('buy','1' , '')", "page IN ('1')", "page NOT IN ('buy')", "page <> 'buy'"),
    *("amount > 1.5", "amount<=-2", "n = 3", "n != 2147483648", "n >= 0.5", "cost > 1", "n > 99999999999"),
    *("page IS NULL", "amount is not null", "other = 'BUY'", "ok", "NOT ok", "ok = true", "kind LIKE 'b%'", "n = '3'"),
    *("(kind = 'buy')", "page = 'a' 'b'", 'page = "buy"', "page = 'it''s'", r"page = 'a\u0062'", "page = lower('BUY')"),
    *("n BETWEEN 1 AND 3", "CASE WHEN ok AND n = 1 THEN true END", "kind = page", "null = 'a'", "try_divide(1, n) > 0"),
]
ANDS = [" AND ", " and ", "\nAND\t"]


def rows(draw: random.Random) -> list[tuple[object, ...]]:
    def maybe(values: list[object]) -> object:
        return draw.choice([*values, None])

    numbers: list[object] = [0.0, -2.0, 1.5, 3.0, float("nan")]
    return [
        (
            *(maybe([*TEXTS]), maybe([*TEXTS]), maybe(numbers), maybe([0, 1, 3, -7]), maybe([Decimal("1.50")])),
            *(maybe([True, False]), maybe(["buy", "BUY"])),
        )
        for _ in range(400)
    ]


def predicates(draw: random.Random) -> list[str]:
    some = [draw.choice(ANDS).join(draw.choices(PARTS, k=draw.randint(1, 4))) for _ in range(400)]
    either = [" OR ".join(draw.choices(PARTS, k=2)) for _ in range(20)]
    return list(dict.fromkeys([*PARTS, *some, *either]))


@pytest.mark.slow
def test_the_bits_are_those_of_spark(spark: SparkSession) -> None:
    draw = random.Random(11)
    frame, texts = spark.createDataFrame(rows(draw), SCHEMA), predicates(draw)
    found = index(texts, frame.schema)

    def truths(some: list[str]) -> Column:
        return F.array(*(F.expr(f"if({text}, 1, 0)") for text in some))

    columns = [F.col(name).alias(f"t{i}") for i, name in enumerate(found.columns)]
    table = frame.select(truths(texts).alias("all"), truths(list(found.asked)).alias("asked"), *columns).toArrow()
    answers = np.array(table["asked"].to_pylist(), np.bool_)
    words = np.zeros((len(answers), -(-len(found.asked) // WORD)), np.int64)
    for number in range(len(found.asked)):
        words[:, number // WORD] |= answers[:, number].astype(np.int64) << np.int64(number % WORD)
    masks = found.masks([table[f"t{i}"].combine_chunks() for i in range(len(columns))], words)
    ours = np.unpackbits(masks.view(np.uint8), axis=1, bitorder="little")
    theirs = np.array(table["all"].to_pylist(), np.uint8)
    for number, text in enumerate(texts):
        assert ours[:, number].tolist() == theirs[:, number].tolist(), text
    assert not ours[:, len(texts) :].any()
    # Not all predicates are left to Spark, and many are true for some rows.
    assert len(found.asked) < 0.8 * len(texts)
    assert theirs.any(axis=0).sum() > 0.3 * len(texts)


@pytest.mark.parametrize(
    ("predicate", "texts", "rest"),
    [
        ("kind = 'buy'", {"Kind": {"buy"}}, ""),
        ("kind = 'x AND y' AND n > 3 AND page == ''", {"Kind": {"x AND y"}, "page": {""}}, "n > 3"),
        (
            "page IN ('a', 'b') AND page = 'b' AND amount > 1.5 AND n IS NOT NULL",
            {"page": {"b"}},
            "amount > 1.5 AND n IS NOT NULL",
        ),
    ],
)
def test_what_is_divided(predicate: str, texts: dict[str, set[str]], rest: str) -> None:
    assert divided(predicate, SCHEMA) == IndexedPredicate({name: frozenset(some) for name, some in texts.items()}, rest)


@pytest.mark.parametrize(
    "predicate",
    [
        "n > 3",
        "kind = 'buy' OR n > 3",
        "kind = 'n' AND CAST(page AS INT) > 1",
        "kind = 'n' AND cost > 1",
        "kind = 'it''s'",
        r"kind = 'a\'b'",
        "kind = '${x}'",
        "other = 'buy'",
        "kind = 'a' AND n BETWEEN 1 AND 3",
        "kind = 'a' AND",
        "unknown = 'a'",
        "kind = 'a' -- AND n > 3",
    ],
)
def test_what_stays_whole(predicate: str) -> None:
    assert divided(predicate, SCHEMA) is None


def test_a_name_that_two_columns_have_stays_whole() -> None:
    assert divided("page = 'a'", st.StructType([*SCHEMA, st.StructField("PAGE", st.StringType())])) is None


def test_rows_without_a_text() -> None:
    found = index(["kind = 'a'", "page = 'b'", "n > 0"], SCHEMA)
    nothing = pa.nulls(2, pa.string())
    assert found.masks([nothing, nothing], np.array([[0], [1]])).tolist() == [[0], [4]]
