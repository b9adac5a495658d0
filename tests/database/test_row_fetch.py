"""Rows by key: which requests are made for which keys, and what becomes of the answers, on a database in memory."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from cql_values import to_bytes
from hypothesis import HealthCheck, given, settings, strategies as st
from log_pages import table
from ring_cluster import Cluster

from penstock.database import Page, row_fetch as module, token_ring
from penstock.database.access import Access
from penstock.database.columns import BadValue
from penstock.database.cql_types import CqlTable
from penstock.database.requests import CqlRequest, Expiry, ListTime, RequestLimits, Values
from penstock.database.row_fetch import KEYS_TOGETHER, RowFetch
from penstock.database.token_ring import partition_key
from penstock.errors import PenstockError

VISITS = table("user int; place text", "at bigint; n int", "", "v int; tags set<text>")
Row = dict[str, Any]


class Database(Cluster):
    """A table's rows by key; answers requests by their statements and values, as a node does."""

    def __init__(self, of: CqlTable, rows: Sequence[Row]) -> None:
        super().__init__()
        self.table = of
        self.kinds = {column.name: column.type for column in of.columns}
        self.key = [column.name for column in (*of.partition_key, *of.clustering_key)]
        self.rows_by_key = {tuple(to_bytes(self.kinds[name], row[name]) for name in self.key): row for row in rows}
        self.seen: list[list[tuple[bytes | None, ...]]] = []
        self.requests: list[CqlRequest] = []

    def send_all(self, access: Access, keyspace: str, requests: Sequence[CqlRequest], *_: Any, **__: Any) -> list[Page]:
        assert keyspace == "ks"
        self.requests += requests
        return [self._page(request) for request in requests]

    def _page(self, request: CqlRequest) -> Page:
        ((text, values),) = request.statements
        found = re.fullmatch(r'SELECT (.*) FROM "ks"."t" WHERE (.*)', text)
        assert found
        marks = re.findall(r'"(\w+)" (IN|=) \?', found[2])
        assert [name for name, _ in marks] == self.key and sum(how == "IN" for _, how in marks) == 1
        choices = [
            _listed(value or b"") if how == "IN" else [value]
            for (_, how), value in zip(marks, plain(values), strict=True)
        ]
        keys: list[tuple[bytes | None, ...]] = [()]
        for choice in choices:
            keys = [(*key, cell) for key in keys for cell in choice]
        self.seen.append(keys)
        names = [name.strip('"') for name in found[1].split(", ")]
        rows = [self.rows_by_key[key] for key in dict.fromkeys(keys) if key in self.rows_by_key]
        cells = [to_bytes(self.kinds[name], row.get(name)) for row in rows for name in names]
        return Page(
            b"".join(struct.pack(">i", -1 if c is None else len(c)) + (c or b"") for c in cells), len(rows), True
        )


def plain(values: Values) -> list[bytes | None]:
    """The values of a read, which has no times."""
    assert not any(isinstance(value, Expiry | ListTime) for value in values)
    return [value for value in values if value is None or isinstance(value, bytes)]


def _listed(value: bytes) -> list[bytes | None]:
    (count,), at, found = struct.unpack_from(">i", value), 4, list[bytes | None]()
    for _ in range(count):
        (size,) = struct.unpack_from(">i", value, at)
        found.append(value[at + 4 : at + 4 + size])
        at += 4 + size
    assert at == len(value)
    return found


def of_memory(
    monkeypatch: pytest.MonkeyPatch, of: CqlTable, rows: Sequence[Row], *columns: str
) -> tuple[RowFetch, Database]:
    database = Database(of, rows)
    database.connect(monkeypatch, token_ring)
    monkeypatch.setattr(module, "send_all", database.send_all)
    return RowFetch(Access("db"), of, columns, RequestLimits()), database


def keys_of(rows: RowFetch, *columns: list[Any]) -> tuple[list[bytes], list[bool]]:
    kinds = (pa.int32(), pa.string(), pa.int64(), pa.int32())
    keys, can = rows.keys([pa.array(column, kind) for column, kind in zip(columns, kinds, strict=False)])
    return keys.to_pylist(), can.tolist()


SMALL = st.tuples(st.integers(0, 3), st.sampled_from(["", "a", "b"]), st.integers(-1, 2), st.integers(0, 40))


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sets(SMALL, max_size=60), st.lists(SMALL, min_size=1, max_size=60), st.booleans())
def test_each_key_gets_its_row_and_is_asked_for_once(
    monkeypatch: pytest.MonkeyPatch, stored: set[Any], asked: list[Any], tags: bool
) -> None:
    names = ("user", "place", "at", "n")
    rows = [dict(zip(names, key, strict=True)) | {"v": hash(key) % 1000, "tags": ["x"]} for key in sorted(stored)]
    columns = ("v", "tags") if tags else ("v",)
    fetch, database = of_memory(monkeypatch, VISITS, rows, *columns)
    wanted = list(dict.fromkeys(asked))
    keys, can = keys_of(fetch, *map(list, zip(*wanted, strict=True)))
    assert can == [True] * len(wanted)
    found, there, count = fetch.fetch(keys)
    assert there.tolist() == [key in stored for key in wanted]
    assert found["v"].to_pylist() == [hash(key) % 1000 if key in stored else None for key in wanted]
    assert count == len(database.requests)
    everything = [key for keys in database.seen for key in keys]
    assert len(everything) == len(set(everything)) == len(wanted)
    for request, some in zip(database.requests, database.seen, strict=True):
        assert len(some) <= KEYS_TOGETHER
        # One node has all of them: its ring says so for each partition.
        partitions = [partition_key([cell or b"" for cell in key[:2]]) for key in some]
        assert request.key == partitions[0] and len(set(database.owners(*partitions))) == 1
    if tags:
        # ScyllaDB refuses IN on a clustering column if a collection is selected.
        assert all(not re.search(r'"(at|n)" IN', request.statements[0][0]) for request in database.requests)


def test_keys_that_differ_in_one_column_are_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    fetch, database = of_memory(monkeypatch, VISITS, [], "v")
    keys, _ = keys_of(fetch, [1] * 64, ["a"] * 64, [5] * 64, list(range(64)))
    fetch.fetch(keys)
    assert [len(some) for some in database.seen] == [KEYS_TOGETHER, KEYS_TOGETHER]
    assert all('"n" IN ?' in request.statements[0][0] for request in database.requests)


def test_no_row_has_a_key_with_a_null(monkeypatch: pytest.MonkeyPatch) -> None:
    fetch, _ = of_memory(monkeypatch, VISITS, [], "v")
    _, can = keys_of(fetch, [1, None, 1, 1, 1], ["a", "a", None, "a", ""], [1, 1, 1, None, 1], [1, 1, 1, 1, None])
    assert can == [True, False, False, False, False]
    alone, _ = of_memory(monkeypatch, table("id int; ", "", "", "v int"), [], "v")
    assert keys_of(alone, [7, None])[1] == [True, False]


def test_a_table_without_rows_for_the_keys_gives_nulls(monkeypatch: pytest.MonkeyPatch) -> None:
    fetch, _ = of_memory(monkeypatch, VISITS, [], "v", "tags")
    found, there, _ = fetch.fetch(keys_of(fetch, [1, 2], ["a", "b"], [1, 2], [1, 2])[0])
    assert found.to_pylist() == [{"v": None, "tags": None}] * 2 and there.tolist() == [False, False]
    assert (
        found.schema
        == fetch.schema
        == pa.schema([("v", pa.int32()), ("tags", pa.list_(pa.field("element", pa.string())))])
    )


def test_no_keys_ask_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    fetch, database = of_memory(monkeypatch, VISITS, [], "v")
    found, there, count = fetch.fetch([])
    assert (found.num_rows, there.tolist(), count, database.requests) == (0, [], 0, [])


def test_a_row_with_a_value_that_cannot_be_read_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    fetch, _ = of_memory(monkeypatch, table("id int; ", "", "", "v text"), [{"id": 7, "v": "x"}], "v")
    keys, _ = keys_of(fetch, [7])
    (page,) = fetch.pages(keys)
    monkeypatch.setattr(module, "send_all", lambda *_, **__: [Page(page.data[:-1] + b"\xff", 1, True)])
    with pytest.raises(
        BadValue, match=r"column v of ks.t .*not UTF-8.*key {\"id\": 7}, cell 0xff.*leave the column out"
    ):
        fetch.fetch(keys)


def test_an_answer_that_ends_inside_a_row_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    fetch, _ = of_memory(monkeypatch, table("id int; ", "", "", "v int"), [{"id": 7, "v": 1}], "v")
    keys, _ = keys_of(fetch, [7])
    (page,) = fetch.pages(keys)
    monkeypatch.setattr(module, "send_all", lambda *_, **__: [Page(page.data[:-1], 1, True)])
    with pytest.raises(PenstockError, match=r"a result page ends inside a row \(ks.t\)"):
        fetch.fetch(keys)
