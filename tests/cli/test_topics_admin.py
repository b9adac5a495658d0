"""`penstock topics create`, `describe`, `alter` and `delete`, and what `tail` decodes and follows, on a real broker."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from kafka_topics import new_topic
from waiting import PATIENCE, until

from penstock.cli.output import PIPE_CLOSED
from penstock.codec.registry import Registry
from penstock.local.services import Services
from penstock.wire.admin import Admin
from penstock.wire.records.partitioner import partition_for

AVRO = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}'
Run = Callable[..., Any]


@pytest.fixture
def topics(penstock: Run, services: Services) -> Run:
    return lambda *words: penstock("topics", *words, "--servers", services.kafka)


@pytest.fixture
def name(services: Services) -> Iterator[str]:
    """A name of a topic, which is deleted afterwards if it was made."""
    made = f"cli-{uuid.uuid4().hex[:8]}"
    yield made
    admin = AdminClient({"bootstrap.servers": services.kafka})
    if made in admin.list_topics(timeout=PATIENCE).topics:
        for done in admin.delete_topics([made]).values():
            done.result()


@pytest.fixture
def topic(services: Services) -> Iterator[str]:
    with new_topic(services.kafka, "cli", 3) as name:
        yield name


def write(services: Services, topic: str, *sent: tuple[int, bytes | None, bytes]) -> None:
    producer = Producer({"bootstrap.servers": services.kafka})
    failed = []
    for partition, key, value in sent:
        producer.produce(topic, value, key, partition=partition, on_delivery=lambda error, _: failed.append(error))
    assert producer.flush(PATIENCE) == 0 and not any(failed)


def test_a_topic_is_created_changed_described_and_deleted(services: Services, topics: Run, name: str) -> None:
    made = topics("create", name, "--partitions", 2, "--set", "cleanup.policy=compact")
    assert (made.code, made.out, made.err) == (0, f"created {name}, 2 partitions with 1 replica\n", "")
    again = topics("create", name)
    assert again.code == 1 and f"there is a topic {name} already" in again.err and "--if-not-exists" in again.err
    assert topics("create", name, "--if-not-exists").out == f"exists: {name}, 2 partitions with 1 replica\n"

    altered = topics("alter", name, "--partitions", 4, "--set", "retention.ms=5000", "--unset", "cleanup.policy")
    assert altered.out.splitlines() == [
        "cleanup.policy: was compact, is delete",
        "retention.ms: was -1, is 5000",
        "partitions: was 2, is 4",
    ]
    assert "another partition" in altered.err

    write(services, name, (1, b"k", b"v" * 1000), (1, b"k", b"v"))
    found = json.loads(topics("describe", name, "--json").out)
    assert (found["topic"], found["internal"], found["replication"], found["under_replicated"]) == (name, False, 1, [])
    written = found["partitions"][1]
    assert (written["first"], written["end"], written["leader"] in written["replicas"]) == (0, 2, True)
    assert 1000 < written["bytes"] < 2000
    assert {"name": "retention.ms", "value": "5000", "source": "topic", "read_only": False} in found["configs"]
    text = topics("describe", name).out
    assert "setting      retention.ms=5000 (topic)" in text
    assert text.splitlines()[-3].split()[:7] == ["1", "1", "1", "1", "0", "2", "2"]

    assert topics("delete", name, "--yes").out == f"deleted {name}\n"
    # The broker answers from its metadata until the controller has told it.
    gone = until(lambda: ended if (ended := topics("describe", name)).code else None, "end of the topic")
    assert gone.code == 1 and f"there is no topic {name}" in gone.err


def test_names_that_are_near_are_offered(topics: Run, topic: str) -> None:
    wrong = f"{topic}s"
    actions: list[tuple[object, ...]] = [
        ("describe", wrong),
        ("alter", wrong, "--partitions", 9),
        ("delete", wrong, "--yes"),
    ]
    for words in actions:
        ran = topics(*words)
        assert ran.code == 1 and f"there is no topic {wrong}. Next: did you mean {topic}" in ran.err


def test_settings_that_are_near_are_offered(topics: Run, topic: str) -> None:
    wrong = "--set", "retention.mss=1"
    for words in (("create", "never", *wrong), ("alter", topic, *wrong), ("alter", topic, "--unset", "retention.mss")):
        ran = topics(*words)
        assert ran.code == 1 and "no setting retention.mss" in ran.err and "did you mean retention.ms," in ran.err


def test_what_kafka_cannot_do_is_refused_with_the_next_step(topics: Run, topic: str, name: str) -> None:
    ran = topics("create", name, "--replication", 7)
    assert ran.code == 1 and "give --replication at most as many as there are brokers" in ran.err
    ran = topics("alter", topic, "--partitions", 3)
    assert ran.code == 1 and "the topic has 3 partitions, and Kafka only adds some" in ran.err
    ran = topics("alter", topic)
    assert ran.code == 1 and "nothing to change" in ran.err
    ran = topics("alter", topic, "--set", "retention.ms=soon")
    assert ran.code == 1 and "retention.ms" in ran.err and "correct the setting's value" in ran.err
    assert topics("create", name, "--set", "retention.ms").code == 2


def test_a_topic_of_kafka_itself_is_not_deleted(services: Services, topics: Run, topic: str) -> None:
    async def commit() -> None:
        async with Admin(services.kafka) as admin:
            # The first commit makes Kafka create the topic.
            await admin.groups.commit(f"{topic}-group", {(topic, 0): 0})
            await admin.groups.delete(f"{topic}-group")

    asyncio.run(commit())
    ran = topics("delete", "__consumer_offsets", "--yes")
    assert ran.code == 1 and "__consumer_offsets is a topic of Kafka itself" in ran.err


def test_nothing_is_deleted_without_a_yes(topics: Run, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = topics("delete", topic)
    assert ran.code == 1 and f"Next: run: penstock topics delete {topic} --yes" in ran.err
    asked: list[str] = []

    def no(question: str) -> str:
        asked.append(question)
        return "no"

    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", no)
    ran = topics("delete", topic)
    assert ran.code == 1 and "nothing was changed" in ran.err
    assert asked == [f"Delete the topic {topic} with 0 offsets in 3 partitions, for ever? Type yes: "]
    assert topics("describe", topic).code == 0
    missing = topics("delete", topic, f"{topic}-none", "--yes")
    assert missing.code == 1 and topics("describe", topic).code == 0


def values(ran: Any) -> list[str]:
    assert (ran.code, ran.err) == (0, "")
    return [json.loads(line)["value"] for line in ran.out.splitlines()]


def test_tail_follows_one_key(services: Services, topics: Run, topic: str) -> None:
    own = partition_for(b"ann", 3)
    write(services, topic, (own, b"ann", b"1"), (own, b"bob", b"2"), (own, None, b"3"), ((own + 1) % 3, b"ann", b"4"))
    everywhere = topics("tail", topic, "--from", "earliest", "--key", "ann", "--limit", 2, "--json")
    assert sorted(values(everywhere)) == ["1", "4"]
    assert values(topics("tail", topic, "--key", "ann", "--hashed", "--limit", 1, "--json")) == ["1"]
    assert values(topics("tail", topic, "--key", "0x626f62", "--limit", 1, "--json")) == ["2"]
    assert values(topics("tail", topic, "--partition", (own + 1) % 3, "--limit", 1, "--json")) == ["4"]
    assert values(topics("tail", topic, "--from", "-10 minutes", "--key", "bob", "--limit", 1, "--json")) == ["2"]
    ran = topics("tail", topic, "--partition", 3, "--limit", 1)
    assert ran.code == 1 and "there is no partition 3" in ran.err and "give 0 to 2" in ran.err
    ran = topics("tail", topic, "--hashed")
    assert ran.code == 1 and "--hashed needs a key" in ran.err


def test_tail_finds_the_last_records_of_a_rare_key(services: Services, topics: Run, topic: str) -> None:
    write(services, topic, (0, b"rare", b"found"), *((0, b"often", b"v") for _ in range(500)))
    assert values(topics("tail", topic, "--key", "rare", "--limit", 1, "--json")) == ["found"]


def test_tail_decodes_with_a_registry(services: Services, topics: Run, topic: str, registry: str) -> None:
    number = Registry(registry).id(f"{topic}-value", AVRO, "AVRO")
    framed = b"\0" + number.to_bytes(4, "big") + b"\x54"
    write(services, topic, (0, framed, framed), (0, b"k", framed + b"!"))
    first, second = topics("tail", topic, "--limit", 2, "--registry", registry).out.splitlines()
    assert first.split("\t")[3:] == ['{"id": 42}', '{"id": 42}', "[key avro; value avro]"]
    assert second.split("\t")[4:] == [
        f"0x{framed.hex()}21",
        f"[value hex: not valid avro of the schema {number}: 1 bytes are left over after the value]",
    ]
    of_key = topics("tail", topic, "--limit", 1, "--registry", registry, "--key", '{"id": 42}', "--json")
    found = json.loads(of_key.out)
    assert (found["value"], found["value_format"], found["key_format"]) == ('{"id": 42}', "avro", "avro")
    (plain,) = topics("tail", topic, "--limit", 1, "--key", "k").out.splitlines()
    assert plain.endswith(f"[value hex: it begins like a record of the schema {number}; give the schema registry]")


def test_tail_ends_with_its_reader_while_the_topic_is_idle(services: Services, topic: str) -> None:
    """Its next write would tell it, too: but for days there may be nothing to write."""
    write(services, topic, (0, b"k", b"v"))
    words = [sys.executable, "-m", "penstock", "topics", "tail", topic, "--servers", services.kafka]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stderr
        assert process.stdout.readline().endswith("\tk\tv\n")
        process.stdout.close()
        try:
            assert (process.wait(PATIENCE), process.stderr.read()) == (PIPE_CLOSED, "")
        finally:
            process.kill()
