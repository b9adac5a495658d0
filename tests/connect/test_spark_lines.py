"""What processes that start meanwhile say on standard error: lines of the log, without secrets, and a count."""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from waiting import until

from penstock.connect.worker import spark_lines
from penstock.connect.worker.secrets import HidingFormatter, Secrets
from penstock.connect.worker.spark_lines import LONGEST, SparkLines

SAYS = """
import os, sys
os.write(2, b"at its start: hunter2\\n")
sys.stdin.read()
os.write(2, b"\\xff\\n\\n" + b"x" * %d + b"\\nlast")
"""


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """What a worker's log has, with its filter; only there, as other tests leave handlers to the root."""
    monkeypatch.setattr(spark_lines.log, "propagate", False)
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    handler.setFormatter(HidingFormatter("%(message)s", Secrets({"hunter2": "${env:PASSWORD}"})))
    spark_lines.log.addHandler(handler)
    yield text
    spark_lines.log.removeHandler(handler)


def test_each_line_is_logged_without_secrets_and_counted(
    written: io.StringIO, capfd: pytest.CaptureFixture[str]
) -> None:
    said = SparkLines()
    with said.caught():
        process = subprocess.Popen([sys.executable, "-c", SAYS % (LONGEST + 7)], stdin=subprocess.PIPE)
    os.write(2, b"of this process\n")
    until(lambda: said.count == 1, "first line")
    process.communicate()
    until(lambda: said.count == 5, "lines of a process that goes on after the start")
    lines = [
        "Spark: at its start: ${env:PASSWORD}",
        "Spark: \\xff",
        f"Spark: {'x' * LONGEST}",
        "Spark: xxxxxxx",
        "Spark: last",
    ]
    assert written.getvalue().splitlines() == lines
    assert capfd.readouterr().err == "of this process\n"
    (metric,) = said.collect()
    assert [(sample.name, sample.value) for sample in metric.samples] == [("penstock_spark_lines_total", 5)]


def test_standard_error_is_its_own_again_after_a_failed_start(capfd: pytest.CaptureFixture[str]) -> None:
    said = SparkLines()
    with pytest.raises(RuntimeError, match="no Java"), said.caught():
        raise RuntimeError("no Java")
    os.write(2, b"the error\n")
    assert capfd.readouterr().err == "the error\n" and said.count == 0
