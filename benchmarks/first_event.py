"""How long a user waits for the first event, with everything installed and compiled.

    python benchmarks/first_event.py --rounds 3 --json first_event.json

`penstock run`: the pipeline of the README, from the command to the first record that a consumer reads; rows are written
all the time. `penstock connect`: from the POST of a connector to a worker that runs no other to the first record.
`penstock demo`: from the command until the first events flow, and until the load runs at its full rate. There is no
peer: the targets are 12, 8 and 30 seconds.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from _measure import penstock_run
from penstock.local import ports
from penstock.local.services import down, up
from penstock_demo.node import connect

README = Path(__file__).parents[1] / "README.md"
PATIENCE = 300.0
TOPIC = "shop.shop.orders"
PAUSE = 0.1
"""Seconds between two rows."""
SETTLED = 5.0
"""Seconds that a worker has run before it gets a connector."""
TABLE = """CREATE TABLE shop.orders (customer text, id int, total decimal, paid boolean, PRIMARY KEY (customer, id))
WITH cdc = {'enabled': true, 'preimage': 'full', 'postimage': true}"""
KEYSPACE = "CREATE KEYSPACE shop WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"


def pipeline(kafka: str, cql: str) -> str:
    """The pipeline of the README, at these addresses."""
    found = re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert found
    return found[1].replace("127.0.0.1:9092", kafka).replace("127.0.0.1:9042", cql)


@contextmanager
def written(cql: str) -> Iterator[None]:
    """Write a row every tenth of a second."""
    ended = threading.Event()

    def write() -> None:
        number = 0
        while not ended.wait(PAUSE):
            number += 1
            session.execute("INSERT INTO shop.orders (customer, id, paid) VALUES ('ann', %s, false)", (number,))

    with connect(cql) as session:
        session.execute("DROP KEYSPACE IF EXISTS shop")
        session.execute(KEYSPACE)
        session.execute(TABLE)
        thread = threading.Thread(target=write)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def run(folder: Path, kafka: str, cql: str) -> float:
    """Seconds from `penstock run` to the first record."""
    file = folder / "shop.py"
    file.write_text(pipeline(kafka, cql))
    reader = at_the_end(kafka)
    with written(cql):
        began = time.monotonic()
        with penstock_run(f"{file}:orders", folder) as process:
            try:
                return await_record(reader, process, began)
            finally:
                reader.close()


def at_the_end(kafka: str, topic: str = TOPIC) -> Consumer:
    """A consumer that has all records of the topic behind it; makes the topic if there is none."""
    reader = Consumer({"bootstrap.servers": kafka, "group.id": "first"})
    admin = AdminClient({"bootstrap.servers": kafka})
    try:
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result()
        end = 0
    except KafkaException:  # it is there since the round before
        _, end = reader.get_watermark_offsets(TopicPartition(topic, 0))
    reader.assign([TopicPartition(topic, 0, end)])
    return reader


def await_record(reader: Consumer, process: subprocess.Popen[bytes], began: float) -> float:
    while time.monotonic() - began < PATIENCE:
        assert process.poll() is None, "the pipeline ended"
        message = reader.poll(0.1)
        if message is not None and message.error() is None:
            return time.monotonic() - began
    raise TimeoutError(f"no event came within {PATIENCE} s")


def post(folder: Path, kafka: str, cql: str) -> float:
    """Seconds from the POST of a connector to the first record."""
    address = f"http://127.0.0.1:{ports.free(set())}"
    command = [sys.executable, "-m", "penstock", "connect", "--servers", kafka, "--listen", address]
    config = {
        "connector.class": "com.scylladb.cdc.debezium.connector.ScyllaConnector",
        "topic.prefix": "shop",
        "scylla.cluster.ip.addresses": cql,
        "scylla.table.names": "shop.orders",
        "scylla.confidence.window.size": "1000",
        "scylla.query.time.window.size": "1000",
    }
    body = json.dumps({"name": "orders", "config": config}).encode()
    reader = at_the_end(kafka)
    with (
        written(cql),
        (folder / "log").open("wb") as log,
        subprocess.Popen([*command, "--data", str(folder / "data")], stdout=log, stderr=log) as process,
    ):
        try:
            await_address(address, process)
            time.sleep(SETTLED)
            began = time.monotonic()
            wanted = Request(f"{address}/connectors", body, {"Content-Type": "application/json"})
            with urlopen(wanted, timeout=PATIENCE):
                first = await_record(reader, process, began)
            with urlopen(Request(f"{address}/connectors/orders", method="DELETE"), timeout=PATIENCE):
                return first
        finally:
            reader.close()
            process.terminate()


def await_address(address: str, process: subprocess.Popen[bytes]) -> None:
    began = time.monotonic()
    while time.monotonic() - began < PATIENCE:
        assert process.poll() is None, "the worker ended"
        with suppress(OSError), urlopen(address, timeout=1):
            return
        time.sleep(PAUSE)
    raise TimeoutError(f"no answer from {address} within {PATIENCE} s")


def demo(folder: Path) -> tuple[float, float]:
    """Seconds from `penstock demo` to the first events, and to the full rate."""
    command = [sys.executable, "-m", "penstock", "demo", "--seconds", "2", "--rate", "300", "--root", str(folder)]
    began, first = time.monotonic(), 0.0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        for line in process.stdout:
            if not first and "warming up" in line and " 0 events/s" not in line:
                first = time.monotonic() - began
            if re.match(r" *[0-9.]+ s  running:", line):
                full = time.monotonic() - began
                process.communicate(timeout=PATIENCE)
                return first or full, full
    raise RuntimeError("the demo ended before its load ran")


def row(case: str, seconds: list[float], target: float) -> dict[str, Any]:
    median = statistics.median(seconds)
    spread = {"least_s": round(min(seconds), 1), "most_s": round(max(seconds), 1)}
    return {"case": case, "seconds": round(median, 1), **spread, "target_s": target, "ratio": round(median / target, 2)}


def runs(rounds: int, folder: Path) -> Iterator[dict[str, Any]]:
    services = up(folder / "services")
    try:
        times = [run(made(folder / f"run{number}"), services.kafka, services.cql) for number in range(rounds)]
        posts = [post(made(folder / f"post{number}"), services.kafka, services.cql) for number in range(rounds)]
    finally:
        down(folder / "services")
    yield row("penstock run: first event", times, 12)
    yield row("penstock connect: first event after the POST", posts, 8)


def demos(rounds: int, folder: Path) -> Iterator[dict[str, Any]]:
    found = [demo(folder / f"demo{number}") for number in range(rounds)]
    yield row("penstock demo: first events", [first for first, _ in found], 30)
    yield row("penstock demo: full rate", [full for _, full in found], 30)


def made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="(default: %(default)s)")
    parser.add_argument("--only", choices=["run", "demo"], help="measure run and connect, or the demo")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        chosen = [measure for name, measure in (("run", runs), ("demo", demos)) if args.only in (None, name)]
        found = [row for measure in chosen for row in measure(args.rounds, Path(folder))]
    for one in found:
        print(json.dumps(one))
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
