"""Events on their way to a bucket: packed, unpacked, joined, spread over rules and buckets, against plain Python."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st
from pyspark.sql.types import StringType, StructType

from penstock import segment
from penstock.segment import event_packing
from penstock.segment.event_packing import Packer, Touches, joined, packer, unpack
from penstock.segment.predicate_index import WORD, index
from penstock.segment.rule_definitions import Rule
from penstock.segment.rule_plan import RulePlan, plan

few = settings(max_examples=40)
LONGS = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(allow_nan=False, width=64)


class Event(NamedTuple):
    """An event as it reaches a bucket; `touches` are (rule, mask)."""

    key: int
    time: int
    id: bytes
    touches: tuple[tuple[int, int], ...]
    values: tuple[float, ...]


def events_of(wide: int) -> st.SearchStrategy[list[Event]]:
    touches = st.lists(st.tuples(st.integers(0, 2**31 - 1), LONGS), max_size=4).map(tuple)
    values = st.tuples(*[FLOATS] * wide)
    return st.lists(st.builds(Event, LONGS, LONGS, st.binary(max_size=6), touches, values), max_size=8)


def touches_of(events: list[Event], wide: int) -> Touches:
    flat = [touch for event in events for touch in event.touches]
    return Touches(
        np.array([event.key for event in events], np.int64),
        np.array([event.time for event in events], np.int64),
        np.cumsum([0, *(len(event.id) for event in events)], dtype=np.int64),
        np.frombuffer(b"".join(event.id for event in events), np.uint8),
        np.cumsum([len(event.touches) for event in events], dtype=np.int64),
        np.array([rule for rule, _ in flat], np.int32),
        np.array([mask for _, mask in flat], np.int64),
        np.array([event.values for event in events], np.float64).reshape(len(events), wide),
    )


def events_in(found: Touches) -> list[Event]:
    text, touched = found.ids.tobytes(), list(zip(found.rules.tolist(), found.masks.tolist(), strict=True))
    made = []
    for row in range(len(found)):
        first = int(found.ends[row - 1]) if row else 0
        made.append(
            Event(
                int(found.keys[row]),
                int(found.times[row]),
                text[found.offsets[row] : found.offsets[row + 1]],
                tuple(touched[first : found.ends[row]]),
                tuple(found.values[row].tolist()),
            )
        )
    return made


@few
@given(st.integers(0, 2).flatmap(lambda wide: st.tuples(st.just(wide), events_of(wide))))
def test_packed_events_are_unpacked_as_they_were(given: tuple[int, list[Event]]) -> None:
    wide, events = given
    found = unpack(touches_of(events, wide).pack())
    assert events_in(found) == events and len(found) == len(events)
    columns = vars(found)
    assert found.values.shape == (len(events), wide)
    # Compiled loops are compiled again for a read-only array, or one of another type.
    assert all(column.flags.writeable for column in columns.values())
    kinds = {name: column.dtype.str for name, column in columns.items()}
    longs = dict.fromkeys(("keys", "times", "offsets", "ends", "masks"), "<i8")
    assert kinds == longs | {"ids": "|u1", "rules": "<i4", "values": "<f8"}


@few
@given(st.lists(events_of(1), min_size=1, max_size=4))
def test_joined_parts_are_all_events_in_order(parts: list[list[Event]]) -> None:
    found = joined([touches_of(part, 1) for part in parts])
    assert events_in(found) == [event for part in parts for event in part]
    assert events_in(unpack(found.pack())) == events_in(found)


def test_the_layout_of_packed_events_stays() -> None:
    """The log of a checkpoint has these bytes."""
    event = Event(-2, 7, b"ann", ((3, 5), (4, -1)), (1.5,))
    data = touches_of([event], 1).pack()
    head = np.frombuffer(data, np.int64, 5).tolist()
    assert head[:4] == [1, 2, 3, 1]
    body = pa.decompress(data[40:], head[4], "lz4").to_pybytes()
    parts = [np.array(some, np.int64).tobytes() for some in ([-2], [7], [0, 3], [2], [5, -1])]
    assert body == b"".join([*parts, np.float64(1.5).tobytes(), np.array([3, 4], np.int32).tobytes(), b"ann"])


def rules_of(*conditions: str | segment.Condition) -> list[Rule]:
    return [segment.rule(f"r{i}", when=when, ttl="1 day", to="t") for i, when in enumerate(conditions)]


def many(count: int) -> list[Rule]:
    """Rules with `count` predicates, of which each is in two rules."""
    names = [f"p{number}" for number in range(count)]
    return rules_of(*names, *(segment.any_of(segment.latest(a), segment.latest(b)) for a, b in _pairs(names)))


def _pairs(names: list[str]) -> list[tuple[str, str]]:
    return list(zip(names[::2], names[1::2], strict=False))


class Row(NamedTuple):
    hash: int
    id: str
    at: int
    true: frozenset[int]
    value: float


def batch_of(rows: list[Row], plan: RulePlan) -> pa.RecordBatch:
    """What Spark gives to the packer: a bit for each predicate that is true."""
    words: list[list[int]] = [[0] * len(rows) for _ in range(-(-len(plan.predicates) // WORD))]
    for row, one in enumerate(rows):
        for bit in one.true:
            words[bit // WORD][row] |= 1 << bit % WORD
    bits = {f"b{i}": pa.array(np.array(some, np.uint64).view(np.int64)) for i, some in enumerate(words)}
    values = {f"v{i}": pa.array([row.value for row in rows], pa.float64()) for i in range(len(plan.values))}
    return pa.record_batch(
        {
            "hash": pa.array([row.hash for row in rows], pa.int64()),
            "id": pa.array([row.id for row in rows], pa.string()),
            "at": pa.array([row.at for row in rows], pa.int64()),
            **bits,
            **values,
        }
    )


def packed(pack: Packer, batches: list[pa.RecordBatch]) -> dict[int, list[tuple[Any, ...]]]:
    """By bucket the events in order, with their touches as sets; the column `newest` is checked."""
    found: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
    for batch in pack(iter(batches)):
        assert batch.schema.names == ["bucket", "events", "newest"]
        assert len(set(batch["bucket"].to_pylist())) == batch.num_rows
        for bucket, data, newest in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            events = events_in(unpack(data))
            assert events and newest.timestamp() * 1000 == pytest.approx(max(event.time for event in events))
            found[bucket] += [(*event[:3], frozenset(event.touches), event.values) for event in events]
    return found


def expected(rows: list[Row], plan: RulePlan, buckets: int) -> dict[int, list[tuple[Any, ...]]]:
    found: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
    for row in rows:
        masks: dict[int, int] = defaultdict(int)
        for predicate in row.true:
            for rule, bit in plan.uses[predicate]:
                masks[rule] |= 1 << bit
        if masks:
            values = (row.value,) * len(plan.values)
            found[row.hash % buckets].append((row.hash, row.at, row.id.encode(), frozenset(masks.items()), values))
    return found


PLANS = {
    "few": plan(many(3)),
    "words": plan(many(2 * WORD + 3)),
    "totals": plan(rules_of("a", segment.total("v", when="b", at_least=1, within="1 day"), segment.latest("a"))),
}
TIMES = st.integers(-(10**12), 4 * 10**12)


@few
@given(st.sampled_from(sorted(PLANS)), st.integers(1, 5), st.data())
def test_rows_are_packed_by_bucket_as_plain_python_does(name: str, buckets: int, data: st.DataObject) -> None:
    made = PLANS[name]
    true = st.frozensets(st.integers(0, len(made.predicates) - 1), max_size=6)
    rows = data.draw(st.lists(st.builds(Row, LONGS, st.text(max_size=3), TIMES, true, FLOATS), max_size=12))
    pack = packer(made, index(made.predicates, StructType()), buckets)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=2)))
    pieces = [rows[first:last] for first, last in zip([0, *cuts], [*cuts, len(rows)], strict=True)]
    found = packed(pack, [batch_of(piece, made) for piece in pieces])
    assert found == expected(rows, made, buckets)


def test_rows_that_touch_no_rule_reach_no_bucket() -> None:
    made = PLANS["few"]
    pack = packer(made, index(made.predicates, StructType()), 4)
    nothing = [Row(number, "x", 1, frozenset(), 0.0) for number in range(5)]
    assert packed(pack, [batch_of(nothing, made)]) == {}
    assert list(pack(iter([]))) == [] and list(pack(iter([batch_of([], made)]))) == []


def test_batches_are_gathered_until_there_are_enough_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_packing, "GATHERED", 4)
    made = PLANS["few"]
    pack = packer(made, index(made.predicates, StructType()), 1)
    batches = [batch_of([Row(1, "x", n, frozenset({0}), 0.0)] * n, made) for n in (3, 0, 2, 5, 1)]
    assert [len(unpack(batch["events"][0].as_py())) for batch in pack(iter(batches))] == [5, 5, 1]


def test_touches_of_many_rules_grow_beyond_the_room_that_was_made() -> None:
    made = plan(rules_of(*["a"] * 40))
    rows = [Row(number, str(number), number, frozenset({0}), 0.0) for number in range(200)]
    pack = packer(made, index(made.predicates, StructType()), 3)
    assert packed(pack, [batch_of(rows, made)]) == expected(rows, made, 3)


def test_predicates_about_strings_are_looked_up() -> None:
    made = plan(rules_of("kind = 'buy'", "kind IN ('buy', 'cart')", "kind = 'buy' AND page = 'a'"))
    schema = StructType().add("kind", StringType()).add("page", StringType())
    found = index(made.predicates, schema)
    assert found.asked == () and set(found.columns) == {"kind", "page"}
    kinds, pages = ["buy", "cart", "other", None, "buy"], ["b", "a", "a", "a", "a"]
    columns = {"kind": kinds, "page": pages}
    batch = pa.record_batch(
        {
            "hash": pa.array(range(5), pa.int64()),
            "id": pa.array("abcde"),
            "at": pa.array(range(5), pa.int64()),
            **{f"t{i}": pa.array(columns[name]) for i, name in enumerate(found.columns)},
        }
    )
    events = packed(packer(made, found, 1), [batch])[0]
    assert [(id, sorted(rule for rule, _ in touched)) for _, _, id, touched, _ in events] == [
        (b"a", [0, 1]),
        (b"b", [1]),
        (b"e", [0, 1, 2]),
    ]
