"""What `@pipeline` accepts and what it makes of a function, without Spark."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame, SparkSession

import penstock as ps
from penstock.errors import PenstockError, SchemaChanged
from penstock.query.query import Query

SPARK = cast(SparkSession, None)


def query(name: str | None = None) -> Query:
    return Query(cast(DataFrame, None), (), name)


def pipeline_of(made: Any) -> Any:
    @ps.pipeline(every="1 second")
    def orders(spark: SparkSession) -> Any:
        return made

    return orders


def test_a_pipeline_has_the_name_of_its_function_and_its_pace() -> None:
    orders = pipeline_of(query())
    assert (orders.name, orders.every) == ("orders", timedelta(seconds=1))


@pytest.mark.parametrize(
    ("given", "target"),
    [
        ({}, timedelta(minutes=1)),
        ({"every": "20 seconds"}, timedelta(minutes=1)),
        ({"every": "10 minutes"}, timedelta(minutes=20)),
        ({"every": "900000000 days"}, timedelta.max // 2 * 2),
        ({"every": "real-time"}, timedelta(minutes=1)),
        ({"every": "10 minutes", "target": "5 seconds"}, timedelta(seconds=5)),
    ],
)
def test_a_target_is_at_least_two_intervals_unless_it_is_given(given: dict[str, Any], target: timedelta) -> None:
    assert ps.pipeline(name="orders", **given)(lambda spark: query()).target == target


def test_a_pipeline_without_parentheses_has_a_batch_a_second() -> None:
    @ps.pipeline
    def orders(spark: SparkSession) -> Query:
        return query()

    assert (orders.name, orders.every) == ("orders", timedelta(seconds=1))
    assert orders.queries(SPARK).keys() == {""}


def test_a_pipeline_can_still_be_called_as_the_function() -> None:
    made = query()
    assert pipeline_of(made)(SPARK) is made


def test_a_single_query_has_the_checkpoint_of_the_pipeline() -> None:
    made = query()
    assert pipeline_of(made).queries(SPARK) == {"": made}


def test_several_queries_have_checkpoints_of_their_names() -> None:
    first, second = query("first"), query("second")
    assert pipeline_of([first, second]).queries(SPARK) == {"first": first, "second": second}


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (None, "returned NoneType instead of a query"),
        ([], "returned list instead of a query"),
        ([query(), query()], "2 queries, and their names are '', ''"),
        ([query("a"), query("a")], "2 queries, and their names are 'a', 'a'"),
        ([query("a"), query("../b")], "'../b' is not a valid name"),
    ],
)
def test_what_is_no_query_is_refused(made: Any, said: str) -> None:
    with pytest.raises(PenstockError, match=said):
        pipeline_of(made).queries(SPARK)


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "a b"])
def test_a_name_must_be_good_for_a_folder(name: str) -> None:
    with pytest.raises(PenstockError, match="is not a valid name for a pipeline"):
        ps.pipeline(every="1 second", name=name)(lambda spark: query())


def test_a_pace_must_be_a_duration() -> None:
    with pytest.raises(PenstockError, match="every is not a duration: 'often'"):
        ps.pipeline(every="often")


def test_an_error_names_the_line_of_the_users_file() -> None:
    @ps.pipeline(every="1 second")
    def orders(spark: SparkSession) -> Query:
        raise KeyError("amount")

    with pytest.raises(PenstockError, match=r"KeyError: 'amount' \(.*test_pipeline.py, line \d+: raise KeyError"):
        orders.queries(SPARK)


def test_an_error_of_ours_keeps_its_kind_and_next_step() -> None:
    @ps.pipeline(every="1 second")
    def orders(spark: SparkSession) -> Query:
        raise SchemaChanged("the columns changed", where="ks.t", next="wait")

    with pytest.raises(SchemaChanged, match=r"line \d+: .*, ks.t\). Next: wait"):
        orders.queries(SPARK)


def test_importing_penstock_does_not_load_spark() -> None:
    loaded = "print('pyspark' in sys.modules)"
    code = f"import sys, penstock; {loaded}; from penstock import write; {loaded}"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["False", "True"]
