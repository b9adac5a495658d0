"""Spark's real-time mode: which queries it takes, and how many slots they need.

A query in real-time mode sends each row as soon as it has it, because the tasks of all its stages run all the time: for
each partition of its topics one. It takes frames of Kafka's records through Spark's own operators, into one topic. Rows
in a Python process would wait for the end of a batch, which lasts minutes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import Any, Protocol, runtime_checkable

from py4j.java_gateway import is_instance_of
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession, functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

from penstock.durations import duration_text
from penstock.errors import PenstockError
from penstock.query.delivery import AT_LEAST_ONCE, SPARKS
from penstock.spark_runtime.logical_plan import WATERMARK, analyzed, each, nodes

REAL_TIME = "real-time"
BATCH = "5 minutes"
"""From one checkpoint to the next, at which rows wait for a second."""
GUIDE = "see docs/real-time.md, or give the pipeline an interval such as every='1 second'"

_building: ContextVar[bool] = ContextVar("real_time", default=False)


@contextmanager
def building(wanted: bool) -> Iterator[None]:
    """While a pipeline's function runs: whether it builds queries of real-time mode."""
    token = _building.set(wanted)
    try:
        yield
    finally:
        _building.reset(token)


def is_building() -> bool:
    return _building.get()


MARK = "_watermark"
SLACK = timedelta(minutes=10)
"""The watermark moves at the end of a batch; meanwhile partitions may be read at different speeds."""


def with_watermark(frame: DataFrame, at: str, arrival: str, late: timedelta) -> DataFrame:
    """The frame with a watermark on the column `at`, which clocks that are ahead of the arrival do not move.

    It is later than `late` says: a row that is not late by its arrival must not find its window gone.
    """
    marked = frame.withColumn(MARK, F.least(at, arrival)).withWatermark(MARK, duration_text(late + SLACK)).drop(MARK)
    delay = late // timedelta(milliseconds=1)
    return marked.withColumn(at, F.col(at).alias(at, metadata={WATERMARK: delay}))


KAFKA = "kafka"
"""Spark's name of its own Kafka source, the only one that has this mode; the kind of our sinks of topics."""
AHEAD = 24 * 3_600_000
"""Milliseconds; longer than a batch."""
ANY_CHECKPOINT = "spark.sql.streaming.realTimeMode.dangerouslyAllowCheckpointV1.enabled"
FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
ASKED = {"kafka.request.timeout.ms": "5000", "kafka.default.api.timeout.ms": "15000"}
"""How long brokers may take to describe topics."""
RETRIABLE = "org.apache.kafka.common.errors.RetriableException"
"""Kafka's own mark of errors that pass."""
RELATION = "StreamingRelationV2"
SOURCES = {RELATION, "StreamingRelation", "StreamingDataSourceV2Relation", "StreamingDataSourceV2ScanRelation"}
STATE = {"Aggregate", "Deduplicate"}
"""Nodes with state, whose rows go through a shuffle."""
ALLOWED = {
    *STATE,
    "CollectMetrics",
    "EventTimeWatermark",
    "Expand",
    "Filter",
    "Generate",
    "Project",
    "ResolvedHint",
    "SubqueryAlias",
    "Union",
    "View",
}
"""Nodes of Spark's plans that run in this mode."""
HELD_BACK = "its rows would wait for the end of a batch"
WITH_STATE = {"TransformWithStateInPySpark": "a function of penstock.window, table, join or segment"}
PYTHON = {
    "ArrowEvalPythonUDTF",
    "BatchEvalPythonUDTF",
    "FlatMapGroupsInArrow",
    "FlatMapGroupsInPandas",
    "FlatMapGroupsInPandasWithState",
    "MapInArrow",
    "MapInPandas",
    "PythonMapInArrow",
}
PYTHON_EXPRESSIONS = {"PythonUDF", "PythonUDAF", "PythonUDTF"}
OPERATORS = {
    "DeduplicateWithinWatermark": "dropDuplicatesWithinWatermark",
    "Distinct": "distinct",
    "GlobalLimit": "limit",
    "LocalLimit": "limit",
    "Repartition": "repartition",
    "RepartitionByExpression": "repartition",
    "Sort": "orderBy",
    "Window": "a window function",
}
"""What users call nodes that do not run in this mode."""


@runtime_checkable
class EarlySink(Protocol):
    """What real-time mode needs of a sink."""

    @property
    def client(self) -> str | None:
        """The Kafka client; None for the default."""

    def records(self, frame: DataFrame) -> DataFrame:
        """The rows to write."""

    def early(self, frame: DataFrame) -> DataStreamWriter:
        """The writer of a query that sends each row as soon as it has it."""


class PlannedQuery(Protocol):
    """A query (`penstock.query.query.Query`)."""

    @property
    def frame(self) -> DataFrame: ...

    @property
    def sinks(self) -> tuple[Any, ...]: ...

    @property
    def mode(self) -> str: ...


def require(query: PlannedQuery, where: str) -> None:
    """Raise PenstockError if Spark cannot run the query in real-time mode."""
    if len(query.sinks) > 1:
        raise _refused("several sinks", where, "write to one topic here, and to the other sinks in another query")
    kind, name = query.sinks[0].target
    if kind != KAFKA:
        raise _refused(f"the sink {kind} ({name})", where, "write to a topic with kafka.sink")
    if query.sinks[0].delivery != AT_LEAST_ONCE:
        raise _refused(f"the delivery {query.sinks[0].delivery}", where, "leave delivery= out: it is at least once")
    if not isinstance(query.sinks[0], EarlySink):
        raise _refused(f"a table to the sink {kind} ({name})", where)
    if query.sinks[0].client not in (None, SPARKS):
        raise _refused(f"the client {query.sinks[0].client!r} ({name})", where, "leave client= out of kafka.sink")
    if query.mode == "complete":
        raise _refused("the output mode complete", where, "leave mode= out")
    # With the sink's own expressions, such as those of a format.
    plan_nodes = list(nodes(analyzed(query.sinks[0].records(query.frame))))
    # A function with state has Python functions around it, which users do not know.
    for node in sorted(plan_nodes, key=lambda node: str(node.nodeName()) not in WITH_STATE):
        _require_node(node, where)


def _require_node(node: Any, where: str) -> None:
    name = str(node.nodeName())
    if not node.isStreaming():
        return
    if name in SOURCES:
        _require_kafka(node, name, where)
    elif name == "Join":
        _require_one_stream(node, where)
    elif name in WITH_STATE or name in PYTHON:
        raise _refused(f"{WITH_STATE.get(name, 'a Python function')} ({name}): {HELD_BACK}", where)
    elif function := _python_function(node):
        raise _refused(f"the Python function {function}: {HELD_BACK}", where)
    elif name not in ALLOWED:
        raise _refused(f"{OPERATORS[name]} ({name})" if name in OPERATORS else name, where)


def _require_kafka(node: Any, name: str, where: str) -> None:
    source = str(node.sourceName()) if name == RELATION else name
    if source != KAFKA:
        next = 'read a topic with kafka.read, without client= or with client="spark"'
        raise _refused(f"the source {source}", where, next)


def _require_one_stream(join: Any, where: str) -> None:
    if join.left().isStreaming() and join.right().isStreaming():
        raise _refused("a join of two streams", where)


def _python_function(node: Any) -> str:
    """The name of a Python function in the node's expressions; "" if there is none."""
    for expression in each(node.expressions()):
        for subexpression in nodes(expression):
            if str(subexpression.nodeName()) in PYTHON_EXPRESSIONS:
                return str(subexpression.name())
    return ""


def _refused(what: str, where: str, next: str = GUIDE) -> PenstockError:
    return PenstockError(f"real-time mode does not take {what}", where=where, next=next)


@contextmanager
def checkpoints(frame: DataFrame) -> Iterator[None]:
    """Meanwhile the frame's session starts queries whose state, if any, has the checkpoint format of real-time mode.

    In the default format a batch that is run again may read what the failed one wrote. Spark refuses it, also for
    queries without state, such as those that ran in micro-batches before: these are let in.
    """
    spark = frame.sparkSession
    name, value = (FORMAT, "2") if _states(frame) else (ANY_CHECKPOINT, "true")
    before = spark.conf.get(name)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.set(name, str(before))


def require_slots(spark: SparkSession, frames: Iterable[DataFrame], where: str) -> None:
    """Raise PenstockError if the session has fewer slots than the queries have tasks, which run all the time."""
    shuffled = int(str(spark.conf.get("spark.sql.shuffle.partitions")))
    needed = sum(_tasks(spark, frame, shuffled) for frame in frames)
    slots = spark.sparkContext.defaultParallelism
    if slots < needed:
        raise PenstockError(
            f"real-time mode needs {needed} slots, one for each partition of its topics and {shuffled} for each state, "
            f"and this session has {slots}",
            where=where,
            next=f"give Spark more cores (there may be more than the machine has): penstock run --cores {needed}",
        )


def _tasks(spark: SparkSession, frame: DataFrame, shuffled: int) -> int:
    """How many tasks of a query run at the same time."""
    return sum(_partitions(spark, options) for options in _kafka_options(frame)) + shuffled * len(_states(frame))


def _states(frame: DataFrame) -> list[str]:
    """The nodes with state."""
    plan_nodes = nodes(analyzed(frame))
    return [str(node.nodeName()) for node in plan_nodes if node.isStreaming() and str(node.nodeName()) in STATE]


def _kafka_options(frame: DataFrame) -> Iterator[dict[str, str]]:
    for node in nodes(analyzed(frame)):
        if str(node.nodeName()) == RELATION and str(node.sourceName()) == KAFKA:
            yield {name.lower(): value for name, value in node.extraOptions().asCaseSensitiveMap().items()}


def _partitions(spark: SparkSession, options: dict[str, str]) -> int:
    """How many partitions a source of Spark's Kafka connector with these options reads now."""
    if assigned := options.get("assign"):
        return sum(map(len, json.loads(assigned).values()))
    jvm: Any = spark.sparkContext._jvm
    properties = jvm.java.util.HashMap()
    for name, value in (ASKED | options).items():
        if name.startswith("kafka."):
            properties.put(name.removeprefix("kafka."), value)
    try:
        admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(properties)
        try:
            topics = jvm.java.util.ArrayList()
            for topic in _topics(admin, options):
                topics.add(topic)
            described = admin.describeTopics(topics).allTopicNames().get()
            return sum(topic.partitions().size() for topic in described.values())
        finally:
            admin.close()
    except Py4JJavaError as error:
        raise _no_answer(spark, error, options.get("kafka.bootstrap.servers", "")) from error


def _topics(admin: Any, options: dict[str, str]) -> list[str]:
    if pattern := options.get("subscribepattern"):
        return [str(name) for name in admin.listTopics().names().get() if re.fullmatch(pattern, str(name))]
    return [name.strip() for name in options.get("subscribe", "").split(",")]


class TopicsUnavailable(PenstockError):
    """The brokers did not describe the topics now; `penstock run` tries again."""

    retriable = True


def _no_answer(spark: SparkSession, error: Py4JJavaError, servers: str) -> PenstockError:
    cause = error.java_exception.getCause() or error.java_exception
    passes = is_instance_of(spark.sparkContext._gateway, cause, RETRIABLE)
    kind = TopicsUnavailable if passes else PenstockError
    return kind(f"the topics cannot be described: {cause.getMessage()}", where=servers, next="check topics and brokers")


END_PATIENCE = 5.0
"""Seconds for running batches to end; a task that waits for a record of an idle partition does not end by then."""


@contextmanager
def ending(spark: SparkSession) -> Iterator[None]:
    """Meanwhile the batches of real-time mode in this session are over: each task ends at its next record.

    Spark has no call for this, so its clock of this mode goes ahead; executors on other machines do not see it.
    """
    jvm: Any = spark.sparkContext._jvm
    clock = jvm.org.apache.spark.sql.execution.datasources.v2.LowLatencyClock
    before = clock.getClock()
    clock.setClock(jvm.org.apache.spark.util.ManualClock(before.getTimeMillis() + AHEAD))
    try:
        yield
    finally:
        clock.setClock(before)
