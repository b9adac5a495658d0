"""`penstock topics` as users run it, on a real broker."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from kafka_topics import new_topic, new_topics
from waiting import PATIENCE

from penstock.kafka.record_view import iso_time
from penstock.local.services import Services

NOT_TEXT = b"\xff\xfe"


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "penstock", "topics", *map(str, arguments)]


def topics(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), capture_output=True, text=True, check=False, timeout=PATIENCE)


def lines(services: Services, *arguments: object) -> list[str]:
    answer = topics(*arguments, "--root", services.root)
    assert (answer.returncode, answer.stderr) == (0, "")
    return answer.stdout.splitlines()


def objects(services: Services, *arguments: object) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines(services, *arguments, "--json")]


def values(services: Services, *arguments: object) -> list[Any]:
    return [one["value"] for one in objects(services, "tail", *arguments)]


@pytest.fixture
def topic(services: Services) -> Iterator[str]:
    """A new topic with two partitions."""
    with new_topic(services.kafka, "topics", 2) as name:
        yield name


def write(services: Services, topic: str, *sent: tuple[Any, ...], commit: bool | None = None) -> None:
    """Write records of partition, time, key, value and optional headers; with `commit`, in a transaction."""
    transaction = {} if commit is None else {"transactional.id": uuid.uuid4().hex}
    producer = Producer({"bootstrap.servers": services.kafka, **transaction})
    if commit is not None:
        producer.init_transactions(20)
        producer.begin_transaction()
    for partition, time, key, value, *headers in sent:
        producer.produce(topic, value, key, partition=partition, timestamp=time, headers=headers)
    assert producer.flush(10) == 0
    if commit is not None:
        (producer.commit_transaction if commit else producer.abort_transaction)(20)


def test_list(services: Services, topic: str) -> None:
    assert [topic, "2"] in [line.split() for line in lines(services, "list")]
    assert {"topic": topic, "partitions": 2} in objects(services, "list")
    assert lines(services, "list", "--servers", services.kafka) == lines(services, "list")


@pytest.mark.slow
def test_count_counts_records_and_not_offsets(services: Services, topic: str) -> None:
    write(services, topic, *[(n % 2, n + 1, None, b"v") for n in range(7)])
    write(services, topic, (1, 8, None, b"committed"), commit=True)
    write(services, topic, (1, 9, None, b"aborted"), commit=False)
    assert [line.split() for line in lines(services, "count", topic)] == [
        ["partition", "records", "offsets"],
        ["0", "4", "4"],
        ["1", "4", "7"],
        ["all", "8", "11"],
    ]
    uncommitted = objects(services, "count", topic, "--uncommitted")
    assert [one["records"] for one in uncommitted] == [4, 5, 9]
    assert uncommitted[-1] == {"topic": topic, "partition": "all", "records": 9, "offsets": 11}


@pytest.mark.slow
def test_a_batch_that_decompresses_to_too_much_is_not_read_unless_allowed(services: Services, topic: str) -> None:
    producer = Producer({"bootstrap.servers": services.kafka, "compression.type": "zstd", "message.max.bytes": 4 << 20})
    producer.produce(topic, bytes(3 << 20), partition=0)
    assert producer.flush(10) == 0
    asked = ("tail", topic, "--limit", 1, "--root", services.root)
    refused = topics(*asked, "--max-decompressed-bytes", 1 << 20)
    assert refused.returncode == 1
    assert f"{topic}" in refused.stderr and "give --max-decompressed-bytes 4194304" in refused.stderr
    assert topics(*asked, "--max-decompressed-bytes", 4 << 20).stdout.startswith("0\t0\t")


def test_tail_shows_a_record_a_line(services: Services, topic: str) -> None:
    write(
        services,
        topic,
        (0, 1_780_000_000_123, b"k\xc3\xa9y", b"two\nlines \x1b[31m"),
        (1, 1_780_000_000_124, None, NOT_TEXT),
        (0, 1_780_000_000_125, b"k", None),
    )
    assert lines(services, "tail", topic, "--limit", 3) == [
        "0\t0\t2026-05-28T20:26:40.123Z\tkéy\ttwo\\nlines \\x1b[31m",
        "1\t0\t2026-05-28T20:26:40.124Z\t(null)\t0xfffe\t[value hex: not UTF-8]",
        "0\t1\t2026-05-28T20:26:40.125Z\tk\t(tombstone)",
    ]


@pytest.mark.slow
def test_tail_as_json(services: Services, topic: str) -> None:
    write(services, topic, (0, 1, b"k", b"two\nlines", ("a", b"1"), ("b", None)), (1, 2, NOT_TEXT, None))
    first, second = objects(services, "tail", topic, "--limit", 2)
    assert first == {
        "partition": 0,
        "offset": 0,
        "timestamp": "1970-01-01T00:00:00.001Z",
        "key": "k",
        "value": "two\nlines",
        "key_format": "text",
        "value_format": "text",
        "key_problem": "",
        "value_problem": "",
        "headers": [["a", "1"], ["b", None]],
        "size": 10,
        "truncated": False,
    }
    assert (second["key"], second["value"]) == ("0xfffe", None)


@pytest.mark.slow
def test_where_tail_begins(services: Services, topic: str) -> None:
    write(services, topic, *[(n // 10, 1_000_000 + n * 1000, None, b"%d" % n) for n in range(20)])
    assert values(services, topic, "--from", "earliest", "--limit", 20).count("3") == 1
    assert values(services, topic, "--limit", 12) == [str(n) for n in range(8, 20)]
    assert values(services, topic, "--from", "1970-01-01T00:16:57", "--limit", 3) == ["17", "18", "19"]
    assert values(services, topic, "--from", "1970-01-01T01:16:57+01:00", "--limit", 1) == ["17"]


@pytest.mark.slow
def test_tail_finds_the_last_records_behind_gaps(services: Services, topic: str) -> None:
    write(services, topic, *[(0, n + 1, None, b"%d" % n) for n in range(5)])
    write(services, topic, *[(0, 10, None, b"aborted") for n in range(20)], commit=False)
    assert values(services, topic, "--limit", 3) == ["2", "3", "4"]
    assert values(services, topic, "--limit", 1, "--uncommitted") == ["aborted"]


def test_tail_follows_until_ctrl_c(services: Services, topic: str) -> None:
    write(services, topic, *[(0, n + 1, None, b"old %d" % n) for n in range(12)])
    tail = subprocess.Popen(
        command("tail", topic, "--servers", services.kafka),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert tail.stdout and tail.stderr
        shown = [tail.stdout.readline().split("\t")[-1].rstrip() for _ in range(10)]
        assert shown == [f"old {n}" for n in range(2, 12)]
        write(services, topic, (1, 20, b"k", b"new"))
        assert tail.stdout.readline().endswith("\tk\tnew\n")
        tail.send_signal(signal.SIGINT)
        assert tail.wait(PATIENCE) == 130
        assert (tail.stdout.read(), tail.stderr.read()) == ("", "")
    finally:
        tail.kill()
        tail.communicate()


@pytest.mark.slow
def test_a_reader_that_has_seen_enough_is_no_error(services: Services, topic: str) -> None:
    write(services, topic, *[(0, n + 1, None, bytes(1000)) for n in range(2000)])
    tail = subprocess.Popen(
        command("tail", topic, "--from", "earliest", "--servers", services.kafka),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert tail.stdout and tail.stderr
    try:
        assert tail.stdout.readline()
        tail.stdout.close()
        assert tail.wait(PATIENCE) == 141
        assert tail.stderr.read() == ""
    finally:
        tail.kill()
        tail.wait()
        tail.stderr.close()


@pytest.mark.slow
def test_a_topic_that_is_not_there(services: Services, topic: str) -> None:
    answer = topics("count", "nowhere", "--root", services.root)
    assert (answer.returncode, answer.stderr) == (
        1,
        "penstock: there is no topic nowhere. Next: see the names: penstock topics list\n",
    )
    assert "nowhere" not in "".join(lines(services, "list"))
    near = topics("count", f"{topic}s", "--root", services.root)
    assert f"did you mean {topic}" in near.stderr


@pytest.mark.slow
@pytest.mark.parametrize("start", [[], ["--from", "latest"]])
def test_tail_waits_for_a_topic_and_shows_all_of_it(services: Services, start: list[str]) -> None:
    name = f"orders-{uuid.uuid4().hex[:8]}"
    with new_topics(services.kafka, [f"{name}x"], 1):
        tail = subprocess.Popen(
            command("tail", name, "--limit", 12, *start, "--servers", services.kafka),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert tail.stderr
        said = tail.stderr.readline()
        assert said == f"there is no topic {name} yet, waiting for it until Ctrl-C; did you mean {name}x?\n"
        assert name not in [line.split()[0] for line in lines(services, "list")]
        with new_topics(services.kafka, [name], 1):
            write(services, name, *((0, 1, None, str(number)) for number in range(12)))
            out, more = tail.communicate(timeout=PATIENCE)
    assert (tail.returncode, more) == (0, "")
    assert [line.rsplit("\t", 1)[1] for line in out.splitlines()] == [str(number) for number in range(12)]


def test_no_kafka(tmp_path: Path) -> None:
    answer = topics("list", "--root", tmp_path)
    assert answer.returncode == 1
    assert (
        answer.stderr
        == f"penstock: No Kafka runs here ({tmp_path}). Next: run: penstock up, or give --servers HOST:PORT\n"
    )
    answer = topics("list", "--servers", "127.0.0.1:1")
    assert answer.returncode == 1
    assert answer.stderr == (
        "penstock: Kafka at 127.0.0.1:1 cannot be reached: Connection refused. "
        "Next: check the address and its port, and that the broker runs (penstock status shows the local one)\n"
    )


@pytest.mark.slow_after(2)
@pytest.mark.parametrize(
    "arguments",
    [(), ("tail",), ("list", "--servers", "x"), ("tail", "t", "--from", "now"), ("tail", "t", "--limit", "0")],
)
def test_wrong_usage_exits_with_2(arguments: tuple[str, ...]) -> None:
    answer = topics(*arguments)
    assert answer.returncode == 2
    assert answer.stderr.startswith("usage: penstock topics")


@pytest.mark.parametrize(("ms", "text"), [(-1, "1969-12-31T23:59:59.999Z"), (2**62, str(2**62))])
def test_times_at_the_edge(ms: int, text: str) -> None:
    assert iso_time(ms) == text


def test_general_help_loads_no_arrow() -> None:
    code = "import sys; from penstock.cli.main import _parser; _parser(''); assert 'pyarrow' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
