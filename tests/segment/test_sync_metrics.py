"""What `penstock segment sync` tells while it waits for requests, and while it repeats a delivery."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import requests
from cassandra.cluster import Session
from kafka_topics import new_topic
from promtool import promtool
from waiting import PATIENCE, until

from penstock.local.services import Services
from penstock.segment.member_tables.delivery_sync import Receipt
from penstock.segment.member_tables.member_schema import bucket_of
from penstock.watch.delivery_meter import ERRORS, MOST_TEXT, DeliveryMeter
from penstock.wire.producer.blocking import BlockingProducer

pytestmark = pytest.mark.slow

PEOPLE = ["ann", "bob"]


@pytest.fixture(scope="module")
def members(cql: Session, keyspace: str) -> str:
    """The keyspace, with a segment of two members."""
    insert = cql.prepare(
        f"INSERT INTO {keyspace}.members (segment, bucket, person, until) VALUES ('near', ?, ?, ?) USING TTL 3600"
    )
    for person in PEOPLE:
        cql.execute(insert, (bucket_of(person), person, datetime.now(UTC) + timedelta(hours=1)))
    return keyspace


@contextmanager
def syncing(folder: Path, *words: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A running command, and the URL of its metrics."""
    errors = folder / "errors.txt"
    env = {**os.environ, "PENSTOCK_RUNS": str(folder / "runs")}
    command = [sys.executable, "-m", "penstock", "segment", "sync", *words]
    with (
        errors.open("w") as log,
        subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        try:
            found = until(lambda: re.search(r"metrics at (\S+)/metrics", errors.read_text()), "metrics")
            yield found[1], process
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE) == 130
        finally:
            process.kill()
    assert list((folder / "runs").iterdir()) == []


def test_requests_of_a_topic_are_counted(services: Services, members: str, tmp_path: Path) -> None:
    with new_topic(services.kafka, "asks", 1) as asks, new_topic(services.kafka, "gets", 1) as gets:
        words = ["--on", asks, "--keyspace", members, "--hosts", services.cql, "--servers", services.kafka]
        with syncing(tmp_path, *words) as (url, process), BlockingProducer(services.kafka) as producer:
            assert process.stdout and process.stdout.readline() == f"waiting for records of {asks}\n"
            for wanted in (b"no JSON", b'{"segment": "neer", "to": "x", "mode": "full"}'):
                producer.send(asks, wanted)
            producer.send(asks, json.dumps({"segment": "near", "to": gets, "mode": "full"}).encode())
            assert json.loads(process.stdout.readline())["added"] == 2
            text = until(lambda: _text(url, "deliveries_total"), "the delivery")
            status: dict[str, Any] = requests.get(f"{url}/status", timeout=PATIENCE).json()
            assert len(list((tmp_path / "runs").iterdir())) == 1
    labels = f'destination="{gets}",segment="near"'
    assert f"penstock_segment_deliveries_total{{{labels}}} 1.0" in text
    assert f'penstock_segment_records_total{{destination="{gets}",event="add",segment="near"}} 2.0' in text
    (last,) = re.findall(r"penstock_segment_last_delivery_timestamp_seconds\{.*\} (\S+)", text)
    assert abs(time.time() - float(last)) < PATIENCE
    assert "penstock_segment_refused_requests_total 2.0" in text
    # A request may name anything: what was refused is no label.
    assert "neer" not in text
    checked = promtool("check", "metrics", given=text)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
    assert (status["kind"], status["name"], status["state"]) == ("segment", members, "running")
    assert (status["deliveries"][0]["destination"], status["deliveries"][0]["added_total"]) == (gets, 2)
    assert ["Expecting value" in status["errors"][0]["what"], "neer" in status["errors"][1]["what"]] == [True, True]
    assert "near" in status["errors"][1]["next"]


def _text(url: str, name: str) -> str | None:
    """The metrics once there is a sample of this name."""
    text = requests.get(f"{url}/metrics", timeout=PATIENCE).text
    return text if f"{name}{{" in text else None


def test_repeated_deliveries_are_counted(services: Services, members: str, tmp_path: Path) -> None:
    with new_topic(services.kafka, "repeated", 1) as topic:
        words = ["near", "--to", topic, "--changes", "--every", "0.1 seconds", "--keyspace", members]
        with syncing(tmp_path, *words, "--hosts", services.cql, "--servers", services.kafka) as (url, _):

            def delivered() -> dict[str, Any] | None:
                found = requests.get(f"{url}/status", timeout=PATIENCE).json()["deliveries"]
                return found[0] if found and found[0]["deliveries_total"] > 1 else None

            told = until(delivered, "two deliveries")
    assert (told["segment"], told["destination"], told["added_total"], told["removed_total"]) == ("near", topic, 2, 0)


def test_a_meter_keeps_the_last_errors_and_cuts_long_ones() -> None:
    meter = DeliveryMeter()
    for number in range(ERRORS + 5):
        meter.refused(ValueError(f"{number} {'x' * 100_000}"))
    at = datetime(2026, 3, 1, tzinfo=UTC)
    for number in range(3):
        end = at + timedelta(seconds=number)
        meter.done(Receipt("a", "t", "run", "changes", at, end, number, 1, "0"))
    told = meter.to_dict()
    assert len(told["errors"]) == ERRORS
    assert told["errors"][-1]["what"].startswith(f"{ERRORS + 4} xxx")
    assert all(len(error["what"]) == MOST_TEXT for error in told["errors"])
    (delivery,) = told["deliveries"]
    assert (delivery["deliveries_total"], delivery["added_total"], delivery["removed_total"]) == (3, 3, 3)
    assert delivery["last"] == "2026-03-01T00:00:02.000Z"
    values = {sample.name: sample.value for metric in meter.collect() for sample in metric.samples}
    assert values["penstock_segment_delivery_seconds_total"] == 3.0
    assert values["penstock_segment_refused_requests_total"] == ERRORS + 5
