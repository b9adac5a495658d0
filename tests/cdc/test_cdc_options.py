"""The options of the change log source, as Spark passes them: their meaning and their errors."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock.cdc import cdc_options
from penstock.cdc.cdc_options import KNOWN, CdcSettings, settings
from penstock.cdc.generations import micros
from penstock.errors import PenstockError

GIVEN = {"table": "shop.orders", "hosts": "db"}


def test_only_the_table_and_the_hosts_are_needed() -> None:
    made = settings(GIVEN)
    assert (made.name, made.start, made.rows, made.latency, made.bad_values) == (
        *("shop.orders", "earliest", "changes", "safe", "stop"),
    )
    assert (made.images.before, made.images.after, made.lossy, made.start_micros()) == ("none", "none", False, None)
    assert made.confidence == timedelta(seconds=30) and made.access.endpoints() == [("db", 9042)]


def test_every_option_has_its_place_whatever_the_case_of_its_name() -> None:
    given: dict[str, str] = {
        "TABLE": "shop.orders",
        "Hosts": "db:1",
        "name": "orders",
        "before": "full",
        "AFTER": "full",
        "start": "2026-01-31T12:00:00",
        "latency": "low",
        "bad_values": "problem",
        "failOnDataLoss": "FALSE",
        "confidence": "5 seconds",
        "max_time": "10 minutes",
        "patience": "1 hour",
        "max_rows": "7",
        "partitions": "3",
        "page_size": "11",
        "user": "ann",
        "password": "s3cret",
        "local_dc": "near",
        "consistency": "ONE",
        "ca": "ca.pem",
        "certificate": "own.pem",
        "key": "own.key",
        "tls": "True",
        "verify_hostname": "false",
        "WRITE_TIMES": "TRUE",
        "signals": "signals.json",
        "chunk_rows": "9",
        "whole_rows": "false",
    }
    made = settings(given)
    # Packed changes have no columns that may have a problem.
    assert {name.lower() for name in given} | {"rows", "packed"} == set(KNOWN)
    assert (made.name, made.images.before, made.images.after, made.latency) == ("orders", "full", "full", "low")
    assert (made.write_times, made.whole_rows, made.signals, made.chunk_rows) == (True, False, "signals.json", 9)
    assert (made.bad_values, made.lossy, made.max_rows, made.partitions, made.page_size) == ("problem", True, 7, 3, 11)
    assert (made.confidence, made.max_time, made.patience) == (
        *(timedelta(seconds=5), timedelta(minutes=10), timedelta(hours=1)),
    )
    access = made.access
    assert (access.user, access.local_dc, access.consistency, access.tls) == ("ann", "near", "ONE", True)
    assert (access.ca, access.certificate, access.key, access.verify_hostname) == (
        "ca.pem",
        "own.pem",
        "own.key",
        False,
    )
    assert "s3cret" not in repr(made)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"tabel": "x"}, "the change log source has no option 'tabel'. .*did you mean 'table'"),
        ({"zzz": "x"}, "has no option 'zzz'. .*use one of table, hosts, name, before, after"),
        ({"table": ""}, r'needs the option \'table\'. .*\.option\("table", "shop.orders"\)'),
        ({"hosts": ""}, "needs the option 'hosts'"),
        ({"hosts": "db:x"}, "'db:x' is not a valid address"),
        ({"max_rows": "0"}, r"max_rows is not a positive integer: '0'. .*\.option\(\"max_rows\", \"1000\"\)"),
        ({"partitions": "-1"}, "partitions is not a positive integer: '-1'"),
        ({"page_size": "1e3"}, "page_size is not a positive integer: '1e3'"),
        ({"before": "some"}, "before cannot be 'some'. .*use one of none, full"),
        ({"after": "Full"}, "after cannot be 'Full'"),
        ({"rows": "all"}, "rows cannot be 'all'. .*use one of changes, log"),
        ({"latency": "fast"}, "latency cannot be 'fast'. .*use one of safe, low"),
        ({"bad_values": "skip"}, "bad_values cannot be 'skip'. .*use one of stop, problem"),
        ({"failOnDataLoss": "no"}, "failondataloss cannot be 'no'. .*use one of true, false"),
        ({"tls": "1"}, "tls cannot be '1'"),
        ({"confidence": "soon"}, "is not a duration"),
        ({"start": "yesterday"}, 'start cannot be \'yesterday\'. .*"earliest", "latest", "snapshot" or a time'),
        ({"rows": "log", "start": "snapshot"}, 'start "snapshot" does not work with rows "log"'),
    ],
)
def test_a_wrong_option_is_told_with_what_to_write(given: dict[str, str], said: str) -> None:
    with pytest.raises(PenstockError, match=said):
        settings(GIVEN | given)


@pytest.mark.parametrize(
    ("start", "ago"),
    [("latest", timedelta(seconds=30)), ("snapshot", timedelta(seconds=30)), ("2026-01-31T11:00:00+01:00", None)],
)
def test_a_start_is_a_time(start: str, ago: timedelta | None, monkeypatch: pytest.MonkeyPatch) -> None:
    now = datetime(2026, 1, 31, 10, 0, 0, 7, UTC)
    monkeypatch.setattr(cdc_options, "now_micros", lambda: micros(now))
    expected = datetime(2026, 1, 31, 10, tzinfo=UTC) if ago is None else now - ago
    made: Any = settings(GIVEN | {"start": start})
    assert isinstance(made, CdcSettings) and made.start_micros() == micros(expected)
