"""Errors of segments when the database or Kafka refuses something or is down."""

from __future__ import annotations

import argparse
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cassandra.cluster import Session
from keyspaces import new_keyspace

from penstock import segment
from penstock.cli import segment as command
from penstock.cli.main import main
from penstock.errors import PenstockError
from penstock.local.services import Services
from penstock.watch.delivery_meter import DeliveryMeter

NOBODY = "127.0.0.1:1"
SINCE = ["--since", "2026-03-01"]
SYNC = ["sync", "a", "--to", "t", "--full", "--servers", NOBODY]
DELIVERIES = [["count", "a", *SINCE], SYNC, ["erase", "ann"]]


def said(capsys: pytest.CaptureFixture[str], keyspace: str, hosts: str, *words: str) -> str:
    assert main(["segment", *words, "--keyspace", keyspace, "--hosts", hosts]) == 1
    return capsys.readouterr().err


@pytest.mark.parametrize("words", [["tables"], *DELIVERIES], ids=lambda words: words[0])
def test_a_database_that_is_away_is_told(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    told = said(capsys, "seg", NOBODY, *words)
    assert told.startswith("penstock: the database does not answer: 127.0.0.1:1: ")
    assert f"(seg at {NOBODY}). Next: check the address" in told


@pytest.mark.parametrize("words", [["tables"], *DELIVERIES], ids=lambda words: words[0])
@pytest.mark.parametrize("keyspace", ["nosuch", "a b"])
def test_a_keyspace_that_cannot_be_is_told(
    services: Services, capsys: pytest.CaptureFixture[str], keyspace: str, words: list[str]
) -> None:
    told = said(capsys, keyspace, services.cql, *words)
    assert told.startswith("penstock: the database refuses the request: ") and "code=" not in told
    assert f"({keyspace} at {services.cql}). Next: check the keyspace" in told


@pytest.mark.parametrize("words", DELIVERIES, ids=lambda words: words[0])
def test_missing_tables_are_told_with_the_command_that_makes_them(
    services: Services, cql: Session, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    with new_keyspace(cql, "bare") as keyspace:
        told = said(capsys, keyspace, services.cql, *words)
    assert f"({keyspace} at {services.cql})" in told and f"penstock segment tables --keyspace {keyspace}\n" in told


def test_a_count_of_missing_tables_is_told_in_python(services: Services, cql: Session) -> None:
    now = datetime.now(UTC)
    with new_keyspace(cql, "bare") as keyspace, pytest.raises(PenstockError, match="penstock segment tables"):
        segment.counts(keyspace, hosts=services.cql).count("a", now - timedelta(hours=1), now)


def test_a_topic_that_is_not_there_is_told(services: Services, capsys: pytest.CaptureFixture[str]) -> None:
    told = said(capsys, "seg", services.cql, "sync", "--on", "nosuchtopic", "--servers", services.kafka)
    assert "UNKNOWN_TOPIC_OR_PARTITION" in told and f"(Kafka at {services.kafka})" in told


@pytest.mark.parametrize("wanted", [{"segment": 5}, {"to": None}, {"mode": "half"}])
def test_a_record_that_asks_for_no_delivery_is_passed_over(
    services: Services, keyspace: str, capsys: pytest.CaptureFixture[str], wanted: dict[str, object]
) -> None:
    args = argparse.Namespace(keyspace=keyspace, hosts=services.cql, servers=services.kafka)
    value = json.dumps({"segment": "a", "to": "t", "mode": "full"} | wanted)
    command._asked(args, value.encode(), DeliveryMeter())
    assert json.loads(capsys.readouterr().err)["refused"] == value


@pytest.mark.parametrize("value", [None, b"", b"\xff", b"7", b"[]", b"[" * 100_000])
def test_a_record_that_is_no_request_is_passed_over(capsys: pytest.CaptureFixture[str], value: bytes | None) -> None:
    command._asked(argparse.Namespace(), value, DeliveryMeter())
    assert json.loads(capsys.readouterr().err)["reason"]


def test_a_time_that_the_calendar_does_not_have_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["count", "a", "--since", "9999-12-31T23:00", "--until", "9999-12-31T23:30"]
    assert "exceeds the calendar" in said(capsys, "seg", NOBODY, *words)


def test_brokers_without_a_port_are_refused_before_anything_is_done() -> None:
    places: dict[str, Any] = {"keyspace": "seg", "hosts": NOBODY, "servers": "localhost"}
    with pytest.raises(PenstockError, match=r"servers is not a list of host:port: 'localhost'.*segment\.sync"):
        segment.sync("a", to="t", mode="full", **places)
    with pytest.raises(PenstockError, match=r"servers is not a list of host:port: 'localhost'.*segment\.erase"):
        segment.erase(["ann"], **places)
