"""Three workers and ten tables under load; each worker is killed twice: nothing is lost, wrong or misordered."""

from __future__ import annotations

import json
import random
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cassandra import OperationTimedOut, WriteTimeout
from kafka_connect import KafkaConnect
from kafka_topics import messages
from waiting import patience, until
from worker_process import group_properties, worker

from penstock.local.services import Services

pytestmark = [pytest.mark.kill, pytest.mark.slow]

PARTITIONS = 4  # the broker's default
TABLES, KEYS, WORKERS = 10, 50, 3
KILLS_OF_EACH, BETWEEN_KILLS = 2, 30
RATE = 100
"""Writes per second."""


@dataclass
class Load:
    """Writes 1, 2, 3, ... to rows of all tables, until it is stopped."""

    session: Any
    tables: list[str]
    written: dict[tuple[str, int], int] = field(default_factory=lambda: defaultdict(int))
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        chosen = random.Random(1)
        inserts = {
            name: self.session.prepare(f"INSERT INTO {name} (id, at, v) VALUES (?, 1, ?)") for name in self.tables
        }
        while not self.stop.wait(1 / RATE):
            place = chosen.choice(self.tables), chosen.randrange(KEYS)
            self._write(inserts[place[0]], (place[1], str(self.written[place] + 1)))
            self.written[place] += 1

    def _write(self, insert: Any, values: tuple[int, str]) -> None:
        """Write the same again until it is acknowledged: what was not may be in the table, too."""
        while True:
            with suppress(WriteTimeout, OperationTimedOut):
                self.session.execute(insert, values)
                return


@contextmanager
def writing(session: Any, tables: list[str]) -> Iterator[Load]:
    load = Load(session, tables)
    thread = threading.Thread(target=load.run)
    thread.start()
    try:
        yield load
    finally:
        load.stop.set()
        thread.join()


def delivered(services: Services, prefix: str, table: str) -> dict[int, list[int]]:
    """What came of each row, in the order of its Kafka partition."""
    found = defaultdict(list)
    for message in messages(services.kafka, f"{prefix}.{table}", PARTITIONS):
        row = json.loads(message.value())["after"]
        found[row["id"]].append(int(row["v"]))
    return found


def lost(written: int, found: Iterable[int]) -> set[int]:
    return set(range(1, written + 1)).difference(found)


def misordered(found: Iterable[int]) -> list[int]:
    """What came first after something later; what comes again is only a repetition."""
    highest, seen, wrong = 0, set[int](), []
    for one in found:
        if one not in seen and one < highest:
            wrong.append(one)
        seen.add(one)
        highest = max(highest, one)
    return wrong


def test_kills_lose_and_misorder_nothing(
    services: Services, cql: Any, tables: Any, config: dict[str, str], tmp_path: Path
) -> None:
    names = [tables(f"killed_{number}") for number in range(TABLES)]
    config |= {"scylla.table.names": ",".join(names), "tasks.max": str(TABLES), "scylla.confidence.window.size": "1000"}
    file = tmp_path / "worker.properties"
    file.write_text(group_properties(services.kafka))
    stacks = [ExitStack() for _ in range(WORKERS)]
    running = [stack.enter_context(worker(file, tmp_path, "--cores", "2")) for stack in stacks]
    try:
        KafkaConnect(running[0][1]).create_connector({"name": "killed", "config": config})
        until(lambda: _works(running[0][1]), "all tasks", patience(300))
        with writing(cql, names) as load:
            for number in [*range(WORKERS)] * KILLS_OF_EACH:
                load.stop.wait(BETWEEN_KILLS)
                stacks[number].close()  # kills it
                running[number] = stacks[number].enter_context(worker(file, tmp_path, "--cores", "2"))
        found = {name: delivered(services, config["topic.prefix"], name) for name in names}

        def complete() -> bool:
            found.update({name: delivered(services, config["topic.prefix"], name) for name in names})
            return not any(lost(count, found[name][id]) for (name, id), count in load.written.items())

        until(complete, "events of all writes", patience(300))
    finally:
        for stack in stacks:
            stack.close()
    events = sum(load.written.values())
    again = sum(len(of) for rows in found.values() for of in rows.values()) - events
    print(json.dumps({"events": events, "repeated": again}))
    assert not [wrong for rows in found.values() for of in rows.values() if (wrong := misordered(of))]
    assert {(name, id): set(of) for name, rows in found.items() for id, of in rows.items()} == {
        place: set(range(1, count + 1)) for place, count in load.written.items()
    }


def _works(url: str) -> bool:
    tasks = KafkaConnect(url).get_connector_status("killed")["tasks"]
    return len(tasks) == TABLES and all(task["state"] == "RUNNING" for task in tasks)
