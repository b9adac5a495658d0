"""The files of a checkpoint on this machine, and the positions in them as users see them; no Spark runs here."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from penstock.checkpoint.checkpoint_folder import Local
from penstock.checkpoint.hadoop_folder import Hadoop, store_of
from penstock.durations import EPOCH
from penstock.errors import PenstockError
from penstock.kafka.source_format import TopicOffsets
from penstock.run.positions import _position, iso, moment

SPARK: Any = None


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("checkpoints/a", "checkpoints/a"),
        ("/data/a", "/data/a"),
        (Path("file:/data/a"), "file:/data/a"),
        ("file:/data/a", "/data/a"),
        ("file:///data/a", "/data/a"),
        ("file:////data/a", "/data/a"),
        ("./a:b", "./a:b"),
    ],
)
def test_a_path_or_a_file_uri_is_a_folder_of_this_machine(given: str | Path, path: str) -> None:
    assert store_of(given, SPARK) == Local(Path(path))


@pytest.mark.parametrize("uri", ["hdfs://name:8020/a", "s3a://bucket/a/", "abfss://a@b/c//"])
def test_another_uri_is_one_of_hadoop(uri: str) -> None:
    assert store_of(uri, SPARK) == Hadoop(SPARK, uri.rstrip("/"))


def test_files_are_written_whole_and_with_their_folders(tmp_path: Path) -> None:
    folder = Local(tmp_path / "new")
    assert folder.read("offsets/0") is None and folder.numbers("offsets") == []
    for text in ("a longer text: ü", "short", ""):
        folder.write("offsets/0", text)
        assert folder.read("offsets/0") == text
    assert [path.name for path in (tmp_path / "new" / "offsets").iterdir()] == ["0"]


def test_numbers_are_those_of_batches_in_order(tmp_path: Path) -> None:
    folder = Local(tmp_path)
    for name in ("10", "9", "0", ".9.before", ".9.crc", "9.tmp", "-1", "x"):
        folder.write(f"offsets/{name}", "")
    assert folder.numbers("offsets") == [0, 9, 10]


def test_a_file_in_place_of_a_folder_has_no_files(tmp_path: Path) -> None:
    (tmp_path / "offsets").touch()
    assert Local(tmp_path).numbers("offsets") == [] and Local(tmp_path).read("offsets/0") is None


def test_bytes_that_are_not_text_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "metadata").write_bytes(b"{\xff}")
    assert Local(tmp_path).read("metadata") == "{\ufffd}"


def test_what_cannot_be_used_is_named_and_nothing_half_written_is_left(tmp_path: Path) -> None:
    (tmp_path / "metadata").mkdir()
    (tmp_path / "metadata" / "inner").touch()
    folder = Local(tmp_path)
    acts: list[Callable[[], object]] = [lambda: folder.read("metadata"), lambda: folder.write("metadata", "x")]
    for act in acts:
        with pytest.raises(PenstockError, match="the checkpoint cannot be used: Is a directory") as raised:
            act()
        assert raised.value.where == str(tmp_path / "metadata")
    assert [path.name for path in tmp_path.iterdir()] == ["metadata"]
    (tmp_path / "file").touch()
    with pytest.raises(PenstockError, match=r"the checkpoint cannot be used: .*give a folder that this user can"):
        folder.write("file/0", "x")


@pytest.mark.parametrize(
    ("offset", "position"),
    [
        (None, "none yet"),
        ("-", "none yet"),
        ('{"logOffset":5}', '{"logOffset":5}'),
        ("not JSON", "not JSON"),
        ("x" * 80, "x" * 80),
        ("x" * 81, "x" * 77 + "..."),
        ('{"generation":0,"time":0,"planned":0,"seek":"earliest"}', "earliest"),
        ('{"generation":1,"time":9223372036854775807,"planned":0}', "9223372036854775807"),
        ('{"t":{"1":7,"0":5}}', "0: 5, 1: 7"),
        ('{"a":{"0":1},"b":{"0":1}}', '{"a":{"0":1},"b":{"0":1}}'),
        ("[]", "[]"),
        ("null", "null"),
    ],
)
def test_a_position_in_words(offset: str | None, position: str) -> None:
    assert _position(offset) == (position, None)


def test_a_position_of_a_log_is_its_time_with_its_age() -> None:
    then = datetime.now(UTC) - timedelta(hours=3)
    micros = (then - EPOCH) // timedelta(microseconds=1)
    position, lag = _position(json.dumps({"generation": 1, "time": 5, "planned": 0, "fresh": micros}))
    assert position == iso(then) and lag is not None
    assert timedelta(hours=3) <= lag < timedelta(hours=3, minutes=1)
    snapshot = json.dumps({"generation": 1, "time": micros, "planned": 0, "snapshot": {}})
    assert _position(snapshot) == (f"in a snapshot of the table, then from {iso(then)}", None)


@given(st.integers(0, 4_102_444_800_000))
def test_a_position_of_a_topic_that_was_set_to_a_time_is_that_time(millis: int) -> None:
    position, lag = _position(json.dumps(TopicOffsets("t", {}, time=millis).offset()))
    assert (datetime.fromisoformat(position) - EPOCH) // timedelta(milliseconds=1) == millis and lag is None


@given(st.integers(0, 1_700_000_000_000_000))
def test_a_time_that_is_shown_can_be_given_again(micros: int) -> None:
    time = EPOCH + timedelta(microseconds=micros)
    found = moment(iso(time))
    assert found is not None and timedelta(0) <= time - found < timedelta(milliseconds=1)


@pytest.mark.parametrize(
    "text", ["", "now", "Latest", "-", "-2", "--2 hours", "12:00", "-10000000 weeks", "2026-02-30"]
)
def test_another_time_is_refused_with_examples(text: str) -> None:
    with pytest.raises(PenstockError, match=r"is not a time.*use \"earliest\", \"latest\""):
        moment(text)
