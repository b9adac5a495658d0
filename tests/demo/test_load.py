"""The load on a real node: its model equals the tables, and its journal equals the CDC log."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pytest
from cassandra.cluster import EXEC_PROFILE_DEFAULT
from cassandra.query import dict_factory
from cassandra.util import Date, OrderedMap

from penstock.local.services import Services
from penstock_demo import journal, shop
from penstock_demo.journal import Identity
from penstock_demo.load import Load, Pace
from penstock_demo.mix import Mix
from penstock_demo.model import Image
from penstock_demo.node import connect
from penstock_demo.shop import KEYSPACE, TABLES, Table
from penstock_demo.values import entries

WRITES = 4000
Rows = Callable[[str], list[dict[str, Any]]]

TICKS_TO_1970 = 0x01B21DD213814000


@pytest.fixture(scope="module")
def load(services: Services, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Mix, Path]]:
    """A burst of writes, all answered: the mix with its model, and the journal."""
    path = tmp_path_factory.mktemp("load") / "journal.jsonl"
    with connect(services.cql) as session, path.open("wb") as file:
        for statement in shop.statements():
            session.execute(statement)
        mix = Mix(Random(1), partitions=30)
        load = Load(session, mix, file, in_flight=24)
        pace = Pace(None)
        while not (load.idle() and load.status.writes >= WRITES):
            load.turn(pace, new=load.status.writes < WRITES)
            time.sleep(0.001)
        assert load.status.retries == 0
        yield mix, path
        session.execute(f"DROP KEYSPACE {KEYSPACE}")


@pytest.fixture
def rows(services: Services) -> Iterator[Rows]:
    """Runs a query, whose rows are dicts."""
    with connect(services.cql) as session:
        by_name = session.execution_profile_clone_update(EXEC_PROFILE_DEFAULT, row_factory=dict_factory)
        yield lambda query: list(session.execute(query, execution_profile=by_name))


def event_form(value: Any) -> Any:
    """A value of the driver as it is in an event."""
    match value:
        case Decimal() | UUID():
            return str(value)
        case datetime():
            return (value.replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
        case Date():
            return value.days_from_epoch
        case OrderedMap():
            if value and isinstance(next(iter(value)), UUID):
                return list(value.values())
            return entries(dict(value.items()))
        case list() | tuple() if hasattr(value, "_asdict"):
            return None if set(value) == {None} else value._asdict()
    return list(value) if hasattr(value, "__iter__") and not isinstance(value, str) else value


def image_of(table: Table, row: Mapping[str, Any]) -> Image:
    """The columns of the table; an empty collection is null unless it is frozen."""
    image = {column: event_form(row[column]) for column in table.key + table.statics + table.regular}
    return {column: None if value == [] and column != "options" else value for column, value in image.items()}


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_the_model_is_what_the_table_holds(table: Table, load: tuple[Mix, Path], rows: Rows) -> None:
    found = [image_of(table, row) for row in rows(f"SELECT * FROM {KEYSPACE}.{table.name}")]
    assert found
    model = [partition for partition in load[0].partitions() if partition.table is table]
    expected = [row.image | _statics(table, partition.static) for partition in model for row in partition.rows.values()]
    expected += [partition.static for partition in model if partition.static and not partition.rows]
    by_key = lambda image: str([image[column] for column in table.key])  # noqa: E731
    assert sorted(found, key=by_key) == sorted(expected, key=by_key)


def _statics(table: Table, static: Image | None) -> Image:
    return {column: static[column] if static else None for column in table.statics}


def test_the_journal_is_what_the_log_holds(load: tuple[Mix, Path], rows: Rows) -> None:
    expected = {event.identity: event for event in journal.expected(journal.read(load[1]))}
    assert len(expected) > WRITES
    found = Counter[Identity]()
    for table in TABLES.values():
        for identity, content in _logged(table, rows(f"SELECT * FROM {KEYSPACE}.{table.name}_scylla_cdc_log")):
            found[identity] += 1
            assert content in expected[identity].digests, identity
    assert found == Counter(dict.fromkeys(expected, 1))


@pytest.mark.slow
def test_the_load_uses_every_kind_of_change(load: tuple[Mix, Path]) -> None:
    expected = list(journal.expected(journal.read(load[1])))
    kinds = Counter(
        (event.identity[0], event.identity[3], event.tombstone, None in event.identity[1]) for event in expected
    )
    for table in TABLES.values():
        wanted = {("c", False, False), ("u", False, False), ("d", True, False)}
        wanted |= {("d", False, True)} if table.clustering else set()
        wanted |= {("u", False, True)} if table.statics else set()
        assert {kind[1:] for kind in kinds if kind[0] == table.name} == wanted


def _logged(table: Table, log: list[dict[str, Any]]) -> Iterator[tuple[Identity, int]]:
    """The changes in rows of a log: group by mutation, pair each change with its images."""
    groups: dict[tuple[bytes, UUID], list[dict[str, Any]]] = defaultdict(list)
    for row in log:
        groups[row["cdc$stream_id"], row["cdc$time"]].append(row)
    for (_, stamp), group in groups.items():
        group.sort(key=lambda row: row["cdc$batch_seq_no"])
        images = {(row["cdc$operation"], _key(table, row)): image_of(table, row) for row in group}
        micros = (stamp.time - TICKS_TO_1970) // 10
        for row, following in zip(group, [*group[1:], None], strict=True):
            operation, key = row["cdc$operation"], _key(table, row)
            if operation in (1, 2, 3):
                op = {1: "u", 2: "c", 3: "d"}[operation]
                yield (
                    (table.name, key, micros, op),
                    journal.digest(table, images.get((0, key)), images.get((9, key)), None),
                )
            elif operation in (4, 5, 6):
                start, end = (row, following) if following else (row, row)
                described = _range(table, operation, start, end) if table.clustering else None
                whole = (*key[: len(table.partition)], *(None for _ in table.clustering))
                yield (table.name, whole, micros, "d"), journal.digest(table, images.get((0, key)), None, described)


def _key(table: Table, row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(event_form(row[column]) for column in table.key)


def _range(table: Table, operation: int, start: Mapping[str, Any], end: Mapping[str, Any]) -> Image:
    order: Image = {"order": list(table.order)} if table.order else {}
    if operation == 4:
        return {"start": None, "start_inclusive": True, "end": None, "end_inclusive": True} | order
    bounds = [{column: event_form(row[column]) for column in table.clustering} for row in (start, end)]
    first = table.clustering[0]
    return {
        "start": bounds[0] if bounds[0][first] is not None else None,
        "start_inclusive": operation == 5,
        "end": bounds[1] if bounds[1][first] is not None else None,
        "end_inclusive": end["cdc$operation"] == 7,
    } | order
