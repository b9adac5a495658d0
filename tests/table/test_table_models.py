"""Totals and joins of tables, batch by batch in any order of versions, against plain dicts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from bucket_runs import Run
from hypothesis import given, settings, strategies as st
from pyspark.sql import types

from penstock.join.joins import LEFT, MOVED, RIGHT, SIDE, Linked, Links, Pairs, StreamTableLogic
from penstock.keyed_state.aggregates import Aggregate, PartialColumn
from penstock.table.revisions import ROW_DELETED, ROW_VERSION, SIGN, Fold, Revisions, Totals, changes

few = settings(max_examples=40)
IDS = st.integers(1, 4)
REGIONS = st.sampled_from(["eu", "us", None])
VALUES = st.none() | st.integers(-5, 5)
Row = dict[str, Any]


def rows_of(*columns: st.SearchStrategy[Any], most: int = 5) -> st.SearchStrategy[list[tuple[Any, ...]]]:
    """Rows with the columns, then their version, and whether they are deletions."""
    return st.lists(st.tuples(*columns, st.integers(1, 6), st.booleans()), max_size=most)


def batches_of(*columns: st.SearchStrategy[Any]) -> st.SearchStrategy[list[list[tuple[Any, ...]]]]:
    return st.lists(rows_of(*columns), min_size=1, max_size=5)


def table(rows: Iterable[tuple[Any, ...]], schema: pa.Schema) -> pa.Table:
    made = [*rows]
    columns = zip(*made, strict=True) if made else [()] * len(schema)
    return pa.table([pa.array(some, kind) for some, kind in zip(columns, schema.types, strict=True)], schema=schema)


VERSIONED = [pa.field(ROW_VERSION, pa.int64()), pa.field(ROW_DELETED, pa.bool_())]
PEOPLE = pa.schema({"id": pa.int64(), "region": pa.string(), "v": pa.int64()})


class Latest:
    """The latest row of each key, one row after the other: as the documentation of `Table` says."""

    def __init__(self) -> None:
        self.rows: dict[Any, tuple[int, tuple[Any, ...]]] = {}

    def put(self, key: Any, version: int, deleted: bool, values: tuple[Any, ...]) -> None:
        if key in self.rows and version < self.rows[key][0]:
            return
        self.rows.pop(key, None)
        if not deleted:
            self.rows[key] = version, values

    def put_batch(self, batch: Iterable[tuple[Any, int, bool, tuple[Any, ...]]]) -> None:
        """Of a key only the newest row of a batch counts: a deletion hides older rows of its batch."""
        newest: dict[Any, tuple[int, bool, tuple[Any, ...]]] = {}
        for key, version, deleted, values in batch:
            if key not in newest or version >= newest[key][0]:
                newest[key] = version, deleted, values
        for key, (version, deleted, values) in newest.items():
            self.put(key, version, deleted, values)

    def values(self) -> dict[Any, tuple[Any, ...]]:
        return {key: values for key, (_, values) in self.rows.items()}


@few
@given(batches_of(IDS, REGIONS, VALUES))
def test_revisions_add_up_to_the_latest_rows(batches: list[list[tuple[Any, ...]]]) -> None:
    run, model, total = Run(Revisions(PEOPLE, ("id",), ("region", "v"))), Latest(), Counter[tuple[Any, ...]]()
    for batch in batches:
        model.put_batch((id, version, gone, (region, v)) for id, region, v, version, gone in batch)
        if batch:
            for row in run.batch(table(batch, pa.schema([*PEOPLE, *VERSIONED]))):
                total[row["region"], row["v"]] += row[SIGN]
        assert +total == Counter(model.values().values()) and min(total.values(), default=0) >= 0
    assert {row["id"]: (row["region"], row["v"]) for row in run.state.to_pylist()} == model.values()


COUNT = Aggregate("n", (PartialColumn("n_count", "_of_n", "count", pa.int64()),), types.LongType())
SUM = Aggregate("total", (PartialColumn("total_sum", "_of_total", "sum", pa.int64()),), types.LongType())
MEAN = Aggregate(
    "mean",
    (
        PartialColumn("mean_sum", "_of_mean", "sum", pa.float64()),
        PartialColumn("mean_count", "_of_mean", "count", pa.int64()),
    ),
    types.DoubleType(),
)
SIGNED = pa.schema(
    {"region": pa.string(), "_of_n": pa.int64(), "_of_total": pa.int64(), "_of_mean": pa.float64(), SIGN: pa.int64()}
)


@few
@given(batches_of(IDS, REGIONS, VALUES))
def test_totals_of_a_table_are_those_of_its_latest_rows(batches: list[list[tuple[Any, ...]]]) -> None:
    revisions, model = Run(Revisions(PEOPLE, ("id",), ("region", "v"))), Latest()
    totals = Run(Totals(pa.schema({"region": pa.string()}), (COUNT, SUM, MEAN)))
    found: dict[Any, tuple[Any, ...]] = {}
    versions = defaultdict[Any, list[int]](list)
    for batch in filter(None, batches):
        model.put_batch((id, version, gone, (region, v)) for id, region, v, version, gone in batch)
        sent = revisions.batch(table(batch, pa.schema([*PEOPLE, *VERSIONED])))
        signed = [(row["region"], *[row["v"]] * 3, row[SIGN]) for row in sent]
        for row in totals.batch(table(signed, SIGNED)):
            versions[row["region"]].append(row["version"])
            found.pop(row["region"], None)
            if not row["deleted"]:
                found[row["region"]] = row["n"], row["total"], row["mean"]
        groups = defaultdict[Any, list[int | None]](list)
        for region, v in model.values().values():
            groups[region].append(v)
        expected = {}
        for region, values in groups.items():
            known = [v for v in values if v is not None]
            mean = pytest.approx(sum(known) / len(known)) if known else None
            expected[region] = len(known), sum(known), mean
        assert found == expected
    assert all(some == sorted(set(some)) for some in versions.values())


@few
@given(batches_of(IDS, REGIONS, VALUES))
def test_a_fold_gives_what_its_functions_make_of_the_latest_rows(batches: list[list[tuple[Any, ...]]]) -> None:
    def change(sign: int) -> Callable[[Row, Row], Row]:
        def changed(total: Row, row: Row) -> Row:
            counts = Counter(dict(one.values() for one in total["some"]))
            counts[row["v"] or 0] += sign
            return {"some": [{"v": v, "n": n} for v, n in sorted(counts.items()) if n]}

        return changed

    pair = pa.struct({"v": pa.int64(), "n": pa.int64()})
    logic = Fold(
        pa.schema({"region": pa.string()}), pa.schema({"some": pa.list_(pair)}), {"some": []}, change(1), change(-1)
    )
    revisions, folded, model = Run(Revisions(PEOPLE, ("id",), ("region", "v"))), Run(logic), Latest()
    signed = pa.schema({"region": pa.string(), "v": pa.int64(), SIGN: pa.int64()})
    for batch in filter(None, batches):
        model.put_batch((id, version, gone, (region, v)) for id, region, v, version, gone in batch)
        sent = revisions.batch(table(batch, pa.schema([*PEOPLE, *VERSIONED])))
        if sent:
            folded.batch(table([tuple(row.values()) for row in sent], signed))
    groups = defaultdict[Any, Counter[int]](Counter)
    for region, v in model.values().values():
        groups[region][v or 0] += 1
    state = {row["region"]: Counter(dict(one.values() for one in row["some"])) for row in folded.state.to_pylist()}
    assert state == groups


SIDES = st.sampled_from([LEFT, RIGHT])
BOTH = pa.schema(
    [*pa.schema({"id": pa.int64(), "name": pa.string(), "v": pa.int64()}), pa.field(SIDE, pa.int32()), *VERSIONED]
)


def exists(how: str, left: bool, right: bool) -> bool:
    return {"inner": left and right, "left": left, "full": left or right}[how]


@pytest.mark.parametrize("how", ["inner", "left", "full"])
@few
@given(batches=batches_of(st.none() | IDS, SIDES, st.sampled_from(["x", "y"])))
def test_a_join_of_tables_is_that_of_their_latest_rows(how: str, batches: list[list[tuple[Any, ...]]]) -> None:
    logic = Pairs(pa.schema([*BOTH][:3]), ("id",), ("name",), ("v",), how)
    run, sides, found = Run(logic), (Latest(), Latest()), dict[Any, tuple[Any, ...]]()
    versions = defaultdict[Any, list[int]](list)
    for batch in filter(None, batches):
        made = [
            (id, name if side == LEFT else None, ord(name) if side == RIGHT else None, side, version, gone)
            for id, side, name, version, gone in batch
        ]
        for number in (LEFT, RIGHT):
            sides[number].put_batch(
                (id, version, gone, (name, v)) for id, name, v, side, version, gone in made if side == number
            )
        for row in run.batch(table(made, BOTH)):
            versions[row["id"]].append(row["version"])
            found.pop(row["id"], None)
            if not row["deleted"]:
                found[row["id"]] = row["name"], row["v"]
        left, right = (side.values() for side in sides)
        expected = {}
        for id in left.keys() | right.keys():
            pair = left.get(id), right.get(id)
            if id is None:
                # Null equals nothing: a full join has one row for it, left's if there is one.
                pair = (pair[0], None) if pair[0] else (None, pair[1])
            if exists(how, pair[0] is not None, pair[1] is not None):
                expected[id] = pair[0][0] if pair[0] else None, pair[1][1] if pair[1] else None
        assert found == expected
    assert all(some == sorted(set(some)) for some in versions.values())


OURS = pa.schema({"id": pa.int64(), "fk": pa.string(), "name": pa.string()})
LINKED = pa.schema(
    [
        *pa.schema({"id": pa.int64(), "fk": pa.string(), "name": pa.string(), "v": pa.int64(), SIDE: pa.int32()}),
        *VERSIONED,
        pa.field(MOVED, pa.bool_()),
    ]
)
KEYS = st.sampled_from(["a", "b", None])


@pytest.mark.parametrize("how", ["inner", "left"])
@few
@given(
    batches=st.lists(
        st.tuples(rows_of(IDS, KEYS, st.sampled_from(["x", "y"])), rows_of(st.sampled_from(["a", "b"]), VALUES)),
        min_size=1,
        max_size=5,
    )
)
def test_a_join_by_a_foreign_key_is_that_of_the_latest_rows(
    how: str, batches: list[tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]]
) -> None:
    """Each foreign key is in a bucket of its own: the results of all buckets are put together by their versions."""
    links = Run(Links(OURS, ("id",), "fk"))
    logic = Linked(pa.schema([*LINKED][:4]), ("id",), "fk", ("fk", "name"), ("v",), how)
    buckets = {key: Run(logic) for key in ("a", "b", None)}
    ours, theirs = Latest(), Latest()
    best: dict[int, tuple[int, bool, tuple[Any, ...]]] = {}
    for left, right in batches:
        ours.put_batch((id, version, gone, (fk, name)) for id, fk, name, version, gone in left)
        theirs.put_batch((key, version, gone, (v,)) for key, v, version, gone in right)
        sent = links.batch(table(left, pa.schema([*OURS, *VERSIONED]))) if left else []
        rows = [
            (row["id"], row["fk"], row["name"], None, LEFT, row[ROW_VERSION], row[ROW_DELETED], row[MOVED])
            for row in sent
        ]
        rows += [(None, key, None, v, RIGHT, version, gone, None) for key, v, version, gone in right]
        for key, run in buckets.items():
            if mine := [row for row in rows if row[1] == key]:
                for row in run.batch(table(mine, LINKED)):
                    result = row["version"], row["deleted"], (row["fk"], row["name"], row["v"])
                    if row["id"] not in best or result[0] >= best[row["id"]][0]:
                        best[row["id"]] = result
        found = {id: values for id, (_, deleted, values) in best.items() if not deleted}
        known = theirs.values()
        expected = {
            id: (fk, name, known[fk][0] if fk in known else None)
            for id, (fk, name) in ours.values().items()
            if how == "left" or fk in known
        }
        assert found == expected


STREAM = pa.schema([*pa.schema({"id": pa.int64(), "name": pa.string(), "v": pa.int64(), SIDE: pa.int32()}), *VERSIONED])


@pytest.mark.parametrize("how", ["inner", "left"])
@few
@given(batches=st.lists(st.tuples(st.lists(st.none() | IDS, max_size=4), rows_of(IDS, VALUES)), min_size=1, max_size=4))
def test_a_stream_sees_the_latest_rows_of_a_table(how: str, batches: list[tuple[list[Any], list[Any]]]) -> None:
    logic = StreamTableLogic(pa.schema({"id": pa.int64(), "v": pa.int64()}), ("id",), ("id", "name"), ("v",), how)
    run, model = Run(logic), Latest()
    for number, (stream, right) in enumerate(batches):
        model.put_batch((id, version, gone, (v,)) for id, v, version, gone in right)
        rows: list[tuple[Any, ...]] = [
            (id, f"{number}-{place}", None, LEFT, None, None) for place, id in enumerate(stream)
        ]
        rows += [(id, None, v, RIGHT, version, gone) for id, v, version, gone in right]
        known = model.values()
        expected = [
            (id, name, known[id][0] if id in known else None)
            for id, name, _, side, *_ in rows
            if side == LEFT and (how == "left" or id in known)
        ]
        found = [tuple(row.values()) for row in run.batch(table(rows, STREAM))] if rows else []
        assert sorted(found, key=repr) == sorted(expected, key=repr)


def test_a_row_with_the_version_of_the_state_replaces_it_and_an_older_deletion_does_not() -> None:
    schema = pa.schema([pa.field("id", pa.int64()), *VERSIONED])
    state = table([(1, 5), (2, 5)], pa.schema([*schema][:2]))
    change = changes(state, table([(1, 5, True), (2, 4, True), (3, 9, True), (4, 1, False)], schema), ("id",))
    assert [row["id"] for row in change.rows.to_pylist()] == [1, 4]
    assert change.places.tolist() == [0, -1] and np.array_equal(change.gone, [True, False])
