"""`penstock replicate` and `penstock verify` as processes, with real nodes that are killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cassandra.cluster import Cluster, Session
from keyspaces import new_keyspace
from waiting import PATIENCE, until

from penstock.cli.main import main
from penstock.local.services import Services, down, up
from penstock_demo.child import kill

LOGGED = "WITH cdc = {'enabled': true}"
TABLE = f"CREATE TABLE {{ks}}.orders (id int PRIMARY KEY, total int, tags set<text>) {LOGGED}"


def penstock(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "penstock", *words],
        cwd=folder,
        env=_environment(folder),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


@pytest.fixture
def refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """Runs a command that ends before its work, in this process: its exit code, and what it said on standard error."""
    monkeypatch.setenv("PENSTOCK_RUNS", str(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)
    return lambda *words: (main(list(words)), capsys.readouterr().err)


def _environment(folder: Path) -> dict[str, str]:
    """No other test finds these commands."""
    return os.environ | {"PENSTOCK_RUNS": str(folder / "runs")}


@pytest.fixture(scope="module")
def source(cql: Any) -> Iterator[str]:
    with new_keyspace(cql, "shop") as name:
        cql.execute(TABLE.replace("{ks}", name))
        yield name


@pytest.fixture(scope="module")
def target(cql: Any) -> Iterator[str]:
    with new_keyspace(cql, "copy") as name:
        yield name


def test_a_table_is_created_copied_altered_and_verified(
    cql: Any, services: Services, source: str, target: str, tmp_path: Path
) -> None:
    both = (f"{source}.orders", f"{target}.orders", "--from", services.cql, "--to", services.cql)
    copies = ("replicate", *both, "--name", "orders", "--once", "--metrics", "none")
    for number in range(50):
        cql.execute(f"INSERT INTO {source}.orders (id, total, tags) VALUES ({number}, 1, {{'a'}})")
    ran = penstock(tmp_path, *copies, "--create")
    assert ran.returncode == 0, ran.stderr
    cql.execute(f"ALTER TABLE {source}.orders ADD note text")
    cql.execute(f"UPDATE {source}.orders SET note = 'new' WHERE id = 1")
    ran = penstock(tmp_path, *copies, "--alter")
    assert ran.returncode == 0, ran.stderr
    cql.execute(f"UPDATE {target}.orders SET total = 2 WHERE id = 7")
    cql.execute(f"DELETE note FROM {target}.orders USING TIMESTAMP {time.time_ns() // 1000} WHERE id = 9")
    ran = penstock(tmp_path, "verify", *both, "--settle", "0 seconds", "--level", "3")
    assert ran.returncode == 1 and "different: 50 rows in the source, 50 in the target, 1 differ" in ran.stdout
    assert '{"id": 7}: total is 1 in the source, 2 in the target' in ran.stdout
    assert '{"id": 9}: value of note is none in the source, deleted at 1' in ran.stdout
    # Each row's set was written whole, which deleted what was there; that is not copied with rows of a snapshot.
    assert re.search(r"; \d+ partitions differ in markers or deletions; level 3", ran.stdout)


@pytest.mark.slow
def test_changes_go_through_kafka(
    cql: Any, services: Services, registry: str, source: str, target: str, tmp_path: Path
) -> None:
    cql.execute(f"CREATE TABLE {source}.paid (id int, at int, total decimal, PRIMARY KEY (id, at)) {LOGGED}")
    for number in range(40):
        cql.execute(f"INSERT INTO {source}.paid (id, at, total) VALUES ({number % 4}, {number}, 1.50) USING TTL 90000")
    cql.execute(f"DELETE FROM {source}.paid WHERE id = 1 AND at > 20")
    cql.execute(f"DELETE FROM {source}.paid WHERE id = 2")
    both = (f"{source}.paid", f"{target}.paid", "--from", services.cql, "--to", services.cql)
    name = f"paid-{uuid.uuid4().hex[:8]}"
    through = ("--through", services.kafka, "--registry", registry, "--metrics", "none")
    # What one query has sent when the other one has looked may be left for the next run.
    for _ in range(2):
        ran = penstock(tmp_path, "replicate", *both, "--name", name, *through, "--create", "--once")
        assert ran.returncode == 0, ran.stderr
    rows = "SELECT id, at, total, WRITETIME(total) FROM {}.paid"
    found = [sorted(cql.execute(rows.format(keyspace))) for keyspace in (source, target)]
    assert found[0] == found[1] and len(found[0]) == 25


@pytest.mark.slow
def test_two_tables_are_written_and_both_are_equal(
    cql: Any, services: Services, source: str, target: str, tmp_path: Path
) -> None:
    cql.execute(f"CREATE TABLE {source}.both (id int PRIMARY KEY, total int, note text) {LOGGED}")
    both = (f"{source}.both", f"{target}.both", "--from", services.cql, "--to", services.cql)
    copies = ("replicate", *both, "--name", "both", "--two-ways", "--create", "--once", "--metrics", "none")
    cql.execute(f"INSERT INTO {source}.both (id, total) VALUES (1, 1)")
    assert penstock(tmp_path, *copies).returncode == 0
    cql.execute(f"UPDATE {target}.both SET note = 'there' WHERE id = 1")
    cql.execute(f"INSERT INTO {target}.both (id, total) VALUES (2, 2)")
    cql.execute(f"UPDATE {source}.both SET total = 3 WHERE id = 1")
    ran = penstock(tmp_path, *copies)
    assert ran.returncode == 0, ran.stderr
    found = [sorted(cql.execute(f"SELECT id, total, note FROM {keyspace}.both")) for keyspace in (source, target)]
    assert found == [[(1, 3, "there"), (2, 2, None)]] * 2


KAFKA = {
    "no brokers": (("--registry", "http://127.0.0.1:1"), "--registry, --format and --command-config need --through"),
    "no registry": (("--through", "127.0.0.1:1", "--format", "protobuf"), "in protobuf need a schema registry"),
    "json": (
        ("--through", "127.0.0.1:1", "--format", "json", "--registry", "http://127.0.0.1:1"),
        "in json have no schema registry",
    ),
}


@pytest.mark.parametrize("name", KAFKA)
def test_the_options_of_kafka_are_checked(
    services: Services, refused: Callable[..., tuple[int, str]], name: str
) -> None:
    words, said = KAFKA[name]
    code, stderr = refused("replicate", "a.b", "c.d", *both_at(services), "--name", "x", *words)
    assert code == 1 and said in stderr


def both_at(services: Services) -> tuple[str, ...]:
    return "--from", services.cql, "--to", services.cql


@pytest.mark.slow
def test_what_cannot_be_compared_is_told_and_the_other_tables_are_compared(
    cql: Any, services: Services, source: str, target: str, tmp_path: Path
) -> None:
    for keyspace in (source, target):
        cql.execute(f"CREATE TABLE {keyspace}.small (id int PRIMARY KEY)")
        cql.execute(f"INSERT INTO {keyspace}.small (id) VALUES (1)")
    also = ("--also", f"{source}.small={target}.small", "--settle", "0 seconds", "--json")
    ran = penstock(tmp_path, "verify", "no.table", *also, "--from", services.cql, "--to", services.cql)
    assert ran.returncode == 3 and "there is no table no.table" in ran.stderr
    (told,) = map(json.loads, ran.stdout.splitlines())
    assert (told["source"], told["target"], told["result"]) == (f"{source}.small", f"{target}.small", "equal")


WRONG = {
    "both": (("--replication", "x", "--settle", "1 minute"), "give one of them"),
    "none": (("--through", "127.0.0.1:1"), "--through and --command-config need --replication"),
}


@pytest.mark.parametrize("name", WRONG)
def test_how_the_arrival_of_changes_is_known_is_checked(
    services: Services, refused: Callable[..., tuple[int, str]], name: str
) -> None:
    words, said = WRONG[name]
    code, stderr = refused("verify", "a.b", *both_at(services), *words)
    assert code == 3 and said in stderr


def test_a_replication_whose_arrival_is_awaited_has_a_checkpoint(services: Services, tmp_path: Path) -> None:
    # It starts Spark, so it has a process of its own.
    ran = penstock(tmp_path, "verify", "a.b", *both_at(services), "--replication", "x")
    assert ran.returncode == 3 and "there is no checkpoint of a replication 'x'" in ran.stderr


def test_a_table_is_not_replicated_to_itself(services: Services, refused: Callable[..., tuple[int, str]]) -> None:
    code, stderr = refused("replicate", "a.b", *both_at(services), "--name", "x")
    assert code == 1 and "a.b would be replicated to itself" in stderr


@pytest.mark.kill
@pytest.mark.slow
def test_both_tables_are_equal_after_kills_of_the_driver_and_of_either_node(tmp_path: Path) -> None:
    places = [tmp_path / "here", tmp_path / "there"]
    nodes = [up(place, only=["cassandra"]) for place in places]
    try:
        hosts = [node.cql for node in nodes]
        clusters = [_connected(one) for one in hosts]
        try:
            _kill_all(tmp_path, places, nodes, hosts, [cluster.connect() for cluster in clusters])
        finally:
            for cluster in clusters:
                cluster.shutdown()
    finally:
        for place in places:
            down(place)


def _connected(hosts: str) -> Cluster:
    host, port = hosts.split(":")
    return Cluster([host], port=int(port))


class Writer(threading.Thread):
    """Writes, overwrites and deletes rows until it is stopped; a write that fails is repeated."""

    def __init__(self, session: Session) -> None:
        super().__init__(daemon=True)
        self.session, self.ends, self.written = session, threading.Event(), 0

    def run(self) -> None:
        while not self.ends.wait(0.002):
            number = self.written
            key = number % 500
            statement = (
                f"INSERT INTO shop.orders (id, total, tags) VALUES ({key}, {number}, {{'a'}}) USING TTL 90000",
                f"UPDATE shop.orders SET tags = tags + {{'{number % 11}'}}, total = {number} WHERE id = {key}",
                f"DELETE FROM shop.orders WHERE id = {key}",
            )[number * 7919 % 5 % 3]
            try:
                self.session.execute(statement, timeout=PATIENCE)
            except Exception:  # the node is being killed
                continue
            self.written += 1


def _has_copied(session: Session, number: int) -> bool:
    """Whether the write of this number, or a later one, is there."""
    try:
        found = session.execute("SELECT max(total) FROM shop.orders", timeout=PATIENCE).one()[0]
    except Exception:  # the node is being killed
        return False
    return found is not None and found >= number


def _kill_all(
    folder: Path, places: list[Path], nodes: list[Services], hosts: list[str], sessions: list[Session]
) -> None:
    for session in sessions:
        session.execute("CREATE KEYSPACE shop WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
    sessions[0].execute(TABLE.replace("{ks}", "shop"))
    both = ("shop.orders", "--from", hosts[0], "--to", hosts[1])
    command = [sys.executable, "-m", "penstock", "replicate", *both, "--name", "orders", "--create"]

    def start() -> subprocess.Popen[bytes]:
        with (folder / "log").open("ab") as log:
            return subprocess.Popen(
                command, cwd=folder, env=_environment(folder), stdout=log, stderr=log, start_new_session=True
            )

    writer = Writer(sessions[0])
    writer.start()
    running = start()
    try:
        for kills in range(5):
            before = writer.written
            until(partial(_has_copied, sessions[1], before), "a copied row", 3 * PATIENCE)
            if kills in (0, 3):
                kill(running)
                running.wait()
                running = start()
            else:
                number = kills % 2
                os.kill(nodes[number].pids["cassandra"], signal.SIGKILL)
                nodes[number] = up(places[number], only=["cassandra"])
        writer.ends.set()
        writer.join()
        ran = penstock(folder, "verify", *both, "--replication", "orders", "--json")
        told = json.loads(ran.stdout)
        assert (ran.returncode, told["result"]) == (0, "equal"), (told, (folder / "log").read_text()[-3000:])
        assert told["rows"]["source"] > 100 and writer.written > 500
    finally:
        writer.ends.set()
        kill(running)
        running.wait()
