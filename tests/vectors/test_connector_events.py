"""ScyllaDB's connector, case by case: changes on a real node, through Spark, become the same records in Kafka.

All cases run together, then each case is compared separately: in a batch whose rows the source reads in this process,
and in a few streaming queries. A case with log rows puts exactly these rows into the log table; the other cases run
their statements. Events that the connector does not have (deleted ranges) are left out.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

import pyarrow as pa
import pytest
from cassandra.cluster import Session
from confluent_kafka.admin import AdminClient, NewTopic
from connector_cases import Case, Json, comparable, load, log_row, quoted
from kafka_topics import create_topics, messages
from pyspark.sql import DataFrame, SparkSession
from record_order import Types, ordered_row

from penstock import cdc, kafka, write
from penstock.cdc.cdc_source import ScyllaCdc
from penstock.codec.change_frame import Layout, layout
from penstock.local.services import Services

PREFIX = "vectors"
# Each table of a query has its own Python process: more tables at once need memory, fewer need more queries.
TABLES_AT_ONCE = 8
CASES = load()
IN_SCOPE = [case for case in CASES if case.out_of_scope is None]


@dataclass(frozen=True)
class Record:
    key: Json
    value: Json
    headers: list[list[str]] | None


@dataclass(frozen=True)
class Result:
    """The result of a case: records in the order of its topic, or the error."""

    records: list[Record]
    tables: list[Layout]
    error: Exception | None = None


@pytest.fixture(scope="module", params=["batch", pytest.param("stream", marks=pytest.mark.slow)])
def results(
    request: pytest.FixtureRequest,
    spark: SparkSession,
    cql: Session,
    services: Services,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Result]:
    """Run every case in scope."""
    run = f"v{uuid.uuid4().hex[:8]}"
    read = read_now if request.param == "batch" else read_stream
    results: dict[str, Result] = {}
    frames: dict[str, list[DataFrame]] = {}
    for number, case in enumerate(IN_SCOPE):
        keyspace = f"{run}_{number}"
        try:
            prepare(cql, case, keyspace)
            frames[case.id] = [read(spark, services, case, keyspace, table) for table in case.tables]
        except Exception as error:
            results[case.id] = Result([], [], error)
    # One partition per topic, so that the order of all records of a case is known.
    admin = AdminClient({"bootstrap.servers": services.kafka})
    create_topics(admin, [NewTopic(topic(run, id), 1, 1) for id in frames])
    for ids in groups(frames):
        deliver(spark, services, run, {id: frames[id] for id in ids}, tmp_path_factory.mktemp("checkpoint"), results)
    for id, tables in frames.items():
        layouts = [layout(frame.schema) for frame in tables]
        results.setdefault(id, Result(list(consume(services, topic(run, id))), layouts))
    return results


def topic(run: str, case: str) -> str:
    return f"{run}.{case}"


def prepare(cql: Session, case: Case, keyspace: str) -> None:
    cql.execute(f"CREATE KEYSPACE {keyspace} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}")
    for statement in case.ddl:
        cql.execute(statement.replace("ks.", f"{keyspace}."))
    if case.log is None:
        for statement in case.statements:
            cql.execute(statement.replace("ks.", f"{keyspace}."))
    else:
        write_log(cql, keyspace, case.tables[0], case.log)


def write_log(cql: Session, keyspace: str, table: str, mutations: list[Json]) -> None:
    """Put the rows of each mutation under one time into one stream of the current generation."""
    generations = cql.execute("SELECT time, streams FROM system_distributed.cdc_streams_descriptions_v2")
    stream = "0x" + sorted(max(generations, key=lambda row: row[0])[1])[0].hex()
    columns = "SELECT column_name, type FROM system_schema.columns WHERE keyspace_name = %s AND table_name = %s"
    lists = frozenset(name for name, kind in cql.execute(columns, (keyspace, table)) if kind.startswith("list<"))
    for rows in mutations:
        time = str(uuid.uuid1())
        for number, (operation, values, *extra) in enumerate(rows):
            row = log_row(values, operation, extra[0] if extra else {}, lists)
            row |= {"cdc$stream_id": stream, "cdc$time": time, "cdc$batch_seq_no": number}
            row |= {"cdc$end_of_batch": True} if number == len(rows) - 1 else {}
            cql.execute(f"INSERT INTO {keyspace}.{table}_scylla_cdc_log JSON %s", (quoted(row),))


def read_stream(spark: SparkSession, services: Services, case: Case, keyspace: str, table: str) -> DataFrame:
    # Everything is written before the query starts, so no row can be late.
    return cdc.read(
        spark, f"{keyspace}.{table}", hosts=services.cql, name=case.id, images=case.images, confidence="0 seconds"
    )


def read_now(spark: SparkSession, services: Services, case: Case, keyspace: str, table: str) -> DataFrame:
    """A static frame of the changes so far: what Spark's processes call of the source is called here."""
    (before, after), of_table = case.images, {"table": f"{keyspace}.{table}", "hosts": services.cql}
    source = ScyllaCdc({**of_table, "name": case.id, "before": before, "after": after, "confidence": "0 seconds"})
    schema = source.schema()
    reader = source.streamReader(schema)
    start, limit, batches = reader.initialOffset(), reader.getDefaultReadLimit(), []
    reader.prepareForTriggerAvailableNow()
    while (end := reader.latestOffset(start, limit)) != start:
        batches += [batch for partition in reader.partitions(start, end) for batch in reader.read(partition)]
        start = end
    if not batches:
        return spark.createDataFrame([], schema)
    return spark.createDataFrame(pa.Table.from_batches(batches), schema).coalesce(1)


def groups(frames: dict[str, list[DataFrame]]) -> Iterator[list[str]]:
    group: list[str] = []
    for id, tables in frames.items():
        group.append(id)
        if sum(len(frames[each]) for each in group) + len(tables) > TABLES_AT_ONCE:
            yield group
            group = []
    if group:
        yield group


def deliver(
    spark: SparkSession,
    services: Services,
    run: str,
    frames: dict[str, list[DataFrame]],
    checkpoint: Path,
    results: dict[str, Result],
) -> None:
    """Send all events of these cases together; if that fails, of each case alone, so that only the cause fails."""
    options = {case.id: case.options() for case in IN_SCOPE}
    events = [
        cdc.events(frame, prefix=PREFIX, topic=topic(run, id), **options[id])
        for id, tables in frames.items()
        for frame in tables
    ]
    together = reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), events)
    sink = kafka.sink(servers=services.kafka)
    try:
        if together.isStreaming:
            write(together, sink).start(checkpoint=checkpoint, trigger="once").awaitTermination()
        else:
            sink.save(together)
    except Exception as error:
        if len(frames) == 1:
            results[next(iter(frames))] = Result([], [], error)
            return
        for id, tables in frames.items():
            deliver(spark, services, run, {id: tables}, checkpoint / id, results)


def consume(services: Services, name: str) -> Iterator[Record]:
    for message in messages(services.kafka, name, 1):
        headers = message.headers()
        yield Record(
            decoded(message.key()),
            decoded(message.value()),
            headers and [[header, value.decode()] for header, value in headers],
        )


def decoded(data: bytes | None) -> Json:
    return None if data is None else json.loads(data)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_records_are_those_of_the_connector(case: Case, results: dict[str, Result]) -> None:
    if reason := case.out_of_scope:
        pytest.skip(reason)
    result = results[case.id]
    if result.error:
        raise result.error
    records = [record for record in result.records if not (record.value and "range" in record.value)]
    types: Types = defaultdict(list)
    for table in result.tables:
        for name, kind in table.types.items():
            types[name].append(kind)
    expected = [Record(each["key"], each["value"], case.headers) for each in case.expect]
    assert by_key(records, types) == by_key(expected, types)
    for record in result.records:
        check_stable_members(record.value, case.legacy)


def by_key(records: list[Record], types: Types) -> dict[str, list[Json]]:
    """Each key's records in order, without members that vary, and with sorted sets and maps."""
    found: dict[str, list[Json]] = defaultdict(list)
    for record in records:
        value = comparable(record.value)
        for name, member in (value or {}).items():
            if isinstance(member, dict):
                value[name] = ordered_row(member, types)
        key = ordered_row(record.key, types)
        found[json.dumps(key, sort_keys=True)].append({"value": value, "headers": record.headers})
    return dict(found)


def check_stable_members(value: Json, legacy: bool) -> None:
    if value is None or "source" not in value:  # a transform has left the row alone
        return
    source = value["source"]
    assert (source["connector"], source["name"], source["snapshot"]) == ("scylla", PREFIX, "false")
    assert source["db"] == source["keyspace_name"]
    assert source["ts_ms"] <= value["ts_ms"]
    assert value["transaction"] is None
    if legacy and (value["op"] == "d" or value["before"] is None):
        assert (value["ts_us"] // 1000, value["ts_ns"] // 1000) == (value["ts_ms"], value["ts_us"])
    else:
        assert (value["ts_us"], value["ts_ns"]) == (None, None)


def test_all_kinds_of_cases_ran(capsys: pytest.CaptureFixture[str]) -> None:
    ran, skipped = Counter(case.kind for case in IN_SCOPE), Counter(c.kind for c in CASES if c.out_of_scope)
    with capsys.disabled():
        print(f"\nconnector cases: ran {dict(ran)}, out of scope {dict(skipped)}")
    assert ran
