"""`penstock ingest` before it serves: lines for the file of settings, and settings that are refused."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, strategies as st

from penstock.cli import ingest
from penstock.cli.main import _parser

Command = Callable[..., Any]
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)


@given(NAMES)
@example("\x7f")
def test_any_name_of_a_key_is_read_back_from_the_lines_for_the_file(name: str) -> None:
    shown, _, lines = ingest._key_lines(name).partition("\n\nFor the file:\n")
    (key,) = tomllib.loads(lines)["keys"]
    digest = hashlib.sha256(shown.rpartition(" ")[2].encode()).hexdigest()
    assert key == {"name": name, "sha256": digest, "topics": ["*"]}


@given(NAMES, st.lists(st.from_regex(r"\A[a-z.]{1,9}\Z"), max_size=3), st.lists(NAMES, max_size=2))
def test_a_publishable_key_has_its_topics_and_origins(name: str, topics: list[str], origins: list[str]) -> None:
    words = ["ingest", "--new-key", name.replace("-", "_", 1), "--publishable", "--topics", ",".join(topics)]
    for origin in origins:
        words += [f"--allow-origin={origin}"]
    args = _parser("ingest").parse_args(words)
    shown, _, lines = ingest._publishable_lines(args).partition("\n\nFor the file:\n")
    (key,) = tomllib.loads(lines)["keys"]
    assert key["publishable"] is True and key["name"] == args.new_key
    assert key["topics"] == (topics or ["TOPIC"]) and key["origins"] == (origins or ["https://YOUR.SITE"])
    assert f"Pages send to /events/{key['topics'][0]}?api_key=pk_" in shown


def test_two_keys_differ(penstock: Command) -> None:
    assert penstock("ingest", "--new-key", "a").out != penstock("ingest", "--new-key", "a").out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--topics", " , "], "no topic"),
        (["--topics", "a", "--listen", "nowhere"], "nowhere"),
        (["--topics", "a", "--listen", "127.0.0.1:99999"], "127.0.0.1:99999"),
        (["--topics", "a", "--schemas", "missing-folder"], "missing-folder"),
        (["--topics", "a", "--workers", "0"], "workers"),
        (["missing.toml"], "missing.toml"),
    ],
)
def test_wrong_settings_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, penstock: Command, options: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = penstock("ingest", "--servers", "127.0.0.1:1", *options)
    assert (ran.code, ran.out) == (1, "") and ran.err.count("\n") == 1
    assert said in ran.err and ". Next: " in ran.err


@pytest.mark.parametrize("name", ["delivery", "delivery.timeout.ms", "topic", "kafka.servers"])
def test_settings_of_kafka_that_ingest_makes_itself_are_refused(tmp_path: Path, penstock: Command, name: str) -> None:
    file = tmp_path / "ingest.toml"
    file.write_text(f'servers = "127.0.0.1:1"\n[topics.a]\n[kafka]\n"{name}" = "1"\n')
    ran = penstock("ingest", file)
    assert (ran.code, ran.out) == (1, "")
    plain = name.removeprefix("kafka.")
    assert f"{plain} cannot be set here ([kafka]). Next: set servers, or kafka in [timeouts]\n" in ran.err


def test_without_servers_the_kafka_of_the_root_is_wanted(tmp_path: Path, penstock: Command) -> None:
    ran = penstock("ingest", "--topics", "a", "--root", tmp_path)
    assert ran.code == 1 and f"No Kafka runs here ({tmp_path})" in ran.err


def test_the_number_of_workers_is_a_number(penstock: Command) -> None:
    ran = penstock("ingest", "--workers", "two")
    assert ran.code == 2 and "argument --workers: invalid int value: 'two'" in ran.err
