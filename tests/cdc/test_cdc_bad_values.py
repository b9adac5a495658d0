"""Cells of a change log that cannot be read: an error that names them, or the column `problem` of their rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from log_pages import log_row, page, stream_id, table, time_of
from pyspark.sql import SparkSession

from penstock import cdc
from penstock.cdc.cdc_tables import Images, LogLayout, frame_schema, layout, log_schema
from penstock.cdc.change_decoder import ChangeDecoder, decode_log
from penstock.cdc.generations import TokenRange
from penstock.cdc.log_pages import id_cells
from penstock.cdc.partition_read import Changed, RowBuilder
from penstock.codec.problem import PREFIX
from penstock.database import Page
from penstock.database.columns import BadValue
from penstock.database.cql_types import CqlType
from penstock.errors import PenstockError
from penstock.kafka.dead_letter_sink import letters
from penstock.spark_runtime.arrow_types import to_arrow_schema

OF = table("id int", "ck int", "", "m frozen<map<int, text>>; s text; tags set<text>")
T0 = 1_700_000_000_000_000
POISON = b"\0\0\0\1\0\0\0\0\0\0\0\1x"
"""{blob_as_int(0x): 'x'}"""


def raw(columns: LogLayout, column: str) -> LogLayout:
    """The layout with a column whose cells are bytes from the test."""
    pairs = zip(columns.names, columns.kinds, strict=True)
    return replace(columns, kinds=tuple(CqlType("blob") if name == column else kind for name, kind in pairs))


def poisoned(rows: Sequence[dict[str, Any]]) -> Page:
    return page(raw(layout(OF), "m"), rows)


ROWS = [
    log_row(1, T0, 0, 2, id=1, ck=1, m=b"\0\0\0\0", s="first"),
    log_row(1, T0, 1, 9, id=1, ck=1, m=b"\0\0\0\0", s="first"),
    log_row(2, T0 + 5, 0, 2, id=2, ck=7, m=POISON, s="kept", tags=["a"]),
    log_row(2, T0 + 5, 1, 9, id=2, ck=7, m=POISON, s="kept", tags=["a"]),
    log_row(3, T0 + 9, 0, 2, id=3, ck=1, m=b"\xff\xff\xff\x9c", s="last"),
    log_row(3, T0 + 9, 1, 9, id=3, ck=1, m=b"\xff\xff\xff\x9c", s="last"),
]


def changes(rows: Page, *, problem: bool) -> pa.RecordBatch:
    schema = to_arrow_schema(frame_schema(OF, problem=problem), timezone="UTC")
    batch = ChangeDecoder(layout(OF), Images("none", "full"), schema, T0).decode(rows)
    assert batch is not None
    batch.validate(full=True)
    return batch


def test_a_query_stops_with_the_place_of_the_first_bad_cell() -> None:
    with pytest.raises(BadValue) as error:
        changes(poisoned(ROWS), problem=False)
    assert not error.value.retriable
    assert str(error.value) == (
        "column m of ks.t has a value that cannot be read: a frozen<map<int, text>> has a key that is null or empty, "
        f"which Spark's maps cannot hold (stream 0x{stream_id(2).hex()}, time {time_of(T0 + 5)}, "
        f'key {{"id": 2, "ck": 7}}, after, cell 0x{POISON.hex()}). Next: give cdc.read(...) bad_values="problem": the '
        "value becomes null, its row goes to kafka.dead_letters(...) and the other rows continue; or skip the row with "
        "a start after its time. A connector skips the row with errors.tolerance=all"
    )


def test_a_row_with_a_problem_keeps_its_other_cells_and_tells_of_the_bad_ones(caplog: pytest.LogCaptureFixture) -> None:
    rows = changes(poisoned(ROWS), problem=True).to_pylist()
    (line,) = caplog.messages
    assert line.startswith(
        'ks.t: 2 rows have a problem; the first, {"id": 2, "ck": 7}, cannot be read: m in after, m in'
    )
    assert [row["after"]["m"] for row in rows] == [[], None, None]
    assert [row["delta"]["s"] for row in rows] == ["first", "kept", "last"]
    assert rows[1]["after"] == {"ck": 7, "id": 2, "m": None, "s": "kept", "tags": ["a"]}
    assert rows[0]["problem"] is None
    problem = rows[1]["problem"]
    assert {name: problem[name] for name in ("table", "key", "stream_id", "time", "batch_seq_no")} == {
        "table": "ks.t",
        "key": '{"id": 2, "ck": 7}',
        "stream_id": stream_id(2),
        "time": str(time_of(T0 + 5)),
        "batch_seq_no": 0,
    }
    assert problem["reason"].startswith("cannot be read: m in after, m in delta: a frozen<map<int, text>> has a key")
    assert [(cell["part"], cell["column"], cell["value"]) for cell in problem["cells"]] == [
        ("after", "m", POISON),
        ("delta", "m", POISON),
    ]
    assert "does not fit its length" in rows[2]["problem"]["reason"]
    assert rows[1]["written"] == ["m", "s", "tags"], "what the statement wrote is known all the same"


def test_good_pages_have_no_problem() -> None:
    assert changes(poisoned(ROWS[:2]), problem=True).column("problem").null_count == 1


def test_rows_of_the_log_tell_of_their_problems_too() -> None:
    columns = layout(OF)
    with pytest.raises(BadValue, match=r"column m of ks\.t .*log, cell"):
        list(decode_log(iter([poisoned(ROWS)]), columns, to_arrow_schema(log_schema(columns), timezone="UTC")))
    schema = to_arrow_schema(log_schema(columns, problem=True), timezone="UTC")
    (batch,) = decode_log(iter([poisoned(ROWS)]), columns, schema)
    assert [row["problem"] and row["problem"]["key"] for row in batch.to_pylist()] == [
        *[None] * 2,
        *['{"id": 2, "ck": 7}'] * 2,
        *['{"id": 3, "ck": 1}'] * 2,
    ]


@pytest.mark.parametrize("problem", [False, True])
def test_rows_of_a_snapshot_tell_of_their_problems(problem: bool) -> None:
    schema = to_arrow_schema(frame_schema(OF, problem=problem), timezone="UTC")
    build = RowBuilder(OF, schema, TokenRange(0, 9, (), T0, T0))
    rows = page(
        raw(build.layout, "m"),
        [{"id": 1, "ck": 2, "m": POISON, "s": "kept"}, {"id": 1, "ck": 3, "m": b"\0\0\0\0", "s": "x"}],
    )
    if not problem:
        with pytest.raises(BadValue, match=r'column m of ks\.t .*\(key {"id": 1, "ck": 2}, after, cell 0x'):
            build.batch(rows, Changed(None, {}))
        return
    first, second = build.batch(rows, Changed(None, {})).to_pylist()
    assert first["after"] == {"ck": 2, "id": 1, "m": None, "s": "kept", "tags": None}
    assert (first["problem"]["stream_id"], first["problem"]["key"]) == (None, '{"id": 1, "ck": 2}')
    assert second["problem"] is None and second["after"]["m"] == []


def test_a_list_with_a_wrong_count_is_not_taken_for_an_empty_one() -> None:
    """A non-frozen list without elements is null; a list of four bytes that claims 5 elements is not valid."""
    of = table("id int", "", "", "v list<int>")
    rows = [log_row(1, T0, 0, 2, id=1), log_row(1, T0, 1, 9, id=1, v=b"\0\0\0\5")]
    schema = to_arrow_schema(frame_schema(of), timezone="UTC")
    with pytest.raises(BadValue, match=r"column v of ks\.t"):
        ChangeDecoder(layout(of), Images("none", "full"), schema, T0).decode(page(raw(layout(of), "v"), rows))


@pytest.mark.parametrize("column", ["cdc$stream_id", "cdc$time", "cdc$batch_seq_no", "cdc$operation"])
def test_a_row_without_a_place_in_the_log_is_refused(column: str) -> None:
    columns = layout(OF)
    rows = [log_row(1, T0, 0, 2, id=1, ck=1), {**log_row(1, T0, 1, 2, id=1, ck=1), column: b""}]
    fits = {"cdc$stream_id": stream_id(1), "cdc$time": time_of(T0).bytes}
    rows[0][column] = fits.get(column, b"\0\0\0\2" if column == "cdc$batch_seq_no" else b"\2")
    schema = to_arrow_schema(frame_schema(OF), timezone="UTC")
    decoder = ChangeDecoder(columns, Images(), schema, T0)
    with pytest.raises(PenstockError, match="row 1 of a page is not a row of a change log"):
        decoder.decode(page(raw(columns, column), rows))


def test_ids_and_times_of_other_widths_are_refused() -> None:
    good = b"\0\0\0\x10" + stream_id(1) + b"\0\0\0\x10" + time_of(T0).bytes
    assert id_cells(Page(good * 2, 2, True), where="log").tobytes() == (stream_id(1) + time_of(T0).bytes) * 2
    assert id_cells(Page(b"", 0, True), where="log").shape == (0, 32)
    for data, rows in ((good, 2), (good[:-1], 1), (good.replace(b"\x10", b"\x0f", 1), 1), (b"", 2**31 - 1), (b"", -1)):
        with pytest.raises(PenstockError, match=r"stream ids and times has \d+ bytes.*log"):
            id_cells(Page(data, rows, True), where="log")


def test_rows_with_a_problem_are_no_events_but_dead_letters(spark: SparkSession) -> None:
    batch = changes(poisoned(ROWS), problem=True)
    frame = spark.createDataFrame(pa.Table.from_batches([batch]), frame_schema(OF, problem=True))
    events = cdc.events(frame, prefix="p").collect()
    assert [row.key for row in events] == ['{"id":1,"ck":1}']
    found = letters(frame).collect()
    assert [bytes(row.value) for row in found] == [POISON, POISON, b"\xff\xff\xff\x9c", b"\xff\xff\xff\x9c"]
    assert bytes(found[0].key).decode() == '{"id": 2, "ck": 7}'
    headers = {header.key.removeprefix(PREFIX): bytes(header.value).decode() for header in found[0].headers}
    assert headers.pop("exception.message").startswith("a frozen<map<int, text>> has a key")
    assert headers == {
        "table": "ks.t",
        "stream": stream_id(2).hex().upper(),
        "time": str(time_of(T0 + 5)),
        "part": "after",
        "column": "m",
        "type": "frozen<map<int, text>>",
    }


@pytest.mark.slow
def test_many_bad_cells_cost_each_row_little() -> None:
    """A page with only bad cells takes about two calls per row."""
    rows = [log_row(1, T0 + i, 0, 2, id=1, ck=i, m=POISON) for i in range(300)]
    batch = changes(poisoned(rows), problem=True)
    assert np.all(batch.column("problem").is_valid())
