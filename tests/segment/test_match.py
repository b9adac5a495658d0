"""`segment.match` in Spark: output after restarts, repeated batches and killed workers; time; changed rules."""

from __future__ import annotations

import json
import os
import signal
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import segment_model
from checkpoints import forget_last_commit
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession, functions as F
from pyspark.sql.streaming.query import StreamingQuery
from segment_events import BUY, RULES, VISIT, modelled, rows
from segment_model import Change
from waiting import until

from penstock import segment
from penstock.errors import PenstockError
from penstock.native import shared_memory
from penstock.run import faults
from penstock.segment.segment_match import require_same
from penstock.spark_runtime.fork_server import WORKER_NAME

SCHEMA = "person string, event string, amount double, country string, at timestamp"
DAY = timedelta(days=1)
FAR = 600


def put(folder: Path, name: str, made: list[dict[str, object]]) -> None:
    """A file of events for the stream, created atomically."""
    folder.mkdir(exist_ok=True)
    at = [datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=int(str(row["at"]))) for row in made]
    lines = [json.dumps(row | {"at": time.isoformat()}) for row, time in zip(made, at, strict=True)]
    (folder / f".{name}").write_text("\n".join(lines))
    (folder / f".{name}").rename(folder / f"{name}.json")


def stream(spark: SparkSession, folder: Path) -> DataFrame:
    folder.mkdir(exist_ok=True)
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(folder))


def started(frame: DataFrame, to: Path, trigger: dict[str, Any]) -> StreamingQuery:
    query = frame.writeStream.format("parquet").option("checkpointLocation", str(to / "checkpoint"))
    return query.trigger(**trigger).start(str(to / "out"))


def kill_a_worker() -> None:
    for pid in workers()[:1]:
        os.kill(pid, signal.SIGKILL)


def ended_well(query: StreamingQuery) -> bool:
    """Whether an ended query succeeded; raises errors that a retry does not fix."""
    try:
        query.awaitTermination()
    except StreamingQueryException:
        fault = faults.of_query(query)
        if fault and fault.retriable:
            return False
        raise
    return True


def found(spark: SparkSession, to: Path) -> dict[tuple[str, str], list[Change]]:
    changes: dict[tuple[str, str], list[Change]] = defaultdict(list)
    if not (to / "out/_spark_metadata/0").exists():
        return changes
    columns = "person", "segment", "event", F.unix_millis("at").alias("at"), F.unix_millis("until").alias("until")
    for row in spark.read.schema(segment_schema()).parquet(str(to / "out")).select(*columns).collect():
        changes[row.person, row.segment].append(Change(*row))
    return {key: sorted(some) for key, some in changes.items()}


def segment_schema() -> str:
    return "person string, segment string, event string, at timestamp, until timestamp, ttl int, `to` string"


def workers() -> list[int]:
    """The Python workers of this process's Spark: the processes forked by its daemon."""
    names: dict[int, tuple[int, str]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                names[int(entry.name)] = parent, (entry / "comm").read_text().strip()
            except OSError:
                continue
    daemons = {pid for pid, (_, name) in names.items() if name == WORKER_NAME and descends(pid, names)}
    return [pid for pid, (parent, _) in names.items() if parent in daemons]


def descends(pid: int, names: dict[int, tuple[int, str]]) -> bool:
    while pid in names and pid != os.getpid():
        pid = names[pid][0]
    return pid == os.getpid()


@pytest.mark.kill
def test_restarts_repeats_and_killed_workers_change_nothing(spark: SparkSession, tmp_path: Path) -> None:
    source, batches = tmp_path / "in", [rows(0), rows(100), rows(200)]
    frame = segment.match(stream(spark, source), RULES, key="person", name="s", at="at", clock="events", buckets=4)
    for number, made in enumerate(batches[:2]):
        put(source, f"batch-{number}", made)
        started(frame, tmp_path, {"availableNow": True}).awaitTermination()
    # Workers that already hold its state repeat the last batch; its output is written once, by batch.
    forget_last_commit(tmp_path / "checkpoint")
    put(source, "batch-2", batches[2])
    os.kill(workers()[0], signal.SIGKILL)
    started(frame, tmp_path, {"availableNow": True}).awaitTermination()
    # An event that touches a rule moves the watermark; the next batch sees the new time.
    for number in range(2):
        put(source, f"far-{number}", [{"person": "end", "event": "buy", "at": FAR + number}])
    query = started(frame, tmp_path, {"availableNow": True})
    tracker = spark.sparkContext.statusTracker()
    until(lambda: tracker.getActiveStageIds() or not query.isActive, "task")
    kill_a_worker()
    # Spark repeats the task of a killed worker; killing the worker of the query's driver ends the query.
    if not ended_well(query):
        started(frame, tmp_path, {"availableNow": True}).awaitTermination()
    expected = segment_model.changes(RULES, [([modelled(row) for row in made], 0) for made in batches] + [([], FAR)])
    assert {change.event for some in expected.values() for change in some} == {"enter", "prolong", "leave", "expire"}
    assert found(spark, tmp_path) == {key: sorted(some) for key, some in expected.items()}


@pytest.mark.slow
@pytest.mark.skipif(shared_memory.SharedMemory.make() is None, reason="this system gives no such memory")
def test_queries_whose_states_have_one_name_share_nothing(spark: SparkSession, tmp_path: Path) -> None:
    def slots() -> set[int]:
        """The slots of the workers, by the words for their names."""

        def seen(_: int) -> set[int]:
            return set(shared_memory._MEMORY.heads[:, 0].tolist()) if shared_memory._MEMORY else set()

        return spark.sparkContext.parallelize([0], 1).map(seen).collect()[0]

    before = slots()
    for name in ("a", "b"):
        put(tmp_path / name, "0", rows(0))
        frame = segment.match(
            stream(spark, tmp_path / name), RULES, key="person", name="s", at="at", clock="events", buckets=2
        )
        for _ in range(2):
            started(frame, tmp_path / f"{name}-to", {"availableNow": True}).awaitTermination()
            put(tmp_path / name, "1", rows(100))
    assert len(slots() - before) == 4
    assert found(spark, tmp_path / "a-to") == found(spark, tmp_path / "b-to") != {}


def test_a_file_that_spark_refuses_leaves_the_rules_as_they_are(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, frame = tmp_path / "rules.yaml", spark.createDataFrame([], SCHEMA)
    known: dict[str, Any] = {"key": "person", "name": "kept", "at": "at"}
    file.write_text("- {name: here, when: evnt = 1, ttl: 1 day, to: t}")
    with pytest.raises(PenstockError, match="refuses 'evnt = 1'"):
        segment.match(frame, segment.rules(file), **known)
    file.write_text("- {name: here, when: amount = 1, ttl: 1 day, to: t}")
    segment.match(frame, segment.rules(file), **known)
    file.write_text("- {name: here, when: evnt = 1, ttl: 1 day, to: t}")
    refused = segment.rules(file)
    segment.match(frame, refused, **known)
    assert "the rules stay as they are: Spark refuses 'evnt = 1'" in capsys.readouterr().err
    # Until the file changes again, nothing is restarted.
    require_same(refused, refused.text)
    file.write_bytes(b"- \xff")
    require_same(refused, refused.text)
    assert "the rules stay as they are: 'utf-8'" in capsys.readouterr().err


@pytest.mark.slow
def test_a_person_that_no_table_can_hold_stops_nobody(spark: SparkSession, tmp_path: Path) -> None:
    made = rows(0)[:20]
    put(tmp_path / "in", "a", [*made, *({**row, "person": "p" * 70_000} for row in made[:3])])
    broken = f"if(person = '{made[0]['person']}', CAST(X'FF' AS STRING), person)"
    frame = stream(spark, tmp_path / "in").withColumn("person", F.expr(broken))
    changed = segment.match(frame, RULES, key="person", name="s", at="at", clock="events", buckets=2)
    started(changed, tmp_path, {"availableNow": True}).awaitTermination()
    persons = {person for person, _ in found(spark, tmp_path)}
    assert persons and persons <= {str(row["person"]) for row in made} - {str(made[0]["person"])}


@pytest.mark.slow
def test_time_passes_without_events(spark: SparkSession, tmp_path: Path) -> None:
    now = int(datetime.now(UTC).timestamp() * 1000)
    put(
        tmp_path / "in",
        "a",
        [{"person": "ann", "event": "visit", "at": now}, {"person": "bob", "event": "x", "at": now}],
    )
    rules = [segment.rule("here", when=VISIT, ttl="3 seconds", to="t")]
    frame = segment.match(stream(spark, tmp_path / "in"), rules, key="person", name="s", at="at")
    query = started(frame, tmp_path, {"processingTime": "200 milliseconds"})
    try:
        until(lambda: query.exception() or len(found(spark, tmp_path).get(("ann", "here"), [])) == 2, "expiry")
    finally:
        query.stop()
    assert query.exception() is None
    enter, expire = found(spark, tmp_path)["ann", "here"]
    assert (enter.event, expire.event) == ("enter", "expire") and enter.at == now
    assert 3000 <= expire.at - enter.at <= 3000 + 3000 // 64 + 1


@pytest.mark.slow
def test_rules_change_without_losing_what_was_counted(spark: SparkSession, tmp_path: Path) -> None:
    text = "- {name: NAME, when: \"event = 'visit'\", at_least: COUNT, within: 1 day, ttl: 1 day, to: t}\n"

    def rules(**named: int) -> str:
        return "".join(text.replace("NAME", name).replace("COUNT", str(count)) for name, count in named.items())

    file, source = tmp_path / "rules.yaml", tmp_path / "in"
    file.write_text(rules(gone=1, changed=1, kept=3))

    def run() -> StreamingQuery:
        made = segment.rules(file)
        frame = segment.match(stream(spark, source), made, key="person", name="s", at="at", clock="events")
        return started(frame, tmp_path, {"processingTime": "0 seconds"})

    put(source, "0", [{"person": "ann", "event": "visit", "at": 1000}])
    query = run()
    query.processAllAvailable()
    file.write_text("- name: broken")
    put(source, "1", [{"person": "ann", "event": "visit", "at": 1001}])
    query.processAllAvailable()  # a broken file changes nothing
    file.write_text(rules(kept=3, changed=2, new=1))
    put(source, "2", [{"person": "ann", "event": "visit", "at": 1002}])
    until(lambda: not query.isActive, "end of the query")
    fault = faults.of_query(query)
    assert fault and fault.at_once and "the rules in" in fault.text
    query = run()
    query.processAllAvailable()
    query.stop()
    events = {key[1]: [change.event for change in some] for key, some in found(spark, tmp_path).items()}
    assert events == {
        "gone": ["enter", "leave"],
        "changed": ["enter"],
        "kept": ["enter"],
        "new": ["enter"],
    }


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rules": [segment.rule("r", when="evnt = 1", ttl="1 day", to="t")]}, r"refuses 'evnt = 1'.*rule 'r'"),
        ({"rules": [segment.rule("r", when="event = ", ttl="1 day", to="t")]}, r"refuses 'event = '.*rule 'r'"),
        (
            {
                "rules": [
                    segment.rule("r", when=segment.total("array(amount)", at_least=1, within=DAY), ttl=DAY, to="t")
                ]
            },
            r"refuses 'array\(amount\)'",
        ),
        ({"key": "cookie"}, "no column 'cookie'.*use one of person"),
        ({"at": None}, "the column of the event time is not known.*set at="),
        ({"clock": "mine"}, "unknown clock 'mine'.*use 'now' or 'events'"),
        ({"rules": []}, "there are no rules"),
        ({"rules": "rules.yaml"}, "'rules.yaml' is not a list of rules.*pass segment.rules"),
        ({"buckets": 0}, "buckets is 0"),
        ({"at": "amount"}, "the time column amount has type double.*convert it to a timestamp"),
        (
            {"rules": [segment.rule("r", when="count(*) > 1", ttl="1 day", to="t")]},
            r"refuses 'count\(\*\) > 1'.*rule 'r'",
        ),
        ({"rules": [segment.rule("r", when="'true'", ttl="1 day", to="t")]}, r"refuses \"'true'\".*rule 'r'"),
        ({"rules": [RULES[0], segment.rule("twice", when=BUY, ttl="1 second", to="t")]}, "two rules are named 'twice'"),
    ],
)
def test_what_cannot_run_is_refused_when_it_is_built(spark: SparkSession, given: dict[str, Any], said: str) -> None:
    frame = spark.createDataFrame([], SCHEMA)
    arguments: dict[str, Any] = {"rules": RULES, "key": "person", "name": "s", "at": "at"} | given
    with pytest.raises(PenstockError, match=said):
        segment.match(frame, **arguments)
