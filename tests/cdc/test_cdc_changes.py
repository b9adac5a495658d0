"""Log rows to changes: the change of each operation, and its images, wherever pages end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st
from log_pages import log_row, page, stream_id, table, time_of

from penstock.cdc.cdc_tables import LEFT, Images, frame_schema, layout, log_schema
from penstock.cdc.change_decoder import ChangeDecoder, decode_log
from penstock.cdc.sent_groups import groups_of
from penstock.codec.change_frame import layout as described
from penstock.database.columns import BadValue
from penstock.database.cql_types import CqlTable
from penstock.spark_runtime.arrow_types import to_arrow_schema

FULL = Images("full", "full")
CLUSTERED = table("pk int", "ck int", "s text", "v int; tags set<text>; items list<int>")
T0 = 1_700_000_000_000_000
READ = T0 + 2_500_000


def changes(
    of: CqlTable,
    rows: Sequence[dict[str, Any]],
    images: Images = FULL,
    cuts: Sequence[int] = (),
    only: Any = None,
    problem: bool = False,
) -> list[dict[str, Any]]:
    """The changes of log rows, read in pages that end at `cuts`."""
    columns = layout(of)
    schema = to_arrow_schema(frame_schema(of, problem=problem), timezone="UTC")
    decoder = ChangeDecoder(columns, images, schema, READ, only)
    ends = [*sorted(cuts), len(rows)]
    batches = []
    for begin, end in zip([0, *ends[:-1]], ends, strict=True):
        batch = decoder.decode(page(columns, rows[begin:end], final=end == len(rows) and end == ends[-1]))
        if batch is not None:
            batch.validate(full=True)
            batches.append(batch)
    return pa.Table.from_batches(batches).to_pylist() if batches else []


def test_an_insert_shows_what_was_written_and_where_it_stands() -> None:
    (change,) = changes(CLUSTERED, [log_row(7, T0, 0, 2, pk=1, ck=2, v=3, deleted_tags=True, tags=["a"], ttl=60)])
    assert change["op"] == "c"
    assert change["key"] == {"pk": 1, "ck": 2}
    assert change["before"] is None and change["after"] is None
    assert change["delta"] == {"items": None, "s": None, "tags": ["a"], "v": 3}
    assert change["written"] == ["tags", "v"]
    assert change["deleted"] == ["tags"]
    assert change["range"] is None
    assert (change["operation"], change["ttl"], change["end_of_batch"]) == (2, 60, True)
    assert change["ts"].timestamp() == T0 / 1e6
    assert change["read_ts"].timestamp() == READ / 1e6
    assert (change["stream_id"], change["time"]) == (stream_id(7), str(time_of(T0)))
    assert (change["keyspace"], change["table"]) == ("ks", "t")


def test_of_a_page_only_the_groups_asked_for_become_changes() -> None:
    rows = [log_row(stream, T0 + at, 0, 2, pk=stream, ck=at, v=1) for stream in (1, 2) for at in (0, 1, 2)]
    cells = b"".join(row["cdc$stream_id"] + row["cdc$time"].bytes for row in (rows[1], rows[5]))
    wanted = groups_of(np.frombuffer(cells, np.uint8).reshape(-1, 32)).ids
    found = changes(CLUSTERED, rows, cuts=[2, 4], only=wanted)
    assert [(change["key"]["pk"], change["key"]["ck"]) for change in found] == [(1, 1), (2, 2)]
    columns = layout(CLUSTERED)
    pages = iter([page(columns, rows)])
    schema = to_arrow_schema(log_schema(columns), timezone="UTC")
    assert [row["ck"] for batch in decode_log(pages, columns, schema, wanted) for row in batch.to_pylist()] == [1, 2]


def test_images_of_a_batch_go_to_the_rows_they_belong_to() -> None:
    rows = [
        log_row(1, T0, 0, 0, pk=6, ck=1, v=10),
        log_row(1, T0, 1, 0, pk=6, ck=2, v=20),
        log_row(1, T0, 2, 1, pk=6, ck=1, v=11),
        log_row(1, T0, 3, 1, pk=6, ck=2, v=21),
        log_row(1, T0, 4, 9, pk=6, ck=1, v=11),
        log_row(1, T0, 5, 9, pk=6, ck=2, v=21),
    ]
    first, second = changes(CLUSTERED, rows)
    assert (first["before"]["v"], first["after"]["v"], first["end_of_batch"]) == (10, 11, False)
    assert (second["before"]["v"], second["after"]["v"], second["end_of_batch"]) == (20, 21, True)


def test_a_row_without_a_preimage_has_none_and_takes_no_other() -> None:
    rows = [
        log_row(1, T0, 0, 1, pk=7, ck=1, v=1),
        log_row(1, T0, 1, 9, pk=7, ck=1, v=1),
        log_row(1, T0 + 1, 0, 0, pk=7, ck=1, v=1),
        log_row(1, T0 + 1, 1, 1, pk=7, ck=1, v=2),
        log_row(1, T0 + 1, 2, 9, pk=7, ck=1, v=2),
    ]
    images = [(c["before"] and c["before"]["v"], c["after"]["v"]) for c in changes(CLUSTERED, rows)]
    assert images == [(None, 1), (1, 2)]


def test_columns_that_a_partial_preimage_lacks_come_from_the_postimage() -> None:
    rows = [
        log_row(1, T0, 0, 0, pk=1, ck=1, v=1),
        log_row(1, T0, 1, 1, pk=1, ck=1, v=2),
        log_row(1, T0, 2, 9, pk=1, ck=1, v=2, tags=["kept"]),
    ]
    (change,) = changes(CLUSTERED, rows)
    assert change["before"] == {"ck": 1, "items": None, "pk": 1, "s": None, "tags": ["kept"], "v": 1}


@pytest.mark.parametrize("name", ["plain_1", "my type", "Point", "Int", "text", "a-b", "1st", 'q"q', "list", "frozen"])
def test_a_frame_describes_user_types_of_any_name(name: str) -> None:
    text = '"' + name.replace('"', '""') + '"'
    of = table("id int", regular=f"u {text}; us frozen<map<text, frozen<{text}>>>", **{name: "a int; b text"})
    assert described(frame_schema(of)).types == {column.name: column.type for column in of.columns}


def test_an_insert_over_a_row_takes_nothing_from_the_postimage() -> None:
    rows = [
        log_row(1, T0, 0, 0, pk=1, ck=1, v=1),
        log_row(1, T0, 1, 2, pk=1, ck=1, v=2),
        log_row(1, T0, 2, 9, pk=1, ck=1, v=2, tags=["kept"]),
    ]
    (change,) = changes(CLUSTERED, rows)
    assert (change["before"]["v"], change["before"]["tags"]) == (1, None)


def test_a_full_preimage_is_kept_where_the_log_has_only_the_keys_of_changes() -> None:
    rows = [
        log_row(1, T0, 0, 0, pk=1, ck=1, v=1, deleted_tags=True),
        log_row(1, T0, 1, 1, pk=1, ck=1),
        log_row(1, T0, 2, 9, pk=1, ck=1, v=2, tags=["new"]),
    ]
    (change,) = changes(CLUSTERED, rows)
    assert (change["before"]["v"], change["before"]["tags"]) == (1, None)
    assert (change["after"]["v"], change["after"]["tags"]) == (2, ["new"])


def test_all_parts_of_a_write_that_was_split_by_ttl_have_its_preimage() -> None:
    of = table("pk int", "ck int", regular="v int; w int; x int")
    rows = [
        log_row(1, T0, 0, 0, pk=1, ck=1, v=1, w=2),
        log_row(1, T0, 1, 1, pk=1, ck=1, deleted_w=True),
        log_row(1, T0, 2, 1, pk=1, ck=1, v=3, ttl=600),
        log_row(1, T0, 3, 9, pk=1, ck=1, v=3, x=7),
    ]
    before = [change["before"] for change in changes(of, rows)]
    assert before == [{"pk": 1, "ck": 1, "v": 1, "w": 2, "x": 7}] * 2


def test_a_static_row_has_its_own_images() -> None:
    rows = [
        log_row(1, T0, 0, 0, pk=1, s="old"),
        log_row(1, T0, 1, 0, pk=1, ck=1, v=1),
        log_row(1, T0, 2, 1, pk=1, s="new"),
        log_row(1, T0, 3, 1, pk=1, ck=1, v=2),
    ]
    static, row = changes(CLUSTERED, rows)
    assert static["key"] == {"pk": 1, "ck": None}
    assert static["before"]["s"] == "old"
    assert (row["key"]["ck"], row["before"]["v"]) == (1, 1)


def test_lists_are_in_the_order_of_their_element_ids() -> None:
    ids = [time_of(T0 + 120_000_000 * i) for i in range(6)]
    rows = [
        log_row(1, T0, 0, 1, pk=1, ck=1, items=[(ids[5], 5)]),
        log_row(1, T0, 1, 9, pk=1, ck=1, items=[(each, i) for i, each in enumerate(ids)]),
    ]
    (change,) = changes(CLUSTERED, rows)
    assert change["after"]["items"] == [0, 1, 2, 3, 4, 5]
    assert change["delta"]["items"] == [(str(ids[5]), 5)]


def test_a_collection_whose_last_element_was_removed_is_null_as_the_table_has_it() -> None:
    of = table("pk int", regular="tags set<text>; items list<int>; fixed frozen<set<text>>")
    rows = [
        log_row(1, T0, 0, 1, pk=1, deleted_elements_tags=["a"]),
        log_row(1, T0, 1, 9, pk=1, tags=[], items=[], fixed=[]),
    ]
    (change,) = changes(of, rows)
    assert change["after"] == {"fixed": [], "items": None, "pk": 1, "tags": None}


def test_removed_elements_are_named() -> None:
    (change,) = changes(CLUSTERED, [log_row(1, T0, 0, 1, pk=1, ck=1, deleted_elements_tags=["x", "y"])])
    assert change["deleted_elements"] == {"tags": ["x", "y"], "items": None}
    assert (change["written"], change["deleted"]) == (["tags"], [])


def test_deletes_of_every_kind_are_changes() -> None:
    rows = [
        log_row(1, T0, 0, 3, pk=1, ck=2),
        log_row(1, T0 + 1, 0, 4, pk=1),
        log_row(1, T0 + 2, 0, 6, pk=1, ck=3),
        log_row(1, T0 + 2, 1, 7, pk=1, ck=9),
        log_row(1, T0 + 3, 0, 5, pk=1),
        log_row(1, T0 + 3, 1, 8, pk=1, ck=9),
        log_row(1, T0 + 4, 0, -3, pk=1, ck=2),
    ]
    found = [(c["op"], c["operation"], c["key"]["ck"], c["delta"], c["range"]) for c in changes(CLUSTERED, rows)]
    assert found == [
        ("d", 3, 2, None, None),
        ("d", 4, None, None, None),
        ("d", 5, None, None, span({"ck": 3}, False, {"ck": 9}, True)),
        ("d", 5, None, None, span(None, True, {"ck": 9}, False)),
        ("d", -3, 2, None, None),
    ]


STATIC = table("pk int", "ck int", "s text", "v int")
BARE = table("pk int", "ck int", "", "v int")
DEEP = table("pk int", "a int; b int", "", "v int")


@pytest.mark.parametrize(
    ("of", "rows", "column"),
    [
        (STATIC, [log_row(1, T0, 0, 2, ck=1, v=3)], "pk"),
        (STATIC, [log_row(1, T0, 0, 4)], "pk"),
        (STATIC, [log_row(1, T0, 0, 1, pk=1, v=3)], "ck"),
        (STATIC, [log_row(1, T0, 0, 1, pk=1, s="x", v=3)], "ck"),
        (STATIC, [log_row(1, T0, 0, 3, pk=1)], "ck"),
        (STATIC, [log_row(1, T0, 0, -3, pk=1)], "ck"),
        (BARE, [log_row(1, T0, 0, 2, pk=1)], "ck"),
        (DEEP, [log_row(1, T0, 0, 2, pk=1, a=1, v=3)], "b"),
        (DEEP, [log_row(1, T0, 0, 2, pk=1, b=1, v=3)], "a"),
        (BARE, [log_row(1, T0, 0, 6, pk=1), log_row(1, T0, 1, 7, pk=1, ck=3)], "ck"),
        (BARE, [log_row(1, T0, 0, 5, pk=1, ck=2), log_row(1, T0, 1, 8, pk=1)], "ck"),
        (BARE, [log_row(1, T0, 0, 5, pk=1), log_row(1, T0, 1, 7, pk=1)], "ck"),
        (BARE, [log_row(1, T0, 0, 6, pk=1)], "ck"),
        (BARE, [log_row(1, T0, 1, 8, pk=1)], "ck"),
        (DEEP, [log_row(1, T0, 0, 5, pk=1, b=2), log_row(1, T0, 1, 7, pk=1, a=3)], "a"),
        (DEEP, [log_row(1, T0, 0, 5, pk=1, a=2), log_row(1, T0, 1, 7, pk=1, b=3)], "a"),
    ],
)
def test_a_change_without_its_primary_key_is_no_change(of: CqlTable, rows: list[dict[str, Any]], column: str) -> None:
    good = log_row(1, T0 - 1, 0, 4, pk=9)
    with pytest.raises(BadValue, match=rf"1 of 2 changes of ks.t have no {column}, a column of the primary key"):
        changes(of, [good, *rows])
    first, second = changes(of, [good, *rows], problem=True)
    assert first["problem"] is None
    (cell,) = second["problem"]["cells"]
    assert (cell["part"], cell["column"]) == ("key", column) and "got its name later" in cell["reason"]


@pytest.mark.parametrize(
    ("of", "rows"),
    [
        (STATIC, [log_row(1, T0, 0, 1, pk=1, s="x")]),
        (STATIC, [log_row(1, T0, 0, 2, pk=1)]),
        (STATIC, [log_row(1, T0, 0, 1, pk=1, deleted_s=True)]),
        (BARE, [log_row(1, T0, 0, 4, pk=1)]),
        (BARE, [log_row(1, T0, 0, -4, pk=1)]),
        (BARE, [log_row(1, T0, 0, 5, pk=1), log_row(1, T0, 1, 8, pk=1, ck=3)]),
        (BARE, [log_row(1, T0, 0, 6, pk=1, ck=3), log_row(1, T0, 1, 7, pk=1)]),
        (BARE, [log_row(1, T0, 0, 5, pk=1)]),
        (BARE, [log_row(1, T0, 1, 7, pk=1)]),
        (DEEP, [log_row(1, T0, 0, 5, pk=1, a=2), log_row(1, T0, 1, 8, pk=1, a=2, b=3)]),
    ],
)
def test_what_has_no_row_needs_no_whole_key(of: CqlTable, rows: list[dict[str, Any]]) -> None:
    (change,) = changes(of, rows, problem=True)
    assert change["problem"] is None


def test_half_a_range_whose_other_half_expired_is_still_a_change() -> None:
    (start,) = changes(CLUSTERED, [log_row(1, T0, 0, 6, pk=1, ck=3)])
    (end,) = changes(CLUSTERED, [log_row(1, T0, 1, 8, pk=1, ck=9)])
    assert start["range"] == span({"ck": 3}, False, None, True)
    assert end["range"] == span(None, True, {"ck": 9}, False)


def test_a_late_write_lives_from_when_it_was_written() -> None:
    """The log's own time to live tells when; what is left of it counts from when the page was requested."""
    held, now = 86_400, T0 // 1_000_000 + 50
    of = replace(CLUSTERED, cdc=(("ttl", str(held)),))
    columns = layout(of, write_times=True)
    schema = to_arrow_schema(frame_schema(of, write_times=True), timezone="UTC")
    rows = [
        log_row(1, T0, number, 2, pk=1, ck=number, v=3, ttl=60, **{LEFT: held - 50 + late})
        for number, late in enumerate([0, 1, 20])
    ]
    decoder = ChangeDecoder(columns, FULL, schema, READ)
    # The group continues on a page that was requested later.
    first = decoder.decode(page(columns, rows[:2], final=False, asked=now))
    rows[2][LEFT] -= 9
    second = decoder.decode(page(columns, rows[2:], asked=now + 9))
    assert first is None and second is not None
    assert [row["expires"].timestamp() - T0 // 1_000_000 - 60 for row in second.to_pylist()] == [0, 0, 20]


@pytest.mark.parametrize("descending", [False, True])
def test_bounds_of_one_column_are_in_the_order_of_values(descending: bool) -> None:
    columns = tuple(replace(one, descending=descending and one.name == "ck") for one in CLUSTERED.columns)
    (change,) = changes(
        replace(CLUSTERED, columns=columns), [log_row(1, T0, 0, 6, pk=1, ck=3), log_row(1, T0, 1, 7, pk=1, ck=9)]
    )
    ascending = span({"ck": 3}, False, {"ck": 9}, True)
    assert change["range"] == (span({"ck": 9}, True, {"ck": 3}, False) if descending else ascending)


def test_bounds_of_several_columns_have_the_order_of_the_rows() -> None:
    several = table("pk int", "day int; seq int")
    columns = tuple(replace(one, descending=one.name == "day") for one in several.columns)
    rows = [log_row(1, T0, 0, 5, pk=1, day=9), log_row(1, T0, 1, 8, pk=1, day=3, seq=5)]
    (change,) = changes(replace(several, columns=columns), rows)
    assert change["range"] == span({"day": 9, "seq": None}, True, {"day": 3, "seq": 5}, False) | {
        "order": ["day DESC", "seq ASC"]
    }


def span(start: object, start_inclusive: bool, end: object, end_inclusive: bool) -> dict[str, object]:
    return {"start": start, "start_inclusive": start_inclusive, "end": end, "end_inclusive": end_inclusive}


def test_a_table_of_keys_alone_has_no_columns_for_values() -> None:
    (change,) = changes(table("pk int"), [log_row(1, T0, 0, 2, pk=1)])
    assert change["written"] == []
    assert {"delta", "range", "deleted_elements"}.isdisjoint(change)


def test_images_that_nobody_asked_for_are_left_out() -> None:
    rows = [log_row(1, T0, 0, 0, pk=1, ck=1, v=1), log_row(1, T0, 1, 1, pk=1, ck=1, v=2)]
    (change,) = changes(CLUSTERED, rows, Images("none", "none"))
    assert change["before"] is None and change["after"] is None


@st.composite
def logs(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Streams of groups, each with images for some of its rows."""
    rows: list[dict[str, Any]] = []
    for stream in range(draw(st.integers(1, 2))):
        for step in range(draw(st.integers(1, 4))):
            keys = draw(st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True).map(sorted))
            kinds = [(0, key) for key in keys if draw(st.booleans())] + [(1, key) for key in keys]
            kinds += [(9, key) for key in keys if draw(st.booleans())]
            rows += [
                log_row(stream, T0 + step, number, kind, pk=stream, ck=key, v=100 * step + 10 * kind + key)
                for number, (kind, key) in enumerate(kinds)
            ]
    return rows


@pytest.mark.slow
@settings(max_examples=150)
@given(logs(), st.data())
def test_where_pages_end_makes_no_difference(rows: list[dict[str, Any]], data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(rows)), max_size=4))
    whole = changes(CLUSTERED, rows)
    assert changes(CLUSTERED, rows, cuts=cuts) == whole
    assert len(whole) == sum(row["cdc$operation"] == 1 for row in rows)
    for change in whole:
        step = int(change["ts"].timestamp() * 1e6 + 0.5) - T0
        for image, kind in (("before", 0), ("after", 9)):
            if change[image]:
                assert change[image]["v"] == 100 * step + 10 * kind + change["key"]["ck"]
