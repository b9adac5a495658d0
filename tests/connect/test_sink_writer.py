"""What a sink's task tells of records that it leaves out."""

from __future__ import annotations

import logging

import pyarrow as pa
import pytest

from penstock.connect.records.deserializers import JsonBytes
from penstock.connect.sinks.cql.destination import CqlDestination
from penstock.connect.sinks.cql.properties import NAMES
from penstock.connect.sinks.cql.routes import CqlSettings
from penstock.connect.sinks.task import SinkWriter
from penstock.database.access import Access
from penstock.query.packed_rows import packed


@pytest.mark.parametrize("shows", [False, True])
def test_the_log_has_what_was_left_out_only_where_it_is_wanted(caplog: pytest.LogCaptureFixture, shows: bool) -> None:
    settings = CqlSettings(NAMES, Access("127.0.0.1:1"), (), 1000, "log")
    columns = {
        "partition": pa.array([3] * 2, pa.int32()),
        "offset": pa.array([5, 6]),
        "timestamp": pa.array([0] * 2, pa.timestamp("us", "UTC")),
        "key": [b"a\nb\xff", None],
        "value": [b"{" * 2000, b"["],
        "headers": pa.nulls(2, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    }
    writer = SinkWriter(CqlDestination(settings), JsonBytes(False), JsonBytes(False), topic="t", shows=shows)
    with caplog.at_level(logging.WARNING):
        list(writer(packed(iter([pa.record_batch(columns)]))))
    first, second = (record.getMessage() for record in caplog.records)
    assert first.startswith("left out t, 3, offset 5: its key cannot be read: it is not JSON") and "\n" not in first
    assert first.endswith(f"; key 'a\\nb\\\\xff', value '{'{' * 1000}'...") is shows
    assert second.endswith("; key null, value '['") is shows
