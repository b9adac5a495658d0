"""Erasing persons from segments: memberships and deliveries are gone."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cassandra.cluster import Session
from kafka_topics import new_topic, stored
from pyspark.sql import SparkSession, functions as F

from penstock import segment
from penstock.cli.main import main
from penstock.errors import PenstockError
from penstock.local.services import Services
from penstock.segment.member_tables import member_erase as erasing
from penstock.segment.member_tables.member_schema import BUCKETS, bucket_of


def test_the_bucket_is_that_of_spark(spark: SparkSession) -> None:
    texts = ["", "a", "1234567", "12345678", "x" * 31, "x" * 32, "Zürich-" * 9, "5c0a6a9e-5d7c-4b8e-9d0a-000000000001"]
    rows = spark.createDataFrame([(text,) for text in texts], "text string")
    buckets = rows.select(F.pmod(F.xxhash64("text"), F.lit(BUCKETS)))
    assert [bucket_of(text) for text in texts] == [row[0] for row in buckets.collect()]


def member(cql: Session, keyspace: str, name: str, person: str) -> None:
    bucket = bucket_of(person)
    cql.execute(
        f"INSERT INTO {keyspace}.members (segment, bucket, person, until) VALUES (%s, %s, %s, %s) USING TTL 3600",
        (name, bucket, person, datetime.now(UTC) + timedelta(hours=1)),
    )


def persons(cql: Session, keyspace: str, table: str) -> set[tuple[str, str]]:
    return {tuple(row) for row in cql.execute(f"SELECT segment, person FROM {keyspace}.{table}")}


@pytest.mark.slow
def test_a_person_is_taken_out_of_all_segments_and_destinations(
    services: Services, cql: Session, keyspace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = persons(cql, keyspace, "members"), persons(cql, keyspace, "delivered")
    for name, person in (("gold", "ann"), ("gold", "bob"), ("new", "ann")):
        member(cql, keyspace, name, person)
    with new_topic(services.kafka, "partner", 1) as topic:
        segment.sync("gold", to=topic, mode="full", keyspace=keyspace, hosts=services.cql, servers=services.kafka)
        where = ["--keyspace", keyspace, "--hosts", services.cql]
        assert main(["segment", "erase", "ann", *where]) == 1
        assert f"{topic} got this person and must get the removal" in capsys.readouterr().err
        assert ("gold", "ann") in persons(cql, keyspace, "members"), "nothing was deleted"
        assert main(["segment", "erase", "ann", *where, "--servers", services.kafka]) == 0
        assert capsys.readouterr().out.splitlines() == [
            "erased ann from segment gold",
            "erased ann from segment new",
            f"sent {topic} the removal of ann from segment gold",
        ]
        assert persons(cql, keyspace, "members") - before[0] == {("gold", "bob")}
        assert persons(cql, keyspace, "delivered") - before[1] == {("gold", "bob")}
        last = json.loads(stored(services.kafka, topic, 1)[0][-1])
        assert last == {"person": "ann", "segment": "gold", "event": "remove"}
        assert main(["segment", "erase", "ann", *where]) == 0
        assert capsys.readouterr().out == "no segment has this person\n"


def test_a_person_that_is_written_again_and_again_is_told(
    services: Services, cql: Session, keyspace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete = erasing._delete

    def and_write(*arguments: object) -> None:
        delete(*arguments)  # type: ignore[arg-type]
        member(cql, keyspace, "busy", "eve")

    member(cql, keyspace, "busy", "eve")
    monkeypatch.setattr(erasing, "_delete", and_write)
    with pytest.raises(PenstockError, match=r"streams write eve as fast as it is erased.*keep the person's events"):
        segment.erase(["eve"], keyspace=keyspace, hosts=services.cql)


@pytest.mark.parametrize(
    ("persons", "said"),
    [
        ("ann", r"persons is a str .*give a list of strings, as in persons=\[\.\.\.\]"),
        ([5], r"persons\[0\] is an int .*give a list of strings"),
        ([b"ann"], r"persons\[0\] is a bytes .*give a list of strings"),
        ([None], r"persons\[0\] is None .*give a list of strings"),
        (iter([5]), "5 is not a string"),
    ],
)
def test_what_is_no_list_of_texts_is_refused(persons: Any, said: str) -> None:
    with pytest.raises(PenstockError, match=said):
        segment.erase(persons, keyspace="seg", hosts="127.0.0.1:1")


def test_persons_that_can_be_read_only_once_are_erased_everywhere(
    services: Services, cql: Session, keyspace: str
) -> None:
    member(cql, keyspace, "gold", "once")
    with new_topic(services.kafka, "partner", 1) as topic:
        places: dict[str, Any] = {"keyspace": keyspace, "hosts": services.cql, "servers": services.kafka}
        segment.sync("gold", to=topic, mode="full", **places)
        erased = segment.erase((person for person in ["once"]), **places)
    assert erased.memberships == (("gold", "once"),) and erased.deliveries == ((topic, "gold", "once"),)
