"""Signals to running source connectors: ad-hoc snapshots asked for by the REST API, a table, and a topic."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from threading import Event, Thread
from typing import Any

import pytest
import requests
from cassandra import InvalidRequest
from confluent_kafka import KafkaException, Producer
from hypothesis import given, settings, strategies as st
from kafka_connect import KafkaConnect
from kafka_topics import messages
from keyspaces import new_keyspace
from waiting import PATIENCE, until

from penstock.cdc.ad_hoc import AdHoc, filter_problem
from penstock.cdc.generations import FIRST_TOKEN, LAST_TOKEN
from penstock.cdc.log_pages import in_range
from penstock.connect.source.signal_format import BadSignal, Signal, object_of, signal_of
from penstock.database.table_catalog import describe
from penstock.local.services import Services

PARTITIONS = 4  # the broker's default
ROWS = 60


def snapshot(*names: str, **more: Any) -> dict[str, Any]:
    """A signal that asks for a snapshot, without its id."""
    return {"type": "execute-snapshot", "data": {"data-collections": list(names), **more}}


def checked(about: dict[str, Any]) -> Signal:
    """A signal to a connector of two tables, which have no column w."""
    return signal_of(
        object_of(json.dumps(about), "here"),
        ["ks.a", "ks.b"],
        lambda table, filter: "no column w" if "w" in filter else None,
        "here",
    )


@pytest.fixture
def named(connect: KafkaConnect) -> Iterator[str]:
    """The name of a connector that is deleted at the end."""
    name = f"signals-{uuid.uuid4().hex[:8]}"
    yield name
    if name in connect.list_connectors():
        connect.delete_connector(name)


@pytest.fixture
def filled(cql: Any, tables: Any) -> Callable[[str], str]:
    """Makes tables with `ROWS` rows that their logs do not have."""

    def make(name: str) -> str:
        made: str = tables(name, "{'enabled': false}")
        insert = cql.prepare(f"INSERT INTO {made} (id, at, v) VALUES (?, 1, 'old')")
        for id in range(ROWS):
            cql.execute(insert, (id,))
        cql.execute(f"ALTER TABLE {made} WITH cdc = {{'enabled': true, 'preimage': true, 'postimage': true}}")
        return made

    return make


@pytest.fixture(scope="module")
def filters(cql: Any) -> Iterator[str]:
    """A table whose rows are selected by filters."""
    with new_keyspace(cql, "filters") as keyspace:
        cql.execute(f"CREATE TABLE {keyspace}.t (id int, at int, v text, PRIMARY KEY (id, at))")
        yield f"{keyspace}.t"


def events(services: Services, topic: str) -> list[dict[str, Any]]:
    """The events of a topic, which may not exist yet, each with the record's key as `key`."""
    try:
        found = [(json.loads(one.key()), one.value()) for one in messages(services.kafka, topic, PARTITIONS)]
    except KafkaException:
        return []
    return [{**json.loads(value), "key": key} for key, value in found if value is not None]


def snapshot_ids(services: Services, topic: str) -> list[int]:
    """The ids of the rows of incremental snapshots."""
    found = [one for one in events(services, topic) if one["op"] == "r"]
    assert {one["source"]["snapshot"] for one in found} <= {"incremental"}
    return [one["key"]["id"] for one in found]


def final(services: Services, topic: str) -> dict[int, str]:
    """What the last event of each key leads to."""
    state = {}
    for one in events(services, topic):
        state[one["key"]["id"]] = one["after"] and one["after"]["v"]
    return {id: v for id, v in state.items() if v is not None}


def begin(connect: KafkaConnect, name: str, config: dict[str, str], *names: str, **more: str) -> None:
    """Create a connector of these tables, and wait until it runs."""
    given = {"signal.poll.interval.ms": "200", "incremental.snapshot.chunk.size": "30"}
    config = config | given | {"scylla.table.names": ",".join(names)} | more
    connect.create_connector({"name": name, "config": config})
    until(
        lambda: [task["state"] for task in connect.get_connector_status(name)["tasks"]] == ["RUNNING"], "running task"
    )


def send(connect: KafkaConnect, name: str, kind: str, **data: Any) -> requests.Response:
    """Give a signal to the REST API."""
    body = {"id": f"{kind} {name}", "type": kind, "data": data}
    return requests.post(f"{connect.url}/connectors/{name}/signals", json=body, timeout=PATIENCE)


def running(connect: KafkaConnect, name: str) -> list[dict[str, Any]]:
    """The snapshots that the REST API shows."""
    found: list[dict[str, Any]] = requests.get(f"{connect.url}/connectors/{name}/signals", timeout=PATIENCE).json()[
        "snapshots"
    ]
    return found


def position(connect: KafkaConnect, name: str, table: str) -> dict[str, Any]:
    """The position in a table."""
    shown = requests.get(f"{connect.url}/connectors/{name}/offsets", timeout=PATIENCE).json()["offsets"]
    (found,) = (one["offset"] for one in shown if one["partition"]["table_name"] == table.split(".")[1])
    return dict(found)


@contextmanager
def writer(cql: Any, table: str) -> Iterator[None]:
    """A thread that updates, deletes and adds rows, beside the first half of them."""
    done, numbers = Event(), count(1)
    update = cql.prepare(f"UPDATE {table} SET v = ? WHERE id = ? AND at = 1")
    delete = cql.prepare(f"DELETE FROM {table} WHERE id = ? AND at = 1")

    def write() -> None:
        while not done.wait(0.01):
            number = next(numbers)
            id = ROWS // 2 + number * 7 % ROWS
            if number % 5:
                cql.execute(update, (f"new {number}", id))
            else:
                cql.execute(delete, (id,))

    thread = Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def test_the_rest_api_asks_for_a_snapshot_while_the_log_goes_on(
    connect: KafkaConnect, services: Services, cql: Any, filled: Any, config: dict[str, str], named: str
) -> None:
    table, other = filled("asked"), filled("not_asked")
    topic = f"{config['topic.prefix']}.{table}"
    begin(connect, named, config, table, other)
    wrong = send(connect, named, "execute-snapshot", **{"data-collections": ["ks.none"]})
    assert (wrong.status_code, "the connector reads no table 'ks.none'" in wrong.json()["message"]) == (400, True)
    wrong = send(connect, named, "execute-snapshot", **{"data-collections": [table], "additional-condition": "w = 1"})
    assert (wrong.status_code, "the filter 'w = 1' of" in wrong.json()["message"]) == (400, True)
    with writer(cql, table):
        asked = send(connect, named, "execute-snapshot", **{"data-collections": [table], "type": "INCREMENTAL"})
        assert (asked.status_code, asked.json()) == (202, {"id": f"execute-snapshot {named}"})
        until(lambda: set(range(ROWS // 2)) <= set(snapshot_ids(services, topic)), "rows of the snapshot")
    # A row that changed while it was read comes with its change only, and all others once.
    found = snapshot_ids(services, topic)
    assert len(found) == len(set(found))
    rows = dict(cql.execute(f"SELECT id, v FROM {table}"))
    until(lambda: final(services, topic) == rows, "final state of the table")
    assert snapshot_ids(services, f"{config['topic.prefix']}.{other}") == []
    until(lambda: [*position(connect, named, table)["ad_hoc"]] == ["signal"], "a position after the snapshot")


@pytest.mark.parametrize(
    ("about", "said"),
    [
        ({"type": "explode"}, "a signal has the unknown type 'explode'.*id '1'.*use one of execute-snapshot, stop"),
        ({"type": "execute-snapshot"}, "data-collections is not a list of tables or patterns"),
        ({"type": "execute-snapshot", "data": "{"}, "a signal is not JSON"),
        ({"type": "execute-snapshot", "data": [1]}, "the data of a signal is not an object"),
        (snapshot("(a+)+x"), r"'\(a\+\)\+x' is neither a table .*it repeats a group"),
        (snapshot("ks.a", type="blocking"), "snapshots of the type 'blocking' are not possible.*incremental"),
        (snapshot("ks.a", **{"surrogate-key": "v"}), "not by a surrogate-key"),
        (snapshot("ks.a", **{"additional-conditions": [{"filter": "v = 1"}]}), "is not a list of objects with"),
        (
            snapshot("ks.a", **{"additional-condition": "v = 1; x"}),
            "the filter 'v = 1; x' of ks.a cannot be used.*semic",
        ),
        (snapshot("ks.a", **{"additional-condition": "v = 'a' --"}), r"has a comment \(-- outside a text constant\)"),
        (snapshot("ks.a", **{"additional-condition": "v = 'a''"}), "a text constant that begins with ' at character 5"),
        (
            snapshot("ks.a", **{"additional-condition": 'v = "a'}),
            'a name that begins with " at character 5 does not end',
        ),
        (snapshot("ks.a", **{"additional-condition": "w = 1"}), "the filter 'w = 1' of ks.a cannot .*: no column w"),
        ({"type": "log", "data": {"message": "x" * 20_000}}, "a signal has 20.* bytes, and at most 16384 are read"),
    ],
)
def test_a_wrong_signal_is_refused_with_what_to_do(about: dict[str, Any], said: str) -> None:
    with pytest.raises(BadSignal, match=said):
        checked({"id": "1", **about})


TEXTS = st.text("ab/-*;'\"$ \n", max_size=6)
IN_QUOTES = TEXTS.map(lambda text: (text, "'" + text.replace("'", "''") + "'"))
IN_DOLLARS = TEXTS.filter(lambda text: "$" not in text).map(lambda text: (text, f"$${text}$$"))
CLAUSES = [" LIMIT 1", " PER PARTITION LIMIT 1", " ALLOW FILTERING", " ORDER BY at", " GROUP BY id"]
OTHERS = ["; x", "--", " // x", " /* x */", "\n-- x\n", " AND v > ?", " AND v > :v", " AND"]
OPEN = [" AND v > 'open", ' AND "v', " AND v > $$x", " /* x", " '"]
AFTER = [*CLAUSES, *OTHERS, *OPEN]
PIECES = ["v > 'a'", " AND ", "at", " > ", "1", "'", "''", '"', "$$", "--", "//", "/*", "*/", ";", "\n", *AFTER]


def accepted(session: Any, table: str, filter: str) -> bool:
    """Whether a signal may have the filter."""
    described = describe(session, table)
    about = {"id": "1", **snapshot(table, **{"additional-condition": filter})}
    try:
        signal_of(about, [table], lambda table, filter: filter_problem(session, described, filter), "here")
    except BadSignal:
        return False
    return True


@settings(max_examples=100)
@given(IN_QUOTES | IN_DOLLARS, st.sampled_from(["", *AFTER]))
def test_a_filter_selects_rows_by_any_text_and_nothing_follows_it(
    cql: Any, filters: str, given: tuple[str, str], after: str
) -> None:
    text, constant = given
    for id, value in enumerate((text, f"{text}x")):
        cql.execute(f"INSERT INTO {filters} (id, at, v) VALUES ({id}, 1, %s)", (value,))
    assert accepted(cql, filters, f"v = {constant}{after}") == (after == "")
    wanted = in_range(describe(cql, filters), f"v = {constant}")
    select = cql.prepare(f"SELECT id FROM {filters} WHERE {wanted}")
    assert [id for (id,) in cql.execute(select, (FIRST_TOKEN, LAST_TOKEN))] == [0]


@settings(max_examples=200)
@given(st.lists(st.sampled_from(PIECES), max_size=4).map("".join))
def test_conditions_before_and_after_a_filter_are_conditions(cql: Any, filters: str, more: str) -> None:
    filter = f"v > 'a'{more}"
    if accepted(cql, filters, filter):
        for both in (f"{filter} AND nowhere = 1", f"nowhere = 1 AND {filter}"):
            with pytest.raises(InvalidRequest, match="Undefined column name nowhere"):
                cql.prepare(f"SELECT id FROM {filters} WHERE {both} ALLOW FILTERING")


def test_signals_without_tables_are_for_all() -> None:
    for type in ("stop-snapshot", "pause-snapshot", "resume-snapshot"):
        assert checked({"id": "1", "type": type}).tables == {"ks.a": "", "ks.b": ""}
    conditions = [{"data-collection": "ks.b", "filter": "v = 1"}]
    both = {"data-collections": ["ks.a", "ks.b"], "additional-conditions": conditions, "type": "incremental"}
    made = checked({"id": "1", "type": "execute-snapshot", "data": json.dumps(both)})
    assert made.tables == {"ks.a": "", "ks.b": "v = 1"}


def test_snapshots_wait_for_each_other_and_stop(caplog: pytest.LogCaptureFixture) -> None:
    numbers = count(1)

    def taken(one: AdHoc, type: str, *tables: str) -> AdHoc:
        return one.taken(
            {"number": next(numbers), "id": "x\ny", "type": type, "tables": dict.fromkeys(tables, "")}, "a"
        )

    # Only a snapshot that runs can pause.
    one = taken(taken(AdHoc(), "pause-snapshot", "a"), "execute-snapshot", "a", "b")
    assert one.runs and AdHoc.of(one.offset()) == one
    one = taken(taken(one, "execute-snapshot", "a"), "pause-snapshot", "a")
    assert (len(one.queue), one.runs) == (2, False)
    one = taken(one, "resume-snapshot", "a").read(5, 1).read(None, 2)
    assert (len(one.queue), one.token, one.chunk and one.chunk.after) == (1, FIRST_TOKEN, 5)
    for _ in range(20):
        one = taken(one, "execute-snapshot", "a")
    assert len(one.queue) == 10 and r"signal 'x\ny': 10 snapshots of this table wait" in caplog.text
    assert taken(one, "stop-snapshot", "b").queue == one.queue
    one = taken(one, "stop-snapshot", "a")
    assert one.offset() == {"ad_hoc": {"signal": one.seen}}


def test_a_topic_and_a_table_ask_for_snapshots_once(
    connect: KafkaConnect,
    services: Services,
    cql: Any,
    filled: Any,
    config: dict[str, str],
    named: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    table, prefix = filled("signalled"), config["topic.prefix"]
    keyspace, _ = table.split(".")
    for id in (3, 4):
        cql.execute(f"UPDATE {table} SET v = 'https://a.example/{id};--' WHERE id = {id} AND at = 1")
    cql.execute(f"CREATE TABLE {keyspace}.signals (id text PRIMARY KEY, type text, data text)")
    row = cql.prepare(f"INSERT INTO {keyspace}.signals (id, type, data) VALUES (?, 'execute-snapshot', ?)")

    def data(id: int) -> dict[str, Any]:
        conditions = [{"data-collection": table, "filter": f"v = 'https://a.example/{id};--'"}]
        return {"data-collections": [f"{keyspace}.signal.*"], "additional-conditions": conditions}

    cql.execute(row, ("from before", json.dumps(data(4))))
    sent = Producer({"bootstrap.servers": services.kafka})
    asked = {"id": "k\nforged line", "type": "execute-snapshot", "data": data(3)}
    wrong = {"id": "w\nforged line", "type": "execute-snapshot", "data": {"data-collections": ["a\nforged line"]}}
    told = {"id": "l\nforged line", "type": "log", "data": {"message": "m\nforged line"}}
    for one in (wrong, told):
        sent.produce(f"{prefix}-signal", json.dumps(one), prefix, partition=0)
    for key, value in ((prefix, "nonsense"), ("other", json.dumps(asked)), (prefix, json.dumps(asked))):
        sent.produce(f"{prefix}-signal", value, key, partition=0)
    assert sent.flush(PATIENCE) == 0
    source = {"signal.enabled.channels": "source,kafka", "signal.data.collection": f"{keyspace}.signals"}
    begin(connect, named, config, table, **source)
    topic = f"{prefix}.{table}"
    until(lambda: snapshot_ids(services, topic) == [3], "row that the topic asked for")
    assert "ignored a signal: a signal is not JSON" in caplog.text and "partition 0, offset 0" in caplog.text
    connect.restart_connector(named, include_tasks=True)
    cql.execute(row, ("now", json.dumps(data(4))))
    until(lambda: snapshot_ids(services, topic) == [3, 4], "row that the table asked for")
    until(lambda: r"for signal 'k\nforged line' has ended" in caplog.text, "end in the log")
    assert r"signal 'l\nforged line': 'm\nforged line'" in caplog.text and r"no table 'a\nforged line'" in caplog.text
    assert [said for said in caplog.messages if "\nforged" in said] == []


@pytest.mark.slow
def test_a_snapshot_pauses_goes_on_after_a_restart_and_stops(
    connect: KafkaConnect, services: Services, cql: Any, filled: Any, config: dict[str, str], named: str
) -> None:
    table = filled("paused")
    topic = f"{config['topic.prefix']}.{table}"
    begin(connect, named, config, table, **{"incremental.snapshot.chunk.size": "5"})
    collections = {"data-collections": [table]}
    assert send(connect, named, "execute-snapshot", **collections).ok
    until(lambda: snapshot_ids(services, topic), "rows of the snapshot")
    assert send(connect, named, "pause-snapshot").ok
    until(lambda: [one for one in running(connect, named) if one["paused"]], "pause")
    # A chunk that was planned before is sent before this change.
    cql.execute(f"INSERT INTO {table} (id, at, v) VALUES (999, 1, 'new')")
    until(lambda: 999 in final(services, topic), "change after the pause")
    (paused,), before = running(connect, named), snapshot_ids(services, topic)
    assert (paused["table"], 0 < paused["done"] < 1, len(before) < ROWS) == (table, True, True)

    connect.restart_connector(named, include_tasks=True)
    cql.execute(f"INSERT INTO {table} (id, at, v) VALUES (1000, 1, 'new')")
    until(lambda: 1000 in final(services, topic), "change after the restart")
    assert snapshot_ids(services, topic) == before and running(connect, named) == [paused]
    assert send(connect, named, "resume-snapshot", **collections).ok
    until(lambda: set(range(ROWS)) <= set(snapshot_ids(services, topic)), "all rows")
    until(lambda: running(connect, named) == [], "end of the snapshot")

    for kind in ("execute-snapshot", "stop-snapshot"):
        assert send(connect, named, kind, **collections).ok
    until(lambda: running(connect, named) == [], "end of the stopped snapshot")
    connect.pause_connector(named)
    assert send(connect, named, "log", message="x").status_code == 409
