"""`penstock ingest` beside a bare server: the same uvicorn, with an application that reads the body and answers 200.

    python benchmarks/http_ingest.py --json http_ingest.json

`flat-out`: 64 callers send batches of 100 events of 200 bytes as fast as they are answered; ours validates them against
a JSON schema and answers when Kafka has them (acks=all). Beside them our Kafka client alone, with the same events.
`steady`: 50 000 events a second for a while, then kill -9 of the server; librdkafka looks for what was acknowledged.
With `--workers N` ours also runs with N processes. Callers, server and broker share the machine: on two cores more
workers take the CPU from the others, and `cores` and `callers_cores` tell who had how much.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from _measure import Run, rows_of, tell, tree_cpu, turns
from penstock.local.services import down, up

SCHEMA = {
    "type": "object",
    "required": ["id", "user", "event", "at"],
    "properties": {
        "user": {"type": "string", "minLength": 1, "maxLength": 64},
        "event": {"enum": ["view", "click", "buy"]},
        "at": {"type": "string"},
        "page": {"type": "string"},
        "price": {"type": "number", "minimum": 0},
        "device": {"type": "object", "required": ["os"], "properties": {"os": {"type": "string"}}},
    },
}
BARE = """
import asyncio, socket, sys, uvicorn
async def app(scope, receive, send):
    more = True
    while more:
        more = (await receive())["more_body"]
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"{}"})
bound = socket.create_server(("127.0.0.1", 0), backlog=2048)
print("taking events at http://127.0.0.1:%d" % bound.getsockname()[1], flush=True)
options = dict(http="httptools", ws="none", lifespan="off", access_log=False, log_config=None, proxy_headers=False)
uvicorn.Server(uvicorn.Config(app, interface="asgi3", server_header=False, **options)).run([bound])
"""
BATCH, PARTITIONS = 100, 4
FLOOR = "our Kafka client alone"
ID = re.compile(rb'"id":(\d+)')


@contextmanager
def server(command: list[str]) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A server's process and port."""
    with subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            line = next(line for line in process.stdout if line.startswith("taking events at "))
            yield process, int(line.strip().rpartition(":")[2])
        finally:
            process.kill()


def load(port: int, topic: str, seconds: float, rate: int = 0) -> subprocess.Popen[str]:
    told = {"host": "127.0.0.1", "port": port, "path": f"/events/{topic}", "seconds": seconds, "rate": rate}
    file = str(Path(__file__).with_name("_http_load.py"))
    return subprocess.Popen([sys.executable, file, json.dumps(told)], stdout=subprocess.PIPE, text=True)


def result(process: subprocess.Popen[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(process.communicate()[0])
    return found


def flat_out(servers: str, folder: Path, seconds: float, rounds: int, workers: int) -> list[dict[str, Any]]:
    plain = create(servers, "plain")
    checked = create(servers, "checked")
    (folder / "schemas").mkdir()
    (folder / "schemas" / f"{checked}.json").write_text(json.dumps(SCHEMA))
    ours = ["-m", "penstock", "ingest", "--servers", servers, "--listen", "127.0.0.1:0"]
    commands = {
        "bare uvicorn": (["-c", BARE], "any"),
        "penstock": ([*ours, "--schemas", str(folder / "schemas")], checked),
        "penstock without a schema": ([*ours, "--topics", plain], plain),
    }
    if workers > 1:
        checking, topic = commands["penstock"]
        commands[f"penstock with {workers} workers"] = [*checking, "--workers", str(workers)], topic
    subjects = [*commands, FLOOR]
    runs: dict[str, list[Run]] = {name: [] for name in subjects}
    callers: dict[str, list[dict[str, Any]]] = {name: [] for name in commands}
    for _, name in turns(subjects, rounds):
        if name == FLOOR:
            runs[name].append(alone(servers, plain, seconds))
            continue
        command, topic = commands[name]
        with server(command) as (process, port):
            result(load(port, topic, 1.0))  # warms up
            cpu = tree_cpu(process.pid)
            found = result(load(port, topic, seconds))
            assert not found["other"], f"{name} answered {found['other']}"
            runs[name].append(Run(found["requests"] * BATCH, found["seconds"], tree_cpu(process.pid) - cpu))
            callers[name].append(found)
    rows = [vars(row) for row in rows_of("flat-out, batches of 100", runs, "bare uvicorn")]
    return [row | spread(runs[row["subject"]], callers.get(row["subject"], [])) for row in rows]


def alone(servers: str, topic: str, seconds: float) -> Run:
    told = json.dumps({"servers": servers, "topic": topic, "seconds": seconds})
    command = [sys.executable, str(Path(__file__).with_name("_http_floor.py")), told]
    found = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return Run(found["requests"] * BATCH, found["seconds"], found["cpu_seconds"])


def spread(runs: list[Run], callers: list[dict[str, Any]]) -> dict[str, Any]:
    """What the median hides: slowest and fastest run, the callers' CPU (1.0: it was they who were slow), and times."""
    rates = [run.rows / run.seconds for run in runs]
    told: dict[str, Any] = {"slowest_per_s": round(min(rates)), "fastest_per_s": round(max(rates))}
    told["cores"] = round(statistics.median(run.cpu / run.seconds for run in runs), 2)
    if callers:
        told["callers_cores"] = round(statistics.median(one["cpu"] for one in callers), 2)
        told["p50_ms"] = round(statistics.median(one["p50"] for one in callers) * 1000, 2)
        told["p99_ms"] = round(statistics.median(one["p99"] for one in callers) * 1000, 2)
    return told


def steady(servers: str, folder: Path, seconds: float, rate: int, spool: bool, workers: int) -> dict[str, Any]:
    """Kill -9 at two thirds of the time, and what became of all that was acknowledged until then."""
    topic = create(servers, "steady")
    schemas = folder / f"schemas-{topic}"
    schemas.mkdir()
    (schemas / f"{topic}.json").write_text(json.dumps(SCHEMA))
    command = ["-m", "penstock", "ingest", "--servers", servers, "--listen", "127.0.0.1:0", "--schemas", str(schemas)]
    command += ["--spool", str(folder / "spool")] if spool else []
    command += ["--workers", str(workers)]
    with server(command) as (process, port):
        cpu = tree_cpu(process.pid)
        sending = load(port, topic, seconds, rate)
        time.sleep(seconds * 2 / 3)
        used = tree_cpu(process.pid) - cpu
        process.kill()
        found = result(sending)
    if spool:
        with server(command) as (process, _):
            process.terminate()
            process.wait()
    stored = numbers(servers, topic)
    acknowledged = {batch * BATCH + n for batch in found["acknowledged"] for n in range(BATCH)}
    return {
        "case": f"steady at {rate}/s, killed" + (", spool" if spool else ""),
        "workers": workers,
        "acknowledged": len(acknowledged),
        "acknowledged_per_s": round(len(acknowledged) / (seconds * 2 / 3)),
        "missing": len(acknowledged - set(stored)),
        "refused": found["other"],
        "p50_ms": round(found["p50"] * 1000, 2),
        "p99_ms": round(found["p99"] * 1000, 2),
        "server_cpu_share": round(used / (seconds * 2 / 3), 3),
    }


def create(servers: str, name: str) -> str:
    topic = f"{name}-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result()
    return topic


def numbers(servers: str, topic: str) -> list[int]:
    """The numbers of all events in the topic."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": topic, "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, p, 0) for p in range(PARTITIONS)])
    found, ended = [], set[int]()
    while len(ended) < PARTITIONS:
        for one in consumer.consume(10_000, timeout=1):
            if one.error():
                assert one.error().code() == KafkaError._PARTITION_EOF, one.error()
                ended.add(one.partition())
            elif match := ID.search(one.value()):
                found.append(int(match[1]))
    consumer.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=8, help="of a run (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="of flat-out (default: %(default)s)")
    parser.add_argument("--rate", type=int, default=50_000, help="events a second of steady (default: %(default)s)")
    parser.add_argument("--only", choices=["flat-out", "steady"], help="one part")
    parser.add_argument("--workers", type=int, default=1, help="processes of ours, besides one (default: %(default)s)")
    parser.add_argument("--servers", metavar="HOST:PORT", help="a Kafka that runs (default: one of its own)")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            servers = options.servers or up(folder / "services", only=["kafka"]).kafka
            if options.only != "steady":
                rows += flat_out(servers, folder, options.seconds, options.rounds, options.workers)
            if options.only != "flat-out":
                told = 3 * options.seconds, options.rate
                rows += [steady(servers, folder, *told, spool, options.workers) for spool in (False, True)]
        finally:
            if not options.servers:
                down(folder / "services")
    tell(rows, options.json)


if __name__ == "__main__":
    main()
