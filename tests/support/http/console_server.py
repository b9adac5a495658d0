"""`penstock console` as a process, with a shop to look at: pipelines, topics, dead letters, connectors and so on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from confluent_kafka import Producer
from fake_connect import cluster
from fake_status import HOSTILE, Json, Made, pipeline, served
from ingest_server import ingest
from kafka_topics import new_topics

READY = "console at "
PARTITIONS = 4
MESSAGES = 2_000
STATES = Path(__file__).parents[2] / "data/earlier_build.tar.gz"


@dataclass(frozen=True)
class Console:
    """A console whose page is at `url`; `token` is "" if it is read-only."""

    url: str
    token: str
    process: subprocess.Popen[str]

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return self.url.removeprefix("http://")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def console(folder: Path, *arguments: str, listen: str = "127.0.0.1:0") -> Iterator[Console]:
    """A console that answers; killed afterwards. It finds the runs whose files are in `folder`."""
    errors = folder / "console.txt"
    command = [sys.executable, "-m", "penstock", "console", "--listen", listen, *arguments]
    environment = {**os.environ, "PENSTOCK_RUNS": str(folder)}
    with (
        errors.open("w") as log,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=folder, env=environment
        ) as process,
    ):
        try:
            assert process.stdout
            line = next((line for line in process.stdout if line.startswith(READY)), None)
            assert line, f"no console:\n{errors.read_text()}"
            url, _, token = line.removeprefix(READY).strip().partition("/#token=")
            yield Console(url, token, process)
        finally:
            process.kill()


@dataclass(frozen=True)
class Shop:
    """What there is to see; `options` are those of a console that shows it, `folder` is its folder of run files."""

    folder: Path
    orders: str
    dead: str
    options: tuple[str, ...]


def order(number: int, text: str = HOSTILE) -> tuple[str, str]:
    """Key and value of a message; some have the text as a city."""
    city = ("Lisbon", "Oslo", text, "Graz")[number % 4]
    value = {"order": number, "city": city, "price": 9.5 + number % 90, "lines": [{"sku": f"A-{number % 7}", "n": 2}]}
    return f"person-{number % 311}", json.dumps(value)


def fill(servers: str, orders: str, dead: str, count: int, text: str) -> None:
    """Write `count` orders, and dead letters of three reasons with Kafka Connect's headers."""
    # Without idempotence, a batch that is sent again may come after the next one, and times are not in order.
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True})
    now = time.time_ns() // 1_000_000
    for number in range(count):
        key, value = order(number, text)
        producer.produce(orders, value, key, partition=number % PARTITIONS, timestamp=now - (count - number) * 100)
    reasons = (
        "price is not a number: 'cheap'",
        f"key is null {text}",
        "it has 2097152 bytes, at most 1048576",
    )
    for number in range(30):
        key, value = order(number, text)
        about = {"topic": orders, "partition": "0", "offset": str(number), "exception.message": reasons[number % 7 % 3]}
        headers = [(f"__connect.errors.{name}", text.encode()) for name, text in about.items()]
        producer.produce(dead, value, key, headers=[("shop", b"lisbon-3"), *headers], partition=0)
    producer.flush()


@contextmanager
def shop(folder: Path, servers: str, *, text: str = HOSTILE, suffix: str | None = None) -> Iterator[Shop]:
    """A shop with made-up pipelines and connectors, and with real topics, states and a real server of events.

    `text` is a part of what others wrote: of values, reasons and errors. The topics' names end with `suffix`.
    """
    end = f"-{uuid.uuid4().hex[:8]}" if suffix is None else suffix
    orders, dead, clicks = (f"shop.{name}{end}" for name in ("orders", "orders.dead", "clicks"))
    with tarfile.open(STATES) as archive:
        archive.extractall(folder / "checkpoints", filter="data")
    with ExitStack() as stack:
        stack.enter_context(new_topics(servers, [orders, dead, clicks], PARTITIONS))
        fill(servers, orders, dead, MESSAGES, text)
        urls = [stack.enter_context(served(make)) for make in pipelines(text)]
        connect = stack.enter_context(cluster(text))
        with _variable("PENSTOCK_RUNS", str(folder)):
            stack.enter_context(ingest(folder, "--servers", servers, "--topics", clicks))
        options = ["--servers", servers, "--connect", connect, "--checkpoints", str(folder / "checkpoints")]
        yield Shop(folder, orders, dead, (*options, *(part for url in urls for part in ("--target", url))))


@contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


def pipelines(text: str) -> list[Callable[[], Json]]:
    """Pipelines of which one is behind, one failed, one waits, and one has nothing to do."""
    return [
        partial(pipeline, "orders", Made(lag=42.0, rate=340.0, text=text), width=2),
        partial(pipeline, "clicks", Made(rate=2140.0, text=text)),
        partial(pipeline, "payments", Made(state="failed", rate=0.0, text=text)),
        partial(pipeline, "returns", Made(state="waiting", rate=0.0, text=text)),
        partial(pipeline, "persons", Made(rate=0.0, text=text)),
    ]
