"""Meters, fed with progresses that Spark 4.3 gave: what they count, and what is absent because nobody knows it."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta

import pytest
from recorded_progress import Fed, Progress, ended, recorded, replayed

from penstock.metrics import delays
from penstock.metrics.delays import SinkCounts
from penstock.run.supervise import is_batch
from penstock.watch.graph import QUERY, STATE, TOPIC, Graph, Node
from penstock.watch.meters import Meters, _places
from penstock.watch.program import Program
from penstock.watch.query_meter import NO_DATA, STATES, SinkMeter, SourceMeter, quantile
from penstock.watch.status import ready, status

NAMES = ("behind", "changes", "lookup", "topic", "window")


@pytest.mark.parametrize("name", NAMES)
def test_counters_are_the_sums_of_the_batches(name: str) -> None:
    *_, (fed, _) = replayed(name)
    batches = [one for one in recorded(name) if is_batch(one)]
    assert fed.value("query_batches_total") == len(batches) > 1
    assert fed.value("query_rows_total") == sum(one["numInputRows"] for one in batches)
    assert fed.value("source_rows_total", source="topic orders") == fed.value("query_rows_total")
    assert fed.value("query_batch_duration_seconds_count") == len(batches)
    seconds = sum(one["batchDuration"] for one in batches) / 1000
    assert fed.value("query_batch_duration_seconds_sum") == pytest.approx(seconds)
    phases: Counter[str] = Counter()
    for one in batches:
        phases.update(one["durationMs"])
    del phases["triggerExecution"]
    for phase, milliseconds in phases.items():
        assert fed.value("query_phase_seconds_total", phase=phase) == pytest.approx(milliseconds / 1000)
    assert fed.value("query_last_commit_timestamp_seconds") == pytest.approx(ended(batches[-1]))
    (query,) = fed.status()["queries"]
    assert query["batch"] == batches[-1]["batchId"]
    assert len(query["history"]) == len(recorded(name))


@pytest.mark.parametrize("name", NAMES)
def test_the_buckets_of_a_histogram_add_up(name: str) -> None:
    for fed, _ in replayed(name):
        for metric, of in fed.samples().items():
            if metric.endswith("_bucket"):
                values = [value for _, value in sorted(of.items(), key=lambda one: float(dict(one[0])["le"]))]
                assert values == sorted(values)
                assert values[-1] == sum(fed.samples()[metric.replace("_bucket", "_count")].values())


def test_the_lag_of_a_topic_is_what_the_batches_left() -> None:
    lags = [fed.value("source_lag_records", source="topic orders") for fed, _ in replayed("behind")]
    ends = [one["sources"][0] for one in recorded("behind")]
    (topic,) = [name for name in ends[0]["endOffset"] if ":" not in name]
    expected = [sum(one["latestOffset"][topic].values()) - sum(one["endOffset"][topic].values()) for one in ends]
    assert lags == expected and expected[0] > 0


def test_the_lag_in_seconds_begins_when_all_was_read_that_existed_then() -> None:
    first = datetime.fromisoformat(recorded("behind")[0]["timestamp"]).timestamp()
    for fed, _ in replayed("behind"):
        lag = fed.value("source_lag_seconds", source="topic orders")
        behind = fed.value("source_lag_records", source="topic orders")
        # Behind since the first batch: that is the last moment before which there was nothing to read.
        if behind and fed.query.sources[0].lag.read_until == first:
            assert lag == pytest.approx(fed.clock.now - first)
    while fed.query.sources[0].lag.records:
        fed.progress(caught_up(recorded("behind")[-1], fed.clock.now))
    assert fed.value("source_lag_seconds", source="topic orders") == pytest.approx(0.0, abs=0.01)


def caught_up(progress: Progress, at: float) -> Progress:
    """The progress of a later batch that has read to the end."""
    (source,) = progress["sources"]
    later = datetime.fromtimestamp(at).astimezone().isoformat(timespec="milliseconds")
    more = {"batchId": progress["batchId"] + 1, "timestamp": later, "batchDuration": 0}
    return progress | more | {"sources": [source | {"endOffset": source["latestOffset"]}]}


@pytest.mark.parametrize("name", ["topic", "changes"])
def test_an_idle_query_has_no_lag_for_as_long_as_it_is_idle(name: str) -> None:
    *_, (fed, _) = replayed(name)
    fed.looks(active=False, available=False)
    for _ in range(60):
        fed.clock.now += 1
        # One look in a while sees Spark ask the source, which an idle query does at each trigger.
        fed.looks(active=True, available=False)
        assert fed.value("source_lag_seconds", source="topic orders") == 0
        fed.clock.now += 1
        fed.looks(active=False, available=False)
        assert fed.value("source_lag_seconds", source="topic orders") == 0
    assert ready(fed.meters) == []


@pytest.mark.parametrize("name", ["topic", "changes"])
def test_the_lag_grows_while_a_source_does_not_answer(name: str) -> None:
    *_, (fed, _) = replayed(name)
    fed.looks(active=False, available=False)
    began = fed.clock.now
    for passed in range(1, 20):
        fed.clock.now = began + passed
        fed.looks(active=True, available=False)
    lag = fed.value("source_lag_seconds", source="topic orders")
    assert lag is not None and 15 < lag <= 19


def test_the_lag_grows_while_a_batch_takes_long_and_while_a_query_is_down() -> None:
    *_, (fed, _) = replayed("topic")
    fed.looks(active=True, available=True)
    fed.clock.now += 40
    fed.looks(active=True, available=True)
    during = fed.value("source_lag_seconds", source="topic orders")
    fed.pipeline.fault("the broker is away. Next: start it", query="shop.orders", pause=2.0)
    fed.clock.now += 10
    after = fed.value("source_lag_seconds", source="topic orders")
    assert during is not None and after is not None and after == during + 10 > 50


def test_a_change_log_says_how_long_it_keeps_what_is_not_read() -> None:
    *_, (fed, _) = replayed("changes")
    kept = recorded("changes")[-1]["sources"][0]["endOffset"]["ttl"]
    lag = fed.value("source_lag_seconds", source="topic orders")
    assert lag is not None
    assert fed.value("source_retention_left_seconds", source="topic orders") == pytest.approx(kept - lag)
    assert fed.value("source_lag_records", source="topic orders") is None


def test_a_topic_has_its_whole_retention_if_all_is_read() -> None:
    *_, (fed, _) = replayed("topic")
    assert fed.value("source_retention_left_seconds", source="topic orders") is None
    fed.query.sources[0].retention = 3600.0
    assert fed.value("source_retention_left_seconds", source="topic orders") == 3600


def test_the_state_of_a_window_and_its_watermark() -> None:
    *_, (fed, last) = replayed("window")
    (told,) = last["stateOperators"]
    name = told["operatorName"]
    assert fed.value("state_rows", operator=name) == told["numRowsTotal"]
    assert fed.value("state_memory_bytes", operator=name) == told["memoryUsedBytes"]
    assert fed.value("state_disk_bytes", operator=name) == told["customMetrics"]["rocksdbSstFileSize"]
    states = [one["stateOperators"][0] for one in recorded("window") if is_batch(one)]
    commits = sum(one["commitTimeMs"] for one in states) / 1000
    assert fed.value("state_commit_seconds_total", operator=name) == pytest.approx(commits)
    late = sum(one["numRowsDroppedByWatermark"] for one in states)
    assert fed.value("state_late_rows_total", operator=name) == late
    watermark = datetime.fromisoformat(last["eventTime"]["watermark"]).timestamp()
    assert fed.value("query_watermark_timestamp_seconds") == watermark


def test_the_state_has_the_name_that_the_graph_knows() -> None:
    fed = Fed(graph=Graph((Node("state:shop.orders/counts", "state", "counts", "penstock"),)))
    fed.progress(recorded("window")[0])
    assert fed.value("state_rows", operator="counts") is not None


def test_a_watermark_is_absent_before_its_first_value() -> None:
    told = recorded("window")[0]
    fed = Fed()
    fed.progress(told | {"eventTime": {"watermark": "1970-01-01T00:00:00.000Z"}})
    assert fed.value("query_watermark_timestamp_seconds") is None


def test_lookups_and_bad_records_are_counted() -> None:
    *_, (fed, _) = replayed("lookup")
    persons = [one["observedMetrics"]["persons"] for one in recorded("lookup")]
    assert fed.value("lookup_rows_total", lookup="persons") == sum(one["rows"] for one in persons) > 0
    assert fed.value("lookup_hits_total", lookup="persons") == sum(one["hits"] for one in persons) > 0
    waits = sum(one["wait_ms"] for one in persons) / 1000
    assert fed.value("lookup_wait_seconds_total", lookup="persons") == pytest.approx(waits)
    problems = sum(one["observedMetrics"]["orders"]["problems"] for one in recorded("lookup"))
    assert problems > 0
    assert fed.value("source_bad_records_total", source="topic orders", reason="not_json") == problems
    (query,) = fed.status()["queries"]
    assert query["sources"][0]["bad_records"] == {"not_json": problems}


def test_the_age_of_a_global_table_is_that_of_its_last_batch() -> None:
    fed = Fed()
    for stale in (0, 1500, None):
        fed.progress(recorded("lookup")[0] | {"observedMetrics": {"people": {"stale_ms": stale}}})
        assert fed.value("global_table_stale_seconds", table="people") == (0 if stale == 0 else 1.5)
    (query,) = fed.status()["queries"]
    assert query["global_tables"] == [{"name": "people", "stale_seconds": 1.5}]


def test_bad_records_of_one_of_two_sources() -> None:
    fed = Fed()
    sources = [SourceMeter("topic a", "topic:a"), SourceMeter("topic b", "topic:b")]
    fed.query.begins(Graph(), sources, [], {"orders": [1]}, fed.clock.now)
    told = recorded("lookup")[0]
    fed.progress(told | {"sources": told["sources"] * 2})
    assert not sources[0].bad and sources[1].bad["not_json"] > 0


@pytest.mark.parametrize("places", [[0, 2], [2]])
def test_bad_records_of_a_source_that_is_twice_in_the_plan(places: list[int]) -> None:
    fed = Fed()
    told = recorded("lookup")[0]
    (source,) = told["sources"]
    for _ in range(2):
        planned = [
            SourceMeter("topic a", "topic:a"),
            SourceMeter("topic b", "topic:b"),
            SourceMeter("topic a 2", "topic:a"),
        ]
        fed.query.begins(Graph(), planned, [], {"orders": places}, fed.clock.now)
        # Spark makes one source of the first and the third.
        fed.progress(told | {"sources": [source | {"numInputRows": 3}, source | {"numInputRows": 5}]})
    assert [(one.name, one.rows) for one in fed.query.sources] == [("topic a", 6), ("topic b", 10)]
    bad = told["observedMetrics"]["orders"]["problems"]
    assert [dict(one.bad) for one in fed.query.sources] == [{"not_json": 2 * bad}, {}]


def test_what_a_sink_does_not_count_is_absent() -> None:
    fed = Fed()
    (told, *_) = recorded("topic")
    fed.progress(told | {"observedMetrics": {}})
    (sink,) = fed.status()["queries"][0]["sinks"]
    assert [sink[name] for name in ("rows_total", "bytes_total", "retries_total")] == [None] * 3
    fed.progress(told)
    (sink,) = fed.status()["queries"][0]["sinks"]
    assert sink["rows_total"] > 0 and sink["retries_total"] == 0


def test_a_batch_without_data_waits_for_no_source() -> None:
    fed = Fed()
    fed.progress(recorded("window")[0])
    fed.looks(active=False, available=False)
    began = fed.clock.now
    for _ in range(15):
        fed.clock.now += 1
        fed.looks(active=True, available=False, message=NO_DATA)
    assert not fed.query.asking
    # Nobody asks the source meanwhile, so the lag grows as in any batch.
    assert fed.query.lag_seconds(fed.query.sources[0], fed.clock.now) == fed.clock.now - began == 15


@pytest.mark.parametrize(("every", "took"), [(1, 0.1), (60, 0.1), (1, 60)])
def test_the_rate_is_counted_over_the_time_between_batches(every: float, took: float) -> None:
    fed = Fed(every=timedelta(seconds=every))
    (told, *_) = recorded("topic")
    pause = max(every, took)
    fed.clock.now = ended(told)
    for number in range(30):
        at = datetime.fromtimestamp(fed.clock.now + pause - took).astimezone().isoformat(timespec="milliseconds")
        batch = {"batchId": number, "timestamp": at, "batchDuration": int(took * 1000), "numInputRows": 600}
        fed.progress(told | batch)
    for passed in (0.0, pause / 2, pause * 0.9):
        assert fed.query.rate(fed.clock.now + passed) == pytest.approx(600 / pause, rel=0.11)


def test_what_a_sink_acknowledged_is_a_histogram_of_delays() -> None:
    *_, (fed, _) = replayed("topic")
    batches = [one["observedMetrics"]["penstock$sink"]["tasks"] for one in recorded("topic") if is_batch(one)]
    sinks = [task for tasks in batches for task in tasks]
    assert fed.value("sink_rows_total", sink="topic out") == sum(one["rows"] for one in sinks) > 0
    assert fed.value("sink_bytes_total", sink="topic out") == sum(one["bytes"] for one in sinks) > 0
    assert fed.value("delay_seconds_count", sink="topic out") == sum(one["rows"] for one in sinks)
    assert fed.value("delay_seconds_sum", sink="topic out") == pytest.approx(sum(one["seconds"] for one in sinks))
    (query,) = fed.status()["queries"]
    delay = query["sinks"][0]["delay"]
    assert 0 < delay["p50"] <= delay["p95"] <= delay["p99"]
    assert (
        delay["buckets"][-1] == sum(one["rows"] for one in sinks) and len(delay["buckets"]) == len(delay["bounds"]) + 1
    )
    assert query["history"][0]["delay_p99"] > 0


def test_states_from_the_start_to_the_end() -> None:
    fed = Fed()
    told = recorded("topic")
    assert fed.query.state == "starting" and ready(fed.meters) == ["shop.orders: starting"]
    fed.progress(told[0])
    assert fed.query.state == "running" and ready(fed.meters) == []
    fed.pipeline.stopped("shop.orders")
    assert fed.query.state == "stopped"
    fed.pipeline.fault("the broker is away. Next: start it", query="shop.orders", pause=2.0, trace="at line 1")
    assert fed.query.state == "waiting" and fed.status()["queries"][0]["problem"] == "the broker is away"
    assert [fed.value("query_state", state=one) for one in STATES] == [0, 0, 1, 0, 0]
    (error,) = fed.status()["errors"]
    assert (error["what"], error["next"], error["trace"]) == ("the broker is away", "start it", "at line 1")
    fed.begins()
    fed.progress(told[1])
    assert fed.query.state == "running" and fed.status()["queries"][0]["problem"] == ""
    assert fed.value("query_starts_total", reason="first") == fed.value("query_starts_total", reason="fault") == 1
    fed.pipeline.fault("there is no such column")
    assert fed.query.state == "failed" and fed.status()["state"] == "failed"
    assert ready(fed.meters) == ["shop.orders: failed"]


def test_a_stop_is_told() -> None:
    fed = Fed()
    fed.progress(recorded("topic")[0])
    fed.pipeline.stopping()
    assert fed.status()["state"] == "stopping"


def test_a_query_that_commits_nothing_is_not_ready() -> None:
    fed = Fed()
    fed.progress(recorded("topic")[0])
    fed.looks(active=True, available=True)
    fed.clock.now += 9
    assert ready(fed.meters) == []
    fed.clock.now += 3
    (why,) = ready(fed.meters)
    assert why.startswith("shop.orders: no batch was committed for 1")


def test_a_query_that_a_user_stopped_and_started_has_no_fault() -> None:
    fed = Fed()
    fed.progress(recorded("topic")[0])
    fed.pipeline.stopped("shop.orders")
    fed.begins()
    assert fed.query.starts == {"first": 2, "fault": 0}


def test_a_sink_that_fails_is_counted_before_another_batch_ends() -> None:
    fed = Fed()
    (told, *_) = recorded("topic")
    fed.progress(told)
    delays.add(told["id"], SinkCounts(failures={"DeliveryTimeout": 1}))
    fed.pipeline.fault("the broker is away", query="shop.orders", pause=1.0)
    assert fed.value("sink_failures_total", sink="topic out", reason="DeliveryTimeout") == 1


def test_a_pipeline_that_cannot_make_its_queries_waits_and_fails() -> None:
    meters = Meters()
    pipeline = meters.pipeline("shop", timedelta(seconds=1))
    pipeline.fault("the database is away. Next: start it", pause=1.0)
    told = status(Program("run", "shop"), meters)
    assert (told["state"], told["waits_for"]) == ("waiting", "its next start after a fault for 0 s")
    pipeline.fault("gave up")
    told = status(Program("run", "shop"), meters)
    assert (told["state"], told["waits_for"]) == ("failed", "")
    assert [one["what"] for one in told["errors"]] == ["the database is away", "gave up"]


def test_a_program_without_a_query_is_not_ready() -> None:
    assert ready(Meters()) == ["no query has started"]
    assert status(Program("run", "shop"), Meters())["state"] == "starting"


def test_real_time_mode_gives_what_is_known() -> None:
    fed = Fed(every="real-time")
    fed.looks(active=True, available=True)
    assert fed.query.state == "running" and ready(fed.meters) == []
    for one in recorded("realtime"):
        fed.progress(one)
    rows = sum(one["numInputRows"] for one in recorded("realtime"))
    assert fed.value("query_rows_total") == rows > 0
    assert fed.value("source_lag_records", source="topic orders") is None
    assert fed.value("source_lag_seconds", source="topic orders") is None


def test_the_history_ends_after_fifteen_minutes_and_900_points() -> None:
    fed = Fed()
    (told, *_) = recorded("topic")
    for number in range(1000):
        at = datetime.fromtimestamp(fed.clock.now + 2).astimezone().isoformat(timespec="milliseconds")
        fed.progress(told | {"batchId": number, "timestamp": at})
    assert 0 < len(fed.query.history) <= 451
    for _ in range(1000):
        fed.clock.now += 0.1
        fed.pipeline.progress("shop.orders", told)
    assert len(fed.query.history) == 900


def test_errors_are_the_last_twenty() -> None:
    fed = Fed()
    for number in range(30):
        fed.pipeline.fault(f"error {number}", pause=1.0)
    assert [one["what"] for one in fed.status()["errors"]] == [f"error {number}" for number in range(10, 30)]


def test_sources_that_spark_makes_one_keep_their_name_and_their_counts() -> None:
    fed = Fed()
    same = [SourceMeter("topic orders", "topic:orders"), SourceMeter("topic orders 2", "topic:orders")]
    for _ in range(2):
        fed.query.begins(Graph(), [SourceMeter(one.name, one.node) for one in same], [], {}, fed.clock.now)
        fed.progress(recorded("topic")[0])
    rows = 2 * recorded("topic")[0]["numInputRows"]
    assert [(one.name, one.rows) for one in fed.query.sources] == [("topic orders", rows)]


@pytest.mark.parametrize(
    ("buckets", "share", "expected"),
    [
        ({}, 0.5, None),
        ({0: 1}, 0.5, 0.0025),
        ({1: 4}, 0.5, 0.0075),
        ({1: 4}, 1.0, 0.01),
        ({0: 1, 16: 1}, 0.99, 600.0),
        ({0: 99, 2: 1}, 0.99, 0.005),
    ],
)
def test_quantiles_are_those_of_prometheus(buckets: dict[int, int], share: float, expected: float | None) -> None:
    assert quantile([buckets.get(place, 0) for place in range(17)], share) == expected


def test_a_state_has_its_name_in_the_pipeline_beside_one_of_spark() -> None:
    states = [Node(f"state:shop.orders/{name}", STATE, name, "penstock") for name in ("groups", "stateStoreSave")]
    fed = Fed(graph=Graph(tuple(states)))
    told = next(one for one in recorded("topic") if is_batch(one))
    numbers = {"numRowsTotal": 3, "memoryUsedBytes": 9, "commitTimeMs": 1, "numRowsDroppedByWatermark": 0}
    operators = [{"operatorName": name, **numbers} for name in ("stateStoreSave", "transformWithStateInPySparkExec")]
    fed.progress(told | {"stateOperators": operators})
    assert [one["operator"] for one in fed.status()["queries"][0]["states"]] == ["stateStoreSave", "groups"]


def test_a_sink_says_of_how_many_topics_its_rows_are() -> None:
    written = [[Node(f"topic:{name}", TOPIC, name, "kafka", "a:1") for name in "abcd"]]
    fed = Fed()
    fed.pipeline.planned("shop.one", Graph(), [], [SinkMeter(*place) for place in _places(written)], {})
    (sink,) = fed.status()["queries"][-1]["sinks"]
    assert (sink["name"], sink["node"], sink["other_nodes"]) == ("topic a,b,c,d", "topic:a", 3)


def test_a_topic_of_two_clusters_is_two_nodes_of_a_run() -> None:
    """Two queries of one pipeline read topics of one name from two Kafkas."""
    fed = Fed()
    for name, servers in (("shop.one", "a:1"), ("shop.two", "b:1")):
        topic, query = Node("topic:t", TOPIC, "t", "kafka", servers), Node(f"query:{name}", QUERY, name, "penstock")
        graph = Graph.of([topic, query], [(topic, query)])
        fed.pipeline.planned(name, graph, [SourceMeter("topic t", "topic:t", servers)], [], {})
    status = fed.status()
    nodes = {node["id"]: node["address"] for node in status["graph"]["nodes"] if node["kind"] == TOPIC}
    assert nodes == {"topic:t@a:1": "a:1", "topic:t@b:1": "b:1"}
    sources = {query["node"]: query["sources"][0]["node"] for query in status["queries"][1:]}
    assert sources == {"query:shop.one": "topic:t@a:1", "query:shop.two": "topic:t@b:1"}
    assert {(edge["target"], edge["source"]) for edge in status["graph"]["edges"]} == set(sources.items())
