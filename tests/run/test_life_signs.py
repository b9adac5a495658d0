"""What a run tells, as text, as JSON and on a terminal."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from checkpoints import forget_last_commit
from pyspark.sql import SparkSession

import penstock as ps
from penstock import files
from penstock.process import log_lines
from penstock.process.log_lines import JsonLogLines, Terminal
from penstock.run import life_signs
from penstock.run.life_signs import LifeSigns, Observer, Observers

BATCH = {"batchId": 3, "numInputRows": 20, "batchDuration": 1234, "inputRowsPerSecond": 12.5}


@pytest.fixture
def lines() -> Iterator[Terminal]:
    """Takes the lines of the log, without times."""
    logger = logging.getLogger("penstock")
    before = logger.handlers[:], logger.level, logger.propagate
    terminal = Terminal(io.StringIO())
    logger.handlers[:], logger.propagate = [terminal], False
    logger.setLevel(logging.INFO)
    yield terminal
    logger.handlers[:], logger.propagate = before[0], before[2]
    logger.setLevel(before[1])


def text(lines: Terminal) -> str:
    assert isinstance(lines.stream, io.StringIO)
    return lines.stream.getvalue()


def test_the_first_rows_are_told_and_then_a_summary_now_and_then(
    lines: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    signs = LifeSigns("shop")
    signs.idle("shop.orders")
    signs.idle("shop.orders")
    signs.batch("shop.orders", BATCH)
    signs.batch("shop.orders", BATCH)
    assert text(lines) == ("shop.orders: nothing to read yet; waiting\nshop.orders: first 20 rows after 0.0 s\n")
    monkeypatch.setattr(life_signs, "PACE", 0.0)
    signs.batch("shop.orders", BATCH)
    signs.idle("shop.orders")
    signs.stopping()
    signs.ended()
    summary, stopping, ended = text(lines).splitlines()[2:]
    assert summary.startswith("shop: 60 rows so far, ")
    assert stopping == "shop: stopping after the batch in flight; Ctrl-C or SIGTERM again ends it at once"
    assert ended == "shop: ended after 0 s and 60 rows; the next run goes on from here"


def test_the_rows_of_a_batch_that_was_cut_are_not_counted(lines: Terminal) -> None:
    signs = LifeSigns("shop")
    signs.batch("shop.orders", BATCH)
    signs.cut("shop.orders")
    signs.ended()
    assert text(lines).splitlines()[1:] == [
        "shop.orders: stopped within a batch; the next start runs it again",
        "shop: ended after 0 s; the next run goes on from here",
    ]


def test_each_batch_is_a_line_if_asked_for(lines: Terminal) -> None:
    LifeSigns("shop", verbose=True).batch("shop.orders", BATCH)
    assert text(lines) == "shop.orders  batch 3: 20 rows in 1.23 s\n"


def test_a_line_of_json_has_its_values(lines: Terminal) -> None:
    lines.setFormatter(JsonLogLines())
    signs = LifeSigns("shop")
    signs.batch("shop.orders", BATCH)
    signs.say('a "warning"\nof two lines')
    first, second = map(json.loads, text(lines).splitlines())
    assert first.pop("ts").endswith("Z")
    assert first.pop("msg").startswith("shop.orders: first 20 rows after ")
    about = {"pipeline": "shop", "query": "shop.orders", "batch": 3, "rows": 20, "seconds": 1.234}
    assert first == {"level": "info", "event": "first"} | about
    assert (second["level"], second["msg"], second["event"]) == ("warning", 'a "warning"\nof two lines', "warning")


def test_a_terminal_has_one_line_that_changes(lines: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    signs = LifeSigns("shop", terminal=lines)
    signs.batch("shop", BATCH)
    signs.batch("shop", BATCH)
    signs.say("careful")
    signs.ended()
    first, status, rest = text(lines).partition("shop: 20 rows, 12/s; the last batch took 1.23 s"[:39])
    assert first == "shop: first 20 rows after 0.0 s\n" and status
    again = "shop: 40 rows, 12/s; the last batch took 1.23 s"[:39]
    assert rest == (
        f"\r\x1b[2K{again}\r\x1b[2Kcareful\n{again}\r\x1b[2K"
        "shop: ended after 0 s and 40 rows; the next run goes on from here\n"
    )


def test_a_query_tells_what_it_reads_and_from_where(spark: SparkSession, tmp_path: Path, lines: Terminal) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    (source / "lines.txt").write_text("a\nb\n")
    query = ps.write(spark.readStream.text(str(source)), files.sink(out))
    signs = LifeSigns("shop")
    query.claim(tmp_path / "checkpoint")
    signs.begins("shop.lines", query, tmp_path / "checkpoint")
    signs.begins("shop.lines", query, tmp_path / "checkpoint")
    assert text(lines) == f"shop.lines: reads text path {source}; writes to files {out}\n"
    query.start(checkpoint=tmp_path / "checkpoint", trigger="once").awaitTermination()
    LifeSigns("shop").begins("shop.lines", query, tmp_path / "checkpoint")
    begins = f'reads text path {source}, from {{"logOffset":0}}; writes'
    assert begins in text(lines)
    # A batch that was planned and did not end is read again.
    (source / "more.txt").write_text("c\n")
    query.start(checkpoint=tmp_path / "checkpoint", trigger="once").awaitTermination()
    forget_last_commit(tmp_path / "checkpoint")
    LifeSigns("again").begins("shop.lines", query, tmp_path / "checkpoint")
    assert text(lines).count(begins) == 2


def test_processes_take_the_form_from_their_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(log_lines.FORM, "json")
    assert isinstance(log_lines.begin().formatter, JsonLogLines)
    monkeypatch.delenv(log_lines.FORM)
    assert not isinstance(log_lines.begin().formatter, JsonLogLines)
    assert len(logging.getLogger("penstock").handlers) == 1


FULL = """
import logging
import resource
from penstock.process.log_lines import begin

begin()
logger = logging.getLogger("penstock")
logger.warning("before")
ends = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (100, ends))
for number in range(1000):
    logger.warning("a line of some length while nothing can be written: %d", number)
resource.setrlimit(resource.RLIMIT_FSIZE, (ends, ends))
logger.warning("after")
logger.warning("end")
"""


@pytest.mark.parametrize("form", ["text", "json"])
def test_lines_that_could_not_be_written_are_told_of_once_there_is_room(form: str, tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        told = {**os.environ, log_lines.FORM: form}
        subprocess.run([sys.executable, "-c", FULL], check=True, stderr=log, env=told)
    before, *written, missing, after, end = (tmp_path / "log").read_text().splitlines()
    assert "before" in before and "after" in after and "end" in end
    said = re.search("([0-9]+) lines of this log are missing here, .*: File too large", missing)
    assert said and int(said[1]) + len(written) == 1000
    if form == "json":
        assert json.loads(missing)["missing"] == int(said[1])


class Narrow(io.StringIO):
    """Has room for texts of this length."""

    room = 1000

    def write(self, text: str) -> int:
        if len(text) > self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(text)


def test_the_count_of_missing_lines_is_kept_until_it_can_be_told() -> None:
    lines = Terminal(stream := Narrow())
    stream.room = 1
    for _ in range(3):
        lines.handle(logging.makeLogRecord({"msg": "lost"}))
    stream.room = 1000
    lines.handle(logging.makeLogRecord({"msg": "after"}))
    assert [line for line in stream.getvalue().splitlines() if line] == [
        "3 lines of this log are missing here, as they could not be written: No space left on device",
        "after",
    ]


class Broken(Observer):
    """Takes no batch."""

    def batch(self, name: str, batch: Mapping[str, Any]) -> None:
        raise KeyError(batch["batchId"])


def test_an_observer_that_fails_is_logged_once_and_ends_no_run(lines: Terminal) -> None:
    observers = Observers(Broken(), LifeSigns("shop", verbose=True))
    for number in (3, 4):
        observers.batch("shop.orders", BATCH | {"batchId": number})
    said = text(lines)
    assert [line for line in said.splitlines() if line.startswith("shop.orders")] == [
        "shop.orders  batch 3: 20 rows in 1.23 s",
        "shop.orders  batch 4: 20 rows in 1.23 s",
    ]
    assert said.count("Broken cannot take what happens in the run, which goes on; report this: 3") == 1
    assert "Traceback" in said


def test_a_failed_query_is_logged_if_others_run_on(lines: Terminal) -> None:
    signs = LifeSigns("shop")
    for count, name in enumerate(("shop.a", "shop.b")):
        signs._plans[name] = ()
        signs.query_failed("shop.a", "a worker died")
        assert (
            text(lines).count("a worker died; the other queries finish their batches before all start again") == count
        )
