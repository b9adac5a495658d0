"""The graph of pipelines: the examples, lookups, global tables, tables and Spark's own states, and hostile names."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cassandra.cluster import Session
from hypothesis import given, strategies as some
from keyspaces import new_keyspace
from pyspark.sql import Row, SparkSession, functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from waiting import patience

from penstock import cdc, cql as cql_tables, files, join, kafka, replicate, segment, table
from penstock.cli.pipeline_file import load
from penstock.local.services import Services
from penstock.query.query import write
from penstock.watch.graph import (
    QUERY,
    SINK,
    STATE,
    TABLE,
    TOPIC,
    Graph,
    Node,
    graph_of,
    sink_nodes,
    source_nodes,
    topic,
)

ROOT = Path(__file__).parents[2]
SIMPLE = "WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
CDC = "WITH cdc = {'enabled': true, 'preimage': true, 'postimage': true}"


@pytest.fixture(scope="module")
def tables(cql: Session) -> Iterator[None]:
    """The tables of the examples."""
    for keyspace in ("market", "ads", "seg"):
        cql.execute(f"CREATE KEYSPACE {keyspace} {SIMPLE}")
    cql.execute(
        "CREATE TABLE market.orders (customer text, id int, total decimal, paid boolean, PRIMARY KEY (customer, id)) "
        + CDC
    )
    cql.execute("CREATE TABLE ads.visits (id int PRIMARY KEY, cookie text, email_hash text) " + CDC)
    cql.execute("CREATE TABLE ads.visitors (id int PRIMARY KEY, person text)")
    segment.create_tables(cql, "seg")
    yield
    for keyspace in ("market", "ads", "seg"):
        cql.execute(f"DROP KEYSPACE {keyspace}")


@pytest.fixture
def servers(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CQL", services.cql)
    monkeypatch.setenv("KAFKA", services.kafka)


def of_example(name: str, spark: SparkSession) -> Graph:
    pipeline = load(f"{ROOT}/examples/{name}")
    return graph_of(pipeline.name, pipeline.queries(spark))


def drawn(graph: Graph) -> set[str]:
    """The edges as strings."""
    return {f"{edge.source} -> {edge.target}" for edge in graph.edges}


EXAMPLES = {
    "01_changes_to_kafka.py:order_events": """
        table:market.orders -> query:order_events
        query:order_events -> topic:market.market.orders""",
    "02_two_queries.py:paid_orders": """
        table:market.orders -> query:paid_orders.events
        query:paid_orders.events -> topic:market.market.orders
        table:market.orders -> query:paid_orders.paid
        query:paid_orders.paid -> topic:paid-orders""",
    "03_counts_per_minute.py:pages": """
        topic:clicks -> query:pages.minutes
        query:pages.minutes -> state:pages.minutes/minutes
        query:pages.minutes -> topic:minutes
        topic:clicks -> query:pages.dead
        query:pages.dead -> topic:clicks.dead""",
    "04_persons.py:visitors": """
        table:ads.visits -> query:visitors
        table:ads.identities -> query:visitors
        table:ads.links -> query:visitors
        query:visitors -> table:ads.visitors""",
    "05_segments.py:segments": """
        topic:shop-clicks -> query:segments
        query:segments -> state:segments/segments
        query:segments -> table:seg.members
        query:segments -> table:seg.counts
        query:segments -> topic:topics of each row""",
}


def test_a_table_and_its_copy_of_the_same_name_are_two_nodes(
    spark: SparkSession, services: Services, cql: Session
) -> None:
    port = services.cql.rpartition(":")[2]
    here, there = f"127.0.0.1:{port}", f"localhost:{port}"
    with new_keyspace(cql, "shop") as keyspace:
        name = f"{keyspace}.orders"
        cql.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, total int) {CDC}")
        frame = cdc.read(spark, name, hosts=here, name="orders", write_times=True)
        graph = graph_of("shop", {"": write(frame, replicate.sink(name, hosts=there))})
    assert drawn(graph) == {f"table:{name}@{here} -> query:shop", f"query:shop -> table:{name}@{there}"}
    assert [node.name for node in graph.nodes if node.kind == TABLE] == [name, name]


@pytest.mark.slow_after(2)
@pytest.mark.usefixtures("tables", "servers")
@pytest.mark.parametrize("example", EXAMPLES)
def test_the_graph_of_an_example(example: str, spark: SparkSession, services: Services) -> None:
    graph = of_example(example, spark)
    assert drawn(graph) == set(map(str.strip, EXAMPLES[example].strip().splitlines()))
    addresses = {node.address for node in graph.nodes if node.system in ("kafka", "cql")}
    assert addresses <= {services.kafka, services.cql}
    assert {edge.source for edge in graph.edges} | {edge.target for edge in graph.edges} == {
        node.id for node in graph.nodes
    }


@pytest.mark.usefixtures("servers")
def test_a_paragraph_for_each_query(spark: SparkSession, services: Services) -> None:
    assert of_example("03_counts_per_minute.py:pages", spark).text().splitlines() == [
        "query pages.minutes",
        f"  reads   topic clicks at {services.kafka}",
        "  keeps   state minutes",
        f"  writes  topic minutes at {services.kafka}",
        "",
        "query pages.dead",
        f"  reads   topic clicks at {services.kafka}",
        f"  writes  topic clicks.dead at {services.kafka}",
    ]


def test_a_query_names_those_it_goes_on_to(spark: SparkSession) -> None:
    first = write(spark.readStream.format("rate").load().selectExpr("'a' value"), kafka.sink("t", servers="k:1"))
    read = kafka.read(spark, "t", servers="k:1", schema="id int", name="t")
    second = write(read.select("id"), kafka.sink("u", servers="k:1"))
    lines = graph_of("p", {"first": first, "second": second}).text().splitlines()
    assert lines == [
        "query p.first",
        "  reads   rate",
        "  writes  topic t at k:1, to query p.second",
        "",
        "query p.second",
        "  reads   topic t at k:1, from query p.first",
        "  writes  topic u at k:1",
    ]


@pytest.mark.usefixtures("tables")
def test_lookups_and_global_tables_are_inputs(spark: SparkSession, services: Services) -> None:
    clicks = kafka.read(spark, "clicks", servers=services.kafka, schema="id int, shop string", name="clicks")
    looked_up = clicks.transform(
        cql_tables.lookup, "ads.visitors", hosts=services.cql, on="id", columns=["person"], ttl="1 minute", name="who"
    )
    shops = table.global_table("shops", servers="k:1,l:2", schema="city string")
    visits = cql_tables.global_table("ads.visits", hosts=services.cql, columns=["cookie"])
    found = join.enrich(looked_up, shops, on="shop", name="city")
    found = join.enrich(found.withColumn("id", F.col("id").cast("string")), visits, on="id", name="visit")
    graph = graph_of("p", {"": write(found.select("person", "city", "cookie"), files.sink("/tmp/x"))})
    inputs = {edge.source for edge in graph.edges if edge.target == "query:p"}
    assert inputs == {"topic:clicks", "topic:shops", "table:ads.visitors", "table:ads.visits"}
    assert {node.address for node in graph.nodes if node.id == "topic:shops"} == {"k:1,l:2"}
    assert "query:p -> files:/tmp/x" in drawn(graph)


def test_tables_and_joins_keep_states_by_name(spark: SparkSession) -> None:
    users = kafka.read_table(spark, "users", servers="k:1", schema="id string, region string", key="id", name="users")
    regions = table.count(users, by="region", name="regions")
    query = write(regions, kafka.sink("regions", servers="k:1"))
    states = {node.name for node in graph_of("p", {"": query}).nodes if node.kind == STATE}
    assert "regions" in states
    assert all(re.fullmatch(r"\w+", name) for name in states)


def test_sparks_own_states_have_its_names(spark: SparkSession) -> None:
    rates = spark.readStream.format("rate").load().withWatermark("timestamp", "1 minute")
    counted = rates.dropDuplicates(["value", "timestamp"]).groupBy("timestamp").count()
    query = write(counted.selectExpr("string(count) value"), kafka.sink("n", servers="k:1"))
    graph = graph_of("p", {"": query})
    assert {node.id for node in graph.nodes if node.kind == STATE} == {"state:p/dedupe", "state:p/stateStoreSave"}
    a, b = (kafka.read(spark, t, servers="k:1", schema="id int", name=t, prefix=t) for t in ("a", "b"))
    joined = write(
        a.join(b.withColumnRenamed("id", "i"), F.expr("id = i")).select("id"), kafka.sink("n", servers="k:1")
    )
    assert "query:p -> state:p/symmetricHashJoin" in drawn(graph_of("p", {"": joined}))


def test_files_that_a_stream_is_joined_with_are_inputs(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(3).write.parquet(f"{tmp_path}/static")
    static = spark.read.parquet(f"{tmp_path}/static")
    frame = spark.readStream.schema("id bigint").parquet(f"file://{tmp_path}").join(static, "id")
    graph = graph_of("p", {"": write(frame, files.sink(f"{tmp_path}/out"))})
    assert drawn(graph) == {
        f"files:{tmp_path} -> query:p",
        f"files:{tmp_path}/static -> query:p",
        f"query:p -> files:{tmp_path}/out",
    }


@pytest.mark.usefixtures("tables")
def test_events_of_a_table_go_to_the_topic_that_they_name(spark: SparkSession, services: Services) -> None:
    changes = cdc.read(spark, "market.orders", hosts=services.cql, name="orders", images="full")
    sink = kafka.sink(servers="k:1")
    named = [cdc.events(changes, prefix="a"), cdc.events(changes, prefix="a", topic="b")]
    found = [[node.id for group in sink_nodes(write(frame, sink)) for node in group] for frame in named]
    assert found == [["topic:a.market.orders"], ["topic:b"]]


def test_a_join_of_tables_keeps_its_state_by_name(spark: SparkSession) -> None:
    left, right = (
        kafka.read_table(spark, name, servers="k:1", schema=f"id string, {name} string", key="id", name=name)
        for name in ("users", "orders")
    )
    graph = graph_of("p", {"": write(join.tables(left, right, name="both"), kafka.sink("both", servers="k:1"))})
    assert drawn(graph) == {
        "topic:users -> query:p",
        "topic:orders -> query:p",
        "query:p -> state:p/both",
        "query:p -> topic:both",
    }


class Counts(StatefulProcessor):
    """A processor of a user's own."""

    def init(self, handle: StatefulProcessorHandle) -> None: ...

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        yield from rows

    def close(self) -> None: ...


class Large(Counts):
    """Spark sends it to the workers as a broadcast."""

    def __init__(self) -> None:
        self.payload = bytes(range(256)) * 8192


class Unloadable(Counts):
    """As of a module that only the workers have."""

    def __reduce__(self) -> Any:
        return _fails, ()


def _fails() -> None:
    raise ImportError("no such module here")


@pytest.mark.parametrize(
    ("processor", "states"),
    [(Counts, ["Counts"]), (Large, ["Large"]), (Unloadable, ["transformWithStateInPySparkExec"])],
)
def test_a_users_own_processor_has_its_class_name_or_that_of_sparks_operator(
    spark: SparkSession, processor: type[Counts], states: list[str]
) -> None:
    rates = spark.readStream.format("rate").load().groupBy("value")
    counted = rates.transformWithState(processor(), "value string", "append", "none")
    graph = graph_of("p", {"": write(counted, kafka.sink("n", servers="k:1"))})
    assert [node.name for node in graph.nodes if node.kind == STATE] == states


def test_a_batch_table_keeps_no_state(spark: SparkSession) -> None:
    few = spark.range(3).groupBy("id").count()
    rates = spark.readStream.format("rate").load().join(few, F.expr("id = value"))
    graph = graph_of("p", {"": write(rates.selectExpr("string(count) value"), kafka.sink("n", servers="k:1"))})
    assert [node.kind for node in graph.nodes] == [TABLE, QUERY, TOPIC]


def test_a_topic_in_a_constant_column_is_known(spark: SparkSession) -> None:
    rates = spark.readStream.format("rate").load()
    constant = rates.select(F.lit("fixed").alias("topic"), F.lit("v").alias("value")).where("value is not null")
    by_row = rates.selectExpr("concat('t', value) topic", "'v' value")
    sink = kafka.sink(servers="k:1")
    assert [[node.id for node in one] for one in sink_nodes(write(constant, sink))] == [["topic:fixed"]]
    more = rates.select(F.lit("other").alias("topic"), F.col("value").cast("string"))
    both = constant.unionAll(more).select("value", "topic")
    assert [[node.id for node in one] for one in sink_nodes(write(both, sink))] == [["topic:fixed", "topic:other"]]
    mixed = both.unionAll(rates.select(F.lit("v").alias("value"), F.col("value").cast("string").alias("topic")))
    assert [[node.id for node in one] for one in sink_nodes(write(mixed, sink))] == [["topic:topics of each row"]]
    assert [[node.id for node in one] for one in sink_nodes(write(by_row, sink))] == [["topic:topics of each row"]]


def test_spark_sources_of_several_topics(spark: SparkSession) -> None:
    for option, given_value, names in (
        ("subscribe", "b,a", ["a", "b"]),
        ("subscribePattern", "c.*", ["c.*"]),
        ("assign", '{"d":[0],"e":[1]}', ["d", "e"]),
    ):
        frame = spark.readStream.format("kafka").option("kafka.bootstrap.servers", "k:1").option(option, given_value)
        query = write(frame.load().select("value"), kafka.sink("n", servers="k:1"))
        assert [[node.name for node in one] for one in source_nodes(query)] == [names]


def test_no_address_has_a_password(spark: SparkSession, tmp_path: Path) -> None:
    """The sinks are not asked for rows here: their databases do not exist."""
    from penstock import postgres
    from penstock.query.query import Query

    frame = spark.readStream.format("rate").load()
    sink = postgres.sink("public.t", url="postgresql://ann:secret@db:5432/shop")
    graph = graph_of("p", {"": Query(frame, (sink,))})
    assert "secret" not in json.dumps(graph.to_dict()) + graph.text() + graph.mermaid()
    assert Node("postgres:public.t", SINK, "public.t", "postgres", "db:5432/shop") in graph.nodes


HOSTILE = ['a"b', "c]d", "e<script>alert(1)</script>", "f#quot;", "g`h`", "i\n--> j", "k[(l)]", "%%m", "ünï", "&lt;"]


def test_a_mermaid_label_holds_any_name() -> None:
    nodes = [topic(name, 'x"]<b>') for name in HOSTILE]
    query = Node("query:q", QUERY, "q", "penstock")
    lines = Graph.of([*nodes, query], [(node, query) for node in nodes]).mermaid().splitlines()
    assert len(lines) == 1 + len(nodes) + 1 + len(nodes)
    for line, name in zip(lines[1:], HOSTILE, strict=False):
        found = re.fullmatch(r'  n\d+\(\["([^"<>\[\]`\n]*)"\]\)', line)
        assert found, line
        assert re.sub(r"#(\d+);", lambda code: chr(int(code[1])), found[1]) == f'topic {name} at x"]<b>'


@given(some.text())
def test_every_label_can_be_read_back(name: str) -> None:
    (_, box) = Graph((Node("q", QUERY, name, "penstock"),)).mermaid().split("\n", 1)
    label = box.strip().removeprefix('n0["').removesuffix('"]')
    assert not set(label) & set("\"<>[]`\n\r{}()|'\\&%")
    assert re.sub(r"#(\d+);", lambda code: chr(int(code[1])), label) == f"query {name}".rstrip()


def test_a_graph_has_no_node_and_no_edge_twice() -> None:
    a, q = topic("a", "k:1"), Node("query:q", QUERY, "q", "penstock")
    graph = Graph.of([a, q, topic("a")], [(a, q), (topic("a"), q)])
    assert graph.nodes == (a, q)
    assert len(graph.edges) == 1
    assert Graph().text() == ""


COMMAND = """
import penstock as ps
from penstock import kafka

@ps.pipeline
def ticks(spark):
    rates = spark.readStream.format("rate").load()
    return ps.write(rates.selectExpr("string(value) value"), kafka.sink("ticks\\x1b[31m", servers="127.0.0.1:1"))
"""


@pytest.mark.slow
def test_the_command_prints_each_form(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(COMMAND)

    def ran(form: str) -> str:
        command = [sys.executable, "-m", "penstock", "graph", "shop.py:ticks", "--format", form]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=patience(300), check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert ran("text").splitlines()[2] == r"  writes  topic ticks\x1b[31m at 127.0.0.1:1"
    assert json.loads(ran("json"))["edges"][1] == {"source": "query:ticks", "target": "topic:ticks\x1b[31m"}
