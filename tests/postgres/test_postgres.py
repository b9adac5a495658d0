"""The PostgreSQL sink on a real server: errors, types, upserts, deletes, and repeated batches."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from checkpoints import forget_last_commit
from postgres_server import execute, new_table, query
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, functions as F

from penstock import postgres as pg, write
from penstock.errors import PenstockError
from penstock.postgres.postgres_batch import PostgresBatch, merge, note, prepare
from penstock.postgres.postgres_session import connected
from penstock.query.query import Batch
from penstock.spark_runtime.failures import Unavailable

EVERY_TYPE = """
    a_bool boolean, a_int2 smallint, a_int4 int, a_int8 bigint, a_float4 real, a_float8 double precision,
    a_numeric numeric(30, 6), a_text text, a_varchar varchar(40), a_bytea bytea, a_date date,
    a_timestamptz timestamptz, a_timestamp timestamp, a_uuid uuid, a_jsonb jsonb, a_struct jsonb, a_map json,
    "a ""quoted"" one" text, a_mood mood, a_percent percent, a_ints int[], a_texts text[], a_numerics numeric[],
    a_default int DEFAULT 7, a_serial bigserial"""
VALUES = {
    "a_bool": "true",
    "a_int2": "CAST(-7 AS TINYINT)",
    "a_int4": "CAST(-32768 AS SMALLINT)",
    "a_int8": "9223372036854775807L",
    "a_float4": "CAST(1.5 AS FLOAT)",
    "a_float8": "CAST(0.1 AS DOUBLE)",
    "a_numeric": "CAST(-123456789012345678.123456 AS DECIMAL(30, 6))",
    "a_text": "'grüße, \U0001f600'",
    "a_varchar": "''",
    "a_bytea": "X'00FF'",
    "a_date": "DATE '1582-01-01'",
    "a_timestamptz": "TIMESTAMP '2024-02-29 12:00:00.123456Z'",
    "a_timestamp": "TIMESTAMP_NTZ '1969-12-31 23:59:59.999999'",
    "a_uuid": "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'",
    "a_jsonb": """'{"b": [1, null]}'""",
    "a_struct": "named_struct('x', 1, 'y', array('z'))",
    "a_map": "map('k', 1.5)",
    'a "quoted" one': "'q'",
    "a_mood": "'glad'",
    "a_percent": "100L",
    "a_ints": "array(1, NULL, 3)",
    "a_texts": "array('a', '')",
    "a_numerics": "array(CAST(1.50 AS DECIMAL(5, 2)))",
}
ARRIVED = (
    '{"a_bool": true, "a_int2": -7, "a_int4": -32768, "a_int8": 9223372036854775807, "a_float4": 1.5, "a_float8": 0.1, '
    '"a_numeric": -123456789012345678.123456, "a_text": "grüße, \U0001f600", "a_varchar": "", "a_bytea": "\\\\x00ff", '
    '"a_date": "1582-01-01", "a_timestamptz": "2024-02-29T12:00:00.123456+00:00", '
    '"a_timestamp": "1969-12-31T23:59:59.999999", "a_uuid": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", '
    '"a_jsonb": {"b": [1, null]}, "a_struct": {"x": 1, "y": ["z"]}, "a_map": {"k": 1.5}, "a \\"quoted\\" one": "q", '
    '"a_mood": "glad", "a_percent": 100, "a_ints": [1, null, 3], "a_texts": ["a", ""], "a_numerics": [1.50], '
    '"a_default": 7, "a_serial": 1}'
)


@pytest.fixture(scope="module")
def types(postgres: str) -> Iterator[str]:
    """A table with all types."""
    execute(
        postgres, "CREATE TYPE mood AS ENUM ('glad', 'sad')", "CREATE DOMAIN percent AS bigint CHECK (VALUE <= 100)"
    )
    with new_table(postgres, EVERY_TYPE) as name:
        yield name
    execute(postgres, "DROP TYPE mood", "DROP DOMAIN percent")


def test_every_type_arrives_as_it_was(spark: SparkSession, postgres: str, types: str) -> None:
    full = spark.range(1).select(*[F.expr(text).alias(name) for name, text in VALUES.items()])
    empty = full.select(*[F.lit(None).cast(one.dataType).alias(one.name) for one in full.schema])
    pg.sink(types, url=postgres).save(full, Batch("types", 0))
    pg.sink(types, url=postgres).save(empty, Batch("types", 1))
    execute(postgres, "SET timezone = 'UTC'")
    found = query(
        postgres, f"SELECT jsonb_pretty(to_jsonb(t)) = jsonb_pretty('{ARRIVED}'), to_json(t)::text FROM {types} t"
    )
    assert found[0][0], found[0][1]
    assert found[1][1].count("null") == len(VALUES)


def test_a_missing_table_is_made_with_the_statement_of_the_error(spark: SparkSession, postgres: str) -> None:
    frame = spark.range(1).selectExpr(
        *("1 AS id", "'x' AS `Group`", "true AS yes", "2Y AS tiny", "3S AS short", "4L AS long", "1.5F AS single"),
        *("2.5D AS double", "12.34 AS price", "X'00ff' AS bytes", "date'2026-02-03' AS day", "now() AS at"),
        *("timestamp_ntz'2026-02-03 04:05:06' AS local", "array(1.5, null) AS prices", "array('a') AS texts"),
        *("map('a', 1) AS map", "struct(1 AS x) AS inner", "array(struct(1 AS x)) AS inners", "false AS gone"),
    )
    sink = pg.sink("made_by_error", url=postgres, key=["id", "Group"], deleted="gone")
    with pytest.raises(PenstockError) as refused:
        sink.records(frame)
    statement = refused.value.next.partition("run: ")[2]
    assert statement.startswith('CREATE TABLE made_by_error ("id" integer, "Group" text, "yes" boolean, "tiny" small')
    execute(postgres, statement)
    sink.save(frame, Batch("made", 0))
    ((found,),) = query(postgres, "SELECT to_json(t)::text FROM made_by_error t")
    row = json.loads(found)
    assert (row["Group"], row["price"], row["prices"], row["inners"]) == ("x", 12.34, [1.5, None], [{"x": 1}])
    assert "gone" not in row
    execute(postgres, "DROP TABLE made_by_error")


@pytest.mark.parametrize(
    ("select", "options", "said"),
    [
        (
            "1 AS id",
            {"table": "nowhere.nothing"},
            r'no table nowhere.nothing.*schema, or run: CREATE TABLE nowhere.nothing \("id" integer\)$',
        ),
        ("1L AS id, 's' AS s", {}, r'the column id is bigint and does not fit into integer .*table {t}.*cast\("int"\)'),
        ("1 AS id, 1 AS s", {}, r'the column s is int and does not fit into text.*cast\("string"\)'),
        ("1 AS id, 's' AS s, 1 AS more", {}, r"no writable column more .*with id, s, at.*drop or rename"),
        ("1 AS id", {}, r"the frame lacks s, which must not be null"),
        (
            "1 AS id, 's' AS s",
            {"key": "s"},
            r"the key s is neither the primary key.*ALTER TABLE {t} ADD PRIMARY KEY \(\"s\"\)",
        ),
        ("'s' AS s", {"key": "id"}, r"the frame has no column id .*columns s"),
        ("1 AS id, 's' AS s, 1 AS gone", {"key": "id", "deleted": "gone"}, r"the column gone is not boolean"),
        ("1 AS id, 's' AS s, current_timestamp() AS at", {}, r"at is timestamp and .*cast\(\"timestamp_ntz\"\)\); or"),
        ("1 AS id, 's' AS s, 2 AS twice", {}, r"no writable column twice"),
        (
            "1 AS id, 's' AS s, 1.234 AS price",
            {},
            r"price is decimal\(4,3\) and .*numeric\(5,2\).*cast\(\"decimal\(38,2\)\"\)",
        ),
        (
            "1 AS id, 's' AS s, array(1.234) AS prices",
            {},
            r"prices is array<decimal\(4,3\)> and .*F\.transform.*cast\(\"decimal\(38,1\)\"\)",
        ),
        ("1 AS id, 's' AS s, 1 AS dozens", {}, r"dozens is int and does not fit into numeric\(3,-1\)"),
    ],
)
def test_a_frame_that_does_not_fit_is_refused_when_the_query_is_built(
    spark: SparkSession, postgres: str, select: str, options: dict[str, Any], said: str
) -> None:
    columns = (
        "id int PRIMARY KEY, s text NOT NULL, at timestamp, twice int GENERATED ALWAYS AS (id * 2) STORED, "
        "price numeric(5, 2), prices numeric(5, 1)[], dozens numeric(3, -1)"
    )
    stream = spark.readStream.format("rate").load().selectExpr(*select.split(", "))
    with new_table(postgres, columns) as table, pytest.raises(PenstockError, match=said.replace("{t}", table)):
        write(stream, pg.sink(**{"table": table, "url": postgres, **options}))


@pytest.fixture(scope="module")
def codes(postgres: str) -> Iterator[None]:
    """Domains of at most three characters."""
    execute(postgres, "CREATE DOMAIN code AS varchar(3)", "CREATE DOMAIN inner_code AS code")
    yield
    execute(postgres, "DROP DOMAIN inner_code", "DROP DOMAIN code")


@pytest.mark.slow_after(2)
@pytest.mark.usefixtures("codes")
@pytest.mark.parametrize(
    "kind", ["varchar(3)", "char(3)", "bit(3)", "varbit(3)", "varchar(3)[]", "code", "inner_code", "code[]"]
)
def test_a_text_that_is_too_long_is_refused_and_not_cut(spark: SparkSession, postgres: str, kind: str) -> None:
    many = kind.endswith("[]")
    long, short = [
        spark.sql(f"SELECT {'array(s)' if many else 's'} AS a FROM VALUES ('{s}') AS t(s)") for s in ("1011", "101")
    ]
    with new_table(postgres, f"a {kind}") as table:
        sink = pg.sink(table, url=postgres)
        with pytest.raises(PenstockError, match=r"refused: .*(too long for|does not match) type .*\(3\)"):
            sink.save(long, Batch(f"long {kind}", 0))
        assert query(postgres, f"SELECT count(*) FROM {table}") == [(0,)]
        sink.save(short, Batch(f"long {kind}", 0))
        assert query(postgres, f"SELECT to_json(a)::text FROM {table}") == [('["101"]' if many else '"101"',)]


def test_a_key_that_is_too_long_touches_no_other_row(spark: SparkSession, postgres: str) -> None:
    with new_table(postgres, "id varchar(3) PRIMARY KEY, n int") as table:
        execute(postgres, f"INSERT INTO {table} VALUES ('abc', 1)")
        sink = pg.sink(table, url=postgres, key="id", deleted="gone")
        sink.save(spark.sql("SELECT 'abcd' AS id, 2 AS n, true AS gone"), Batch("long key", 0))
        with pytest.raises(PenstockError, match="too long"):
            sink.save(spark.sql("SELECT 'abcd' AS id, 2 AS n, false AS gone"), Batch("long key", 1))
        assert query(postgres, f"SELECT * FROM {table}") == [("abc", 1)]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"url": "localhost:5432"}, "url is not a PostgreSQL address.*postgresql://user@host"),
        ({"version": "v"}, "version and deleted need a key.*set key="),
        ({"connections": 0}, "connections is 0"),
    ],
)
def test_a_wrong_setting_is_refused_when_the_sink_is_made(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(PenstockError, match=said):
        pg.sink("t", **{"url": "postgresql://u@h/d", **wrong})


def test_the_password_is_not_shown() -> None:
    assert "secret" not in repr(pg.sink("t", url="postgresql://u:secret@h/d"))


def rows(spark: SparkSession, *values: tuple[Any, ...]) -> DataFrame:
    """Rows with key, version, value and deletion flag, in two tasks; all rows of a key are in one task."""
    frame = spark.createDataFrame(list(values), "id int, v long, s string, gone boolean")
    return frame.repartition(2, "id").sortWithinPartitions("id", F.length("s"))


def test_upserts_and_deletes_by_key(spark: SparkSession, postgres: str) -> None:
    with new_table(postgres, "id int PRIMARY KEY, v bigint, s text") as table:
        sink = pg.sink(table, url=postgres, key="id", version="v", deleted="gone")
        batches = [
            rows(spark, (1, 1, "a", False), (1, 3, "b", False), (1, 2, "late", False), (2, 1, "x", None)),
            rows(spark, (1, 2, "older", False), (2, 2, "", True), (3, 1, "new", False), (4, 1, "", True)),
            rows(spark, (3, 0, "", True), (1, 3, "same version", False)),
        ]
        for number, batch in enumerate(batches):
            sink.save(batch, Batch("upserts", number))
            sink.save(batch, Batch("upserts", number))
        assert query(postgres, f"SELECT * FROM {table} ORDER BY id") == [(1, 3, "same version"), (3, 1, "new")]
        with pytest.raises(
            PenstockError, match=r"PostgreSQL table .* is ahead of the checkpoint: .* up to 2 .*batch 1"
        ):
            sink.save(batches[0], Batch("upserts", 1))
        assert len(query(postgres, f"SELECT * FROM {table}")) == 2
        assert query(postgres, "SELECT count(*) FROM penstock.applied WHERE query = 'upserts' AND batch = 2") == [(1,)]


def test_a_run_that_was_overtaken_by_one_with_another_batch_says_so(postgres: str) -> None:
    quick, slow = (Batch("overtaken", 0, "", end) for end in ("[1]", "[2]"))
    with connected(postgres, "a test") as session:
        prepare(session)
        assert note(session, quick, "t")
        session.commit()
        merge(session, cast(PostgresBatch, SimpleNamespace(batch=quick, table="t")), [1])
        with pytest.raises(PenstockError, match="PostgreSQL table t has another batch 0 of this query"):
            merge(session, cast(PostgresBatch, SimpleNamespace(batch=slow, table="t")), [1])


def test_without_a_version_the_last_row_of_a_key_counts(spark: SparkSession, postgres: str) -> None:
    with new_table(postgres, "id int PRIMARY KEY, s text") as table:
        frame = rows(spark, *[(n % 3, 0, "x" * n, False) for n in range(30)]).select("id", "s")
        pg.sink(table, url=postgres, key=["id"]).save(frame, Batch("last", 0))
        assert query(postgres, f"SELECT id, length(s) FROM {table} ORDER BY id") == [(0, 27), (1, 28), (2, 29)]


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    ("kind", "first", "second"),
    [
        ("uuid", "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'"),
        ("numeric", "'1.0'", "'1'"),
        ("char(3)", "'a'", "'a '"),
        ("timestamptz(0)", "TIMESTAMP '2024-01-01 00:00:00.2Z'", "TIMESTAMP '2024-01-01 00:00:00.1Z'"),
    ],
)
def test_a_key_that_is_written_in_two_ways_is_one(
    spark: SparkSession, postgres: str, kind: str, first: str, second: str
) -> None:
    with new_table(postgres, f"id {kind} PRIMARY KEY, n int") as table:
        sink = pg.sink(table, url=postgres, key="id", deleted="gone")
        for number, gone in enumerate(("false", "true")):
            values = f"VALUES ({first}, 1, false), ({second}, 2, {gone}) AS t(id, n, gone)"
            sink.save(spark.sql(f"SELECT * FROM {values}").coalesce(1), Batch(f"two ways {kind}", number))
            assert query(postgres, f"SELECT n FROM {table}") == ([(2,)] if gone == "false" else [])


def test_what_the_database_refuses_changes_nothing_and_is_told(spark: SparkSession, postgres: str) -> None:
    with new_table(postgres, "id int, u uuid") as table:
        sink = pg.sink(table, url=postgres)
        with pytest.raises(
            PenstockError, match=r"PostgreSQL refused: .*invalid input syntax for type uuid.*batch 0"
        ) as told:
            sink.save(spark.sql("SELECT 1 AS id, 'no uuid' AS u"), Batch("refused", 0))
        assert not told.value.retriable
        assert query(postgres, f"SELECT count(*) FROM {table}") == [(0,)]
        sink.save(spark.sql("SELECT 1 AS id, CAST(NULL AS STRING) AS u"), Batch("refused", 0))
        assert query(postgres, f"SELECT * FROM {table}") == [(1, None)]


def test_a_server_that_is_away_is_an_error_that_passes() -> None:
    with (
        pytest.raises(Unavailable, match=r"PostgreSQL is unavailable.*\(nowhere\)"),
        connected("postgresql://u@127.0.0.1:1/d", "nowhere"),
    ):
        pass


@pytest.mark.parametrize(
    ("part", "other", "said"),
    [
        ("/postgres$", "/nowhere", 'database "nowhere" does not exist'),
        ("//.*@", "//nobody:secret@", 'password authentication failed for user "nobody"'),
        ("//.*@", "//postgres@", "no password supplied"),
        ("/postgres$", "/postgres?nope=1", 'invalid URI query parameter: "nope"'),
        ("/postgres$", "/postgres?connect_timeout=soon", 'invalid integer value "soon" for .* "connect_timeout"'),
        ("/postgres$", "/postgres?sslmode=maybe", 'invalid sslmode value: "maybe"'),
        ("/postgres$", "/postgres?sslmode=require", "server does not support SSL"),
        ("//.*@", "//postgres:secret@[", "IPv6 host address in URI "),
        ("//.*@", "//postgres:sec%ret@", "invalid percent-encoded token "),
        ("//.*@", "//postgres:my secret@", "unexpected spaces found "),
    ],
)
def test_a_wrong_address_ends_the_run_and_shows_no_password(postgres: str, part: str, other: str, said: str) -> None:
    url = re.sub(part, other, postgres)
    with (
        pytest.raises(
            PenstockError, match=rf"cannot be reached with this url: .*{said}.*\(a table\).*fix url="
        ) as told,
        connected(url, "a table"),
    ):
        pass
    assert not told.value.retriable and "ret" not in told.value.what.replace("unexpected", "")


def test_a_table_may_be_called_by_a_reserved_word(spark: SparkSession, postgres: str) -> None:
    execute(postgres, 'CREATE TABLE "user" (id int PRIMARY KEY, n int)')
    upserting = pg.sink("user", url=postgres, key="id", deleted="gone")
    pg.sink("user", url=postgres).save(spark.sql("SELECT 1 AS id, 1 AS n"), Batch("user", 0))
    upserting.save(spark.sql("SELECT id, 2 AS n, id = 1 AS gone FROM VALUES (1), (2) AS t(id)"), Batch("user", 1))
    assert query(postgres, 'SELECT * FROM "user"') == [(2, 2)]
    execute(postgres, 'DROP TABLE "user"')


@pytest.mark.slow
def test_a_stream_that_is_run_again_writes_each_row_once(spark: SparkSession, postgres: str, tmp_path: Path) -> None:
    data, checkpoint, healed = tmp_path / "data", tmp_path / "checkpoint", tmp_path / "healed"
    for part in range(2):
        spark.range(part * 100, part * 100 + 100, numPartitions=1).write.mode("append").parquet(str(data))

    @F.udf("bigint", useArrow=False)
    def sick(n: int) -> int:
        if n == 150 and not healed.exists():
            raise RuntimeError("sick")
        return n

    stream = spark.readStream.schema("id long").parquet(str(data)).select(sick("id").alias("id"))
    with new_table(postgres, "id bigint") as table:
        query_of = write(stream, pg.sink(table, url=postgres))
        with pytest.raises(PySparkException, match="sick"):
            query_of.start(checkpoint=checkpoint, trigger="once").awaitTermination()
        assert query(postgres, f"SELECT count(*) FROM {table}") == [(0,)]
        healed.touch()
        for _ in range(2):
            query_of.start(checkpoint=checkpoint, trigger="once").awaitTermination()
            forget_last_commit(checkpoint)
        assert query(postgres, f"SELECT count(*), count(DISTINCT id), max(id) FROM {table}") == [(200, 200, 199)]
