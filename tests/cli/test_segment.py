"""`penstock segment` with wrong arguments: refused before a database or Kafka is asked."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.segment.member_tables import delivery_sync

Command = Callable[..., Any]
NOBODY = ["--keyspace", "seg", "--hosts", "127.0.0.1:1"]
SERVERS = ["--servers", "127.0.0.1:1"]
DIGEST = hashlib.sha256(b"a key").hexdigest()


@pytest.fixture(autouse=True)
def _no_delivery(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **settings: object) -> None:
        raise AssertionError("a delivery began")

    monkeypatch.setattr(delivery_sync, "sync", refuse)


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["a"],
        ["a", "--to", "t"],
        ["a", "--full"],
        ["--to", "t", "--changes"],
        ["--every", "1 hour"],
    ],
)
def test_a_delivery_wants_a_segment_a_topic_and_a_mode(penstock: Command, words: list[str]) -> None:
    ran = penstock("segment", "sync", *words, *NOBODY, *SERVERS)
    assert ran == (
        1,
        "",
        "penstock: the segment, the topic or the mode is missing (segment sync). "
        "Next: give SEGMENT --to TOPIC and --full or --changes\n",
    )


def test_a_pause_that_is_not_a_duration_is_refused_before_the_first_delivery(penstock: Command) -> None:
    ran = penstock("segment", "sync", "a", "--to", "t", "--full", "--every", "often", *NOBODY, *SERVERS)
    assert ran.code == 1 and ran.err.startswith("penstock: --every is not a duration: 'often'")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sync", "a", "--to", "t", "--full", "--changes"], "--changes: not allowed with argument --full"),
        (["count", "a"], "the following arguments are required: --since"),
        (["count", "--since", "2026-01-01"], "the following arguments are required: SEGMENTS"),
        (["count", "a", "--since", "yesterday"], "'yesterday' is not a time such as 2026-05-31T12:00:00"),
        (["count", "a", "--since", "2026-01-01", "--until", "2026-02-30"], "argument --until: '2026-02-30'"),
        (["erase"], "the following arguments are required: PERSON"),
        (["serve", "extra"], "unrecognized arguments: extra"),
    ],
    ids=str,
)
def test_wrong_usage_is_told_with_the_option(penstock: Command, words: list[str], said: str) -> None:
    ran = penstock("segment", *words, *NOBODY)
    assert ran.code == 2 and said in ran.err


def test_each_action_wants_a_keyspace(penstock: Command) -> None:
    for words in (["tables"], ["count", "a", "--since", "2026-01-01"], ["sync"], ["erase", "ann"], ["serve"]):
        ran = penstock("segment", *words, "--hosts", "127.0.0.1:1")
        assert ran.code == 2 and "the following arguments are required: --keyspace" in ran.err


@pytest.mark.parametrize(
    "words", [["tables"], ["sync", "a", "--to", "t", "--full", *SERVERS]], ids=lambda words: words[0]
)
def test_without_hosts_the_database_of_the_root_is_wanted(tmp_path: Path, penstock: Command, words: list[str]) -> None:
    ran = penstock("segment", *words, "--keyspace", "seg", "--root", tmp_path)
    said = f"penstock: No database runs here ({tmp_path}). Next: run: penstock up, or give --hosts HOST:PORT\n"
    assert ran == (1, "", said)


@pytest.mark.parametrize("words", [["sync", "a", "--to", "t", "--full"], ["serve"]], ids=lambda words: words[0])
def test_without_servers_the_kafka_of_the_root_is_wanted(tmp_path: Path, penstock: Command, words: list[str]) -> None:
    ran = penstock("segment", *words, *NOBODY, "--root", tmp_path)
    assert ran == (
        1,
        "",
        f"penstock: No Kafka runs here ({tmp_path}). Next: run: penstock up, or give --servers HOST:PORT\n",
    )


@pytest.mark.parametrize("key", ["", "secret", DIGEST[:-1], f"{DIGEST}0", DIGEST.replace(DIGEST[0], "g")])
def test_a_key_of_the_server_is_a_digest(penstock: Command, key: str) -> None:
    ran = penstock("segment", "serve", *NOBODY, *SERVERS, f"--key={key}", "--port", "0")
    assert ran.code == 1
    assert ran.err.startswith(f"penstock: --key {key} is not 64 hexadecimal digits (segment serve). Next: make a key")


def test_the_digest_of_a_key_may_be_in_capitals(penstock: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    monkeypatch.setattr("penstock.serve.access.callers.ApiKeys", lambda keys: found.extend(keys))
    monkeypatch.setattr("penstock.cli.segment.Access.of", lambda *args, **settings: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        penstock("segment", "serve", *NOBODY, *SERVERS, "--key", DIGEST.upper(), "--key", DIGEST)
    assert [one.digest for one in found] == [bytes.fromhex(DIGEST)] * 2


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_a_server_that_others_reach_wants_a_key(penstock: Command, host: str) -> None:
    ran = penstock("segment", "serve", *NOBODY, *SERVERS, "--host", host)
    assert ran.code == 1
    assert ran.err.startswith(f"penstock: without keys, everybody who reaches {host} could deliver to any topic")
