"""What the shop's proof keeps of writes and of records: events of the journal, and records that are not events."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given, strategies as st

from penstock_demo import journal
from penstock_demo.consume import key_of, record_of
from penstock_demo.model import Event
from penstock_demo.shop import ORDERS
from penstock_demo.watch import percentile

KEY = {"customer": 1, "number": 2}
IMAGE: dict[str, Any] = {**KEY, **dict.fromkeys((*ORDERS.statics, *ORDERS.regular))}
SOURCE = {"name": "shop", "keyspace_name": "shop", "table_name": "orders", "ts_us": 77}


def value(**changes: Any) -> bytes:
    return orjson.dumps({"op": "u", "before": None, "after": IMAGE, "source": SOURCE} | changes)


def op_of(data: bytes | None, table: str = "orders") -> str:
    return record_of(table, (1, 2), data, 0, 5, 9).op


def test_a_record_has_what_the_proof_compares() -> None:
    record = record_of("orders", (1, 2), value(), 2, 5, 9)
    assert record == ("orders", (1, 2), 77, "u", journal.digest(ORDERS, None, IMAGE, None), 2, 5, 9)


def test_a_tombstone_has_neither_time_nor_op() -> None:
    assert record_of("orders", (1, 2), None, 2, 5, 9) == ("orders", (1, 2), 0, "", 0, 2, 5, 9)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"7",
        b"[]",
        b"{",
        b"\xff",
        b"null",
        value(source=None),
        value(source=SOURCE | {"name": "other"}),
        value(source=SOURCE | {"keyspace_name": "other"}),
        value(source=SOURCE | {"table_name": "carts"}),
        orjson.dumps({"op": "u", "source": SOURCE}),
        value(source={name: SOURCE[name] for name in SOURCE if name != "ts_us"}),
    ],
)
def test_a_value_that_is_not_an_event_of_the_table_is_never_expected(data: bytes) -> None:
    assert op_of(data) == "?"


def test_an_added_column_without_a_value_changes_nothing() -> None:
    plain = record_of("orders", (1, 2), value(), 0, 0, 0).digest
    assert record_of("orders", (1, 2), value(after={**IMAGE, "added_3": None}), 0, 0, 0).digest == plain
    assert record_of("orders", (1, 2), value(after={**IMAGE, "added_3": "x"}), 0, 0, 0).digest != plain
    assert record_of("orders", (1, 2), value(after={**IMAGE, "other": None}), 0, 0, 0).digest != plain


@pytest.mark.parametrize("text", [None, b"", b"5", b"[1, 2]", b'{"customer": 1}', b"\xff"])
def test_a_key_that_cannot_be_read_is_its_own_key(text: bytes | None) -> None:
    assert key_of("orders", text) == ("unreadable", text)


def test_a_key_has_the_columns_in_the_order_of_the_table() -> None:
    assert key_of("orders", b'{"number": 2, "customer": 1}') == (1, 2)
    assert key_of("visits", b'{"slot": null, "day": null, "shopper": 4}') == (4, None, None)


@given(st.permutations(["a", "b", "c"]), st.permutations(["x", "y"]))
def test_a_digest_has_no_order_of_elements_of_sets_and_maps(tags: list[str], keys: list[str]) -> None:
    lines = [{"key": key, "value": 1} for key in keys]
    image = IMAGE | {"tags": tags, "lines": lines}
    straight = IMAGE | {"tags": ["a", "b", "c"], "lines": [{"key": "x", "value": 1}, {"key": "y", "value": 1}]}
    assert journal.digest(ORDERS, image, None, None) == journal.digest(ORDERS, straight, None, None)
    assert journal.digest(ORDERS, None, image, None) != journal.digest(ORDERS, image, None, None)


def test_a_list_has_an_order_and_a_null_is_not_an_empty_set() -> None:
    one, other = IMAGE | {"notes": ["a", "b"]}, IMAGE | {"notes": ["b", "a"]}
    assert journal.digest(ORDERS, one, None, None) != journal.digest(ORDERS, other, None, None)
    assert journal.digest(ORDERS, IMAGE | {"tags": []}, None, None) != journal.digest(ORDERS, IMAGE, None, None)


def written(stamps: list[int], *, op: str = "u", late: bool = False, also: list[list[Any]] | None = None) -> bytes:
    event = Event(KEY, op, IMAGE, None if op == "d" else IMAGE)
    return journal.line(ORDERS, [event], stamps, late=late, also=[also] if also else [])


def test_only_the_last_attempt_is_certain() -> None:
    found = list(journal.expected([written([10, 20, 30])]))
    assert [(one.identity, one.certain) for one in found] == [
        (("orders", (1, 2), stamp, "u"), stamp == 30) for stamp in (10, 20, 30)
    ]
    assert len({one.digests for one in found}) == 1


def test_in_a_cluster_an_unanswered_attempt_may_have_any_image_and_a_late_write_may_be_missing() -> None:
    first, last = journal.expected([written([10, 20], late=True)], cluster=True)
    assert first.digests == () and last.digests != ()
    assert (first.certain, last.certain) == (False, False)
    assert [one.certain for one in journal.expected([written([10], late=True)])] == [True]


def test_further_images_are_right_as_well() -> None:
    other = IMAGE | {"status": "open"}
    (found,) = journal.expected([written([10], also=[[IMAGE, other]])])
    assert found.digests == (
        journal.digest(ORDERS, IMAGE, IMAGE, None),
        journal.digest(ORDERS, IMAGE, other, None),
    )


def test_lines_are_numbered_for_examples() -> None:
    assert [one.line for one in journal.expected([written([1]), written([2, 3]), written([4])])] == [0, 1, 1, 2]


@pytest.mark.parametrize(
    ("op", "key", "follows"),
    [
        ("d", (1, 2), True),
        ("d", (1, None), False),
        ("d", (1, 5, None), False),
        ("d", ("sku",), True),
        ("u", ("s", "p"), False),
        ("u", ("s", None), False),
    ],
    ids=str,
)
def test_a_tombstone_follows_the_delete_of_a_row(op: str, key: tuple[Any, ...], follows: bool) -> None:
    assert journal.has_tombstone(op, key) is follows


@pytest.mark.parametrize(
    ("share", "seconds"), [(0.0, 1.0), (0.5, 2.0), (0.51, 3.0), (0.75, 3.0), (0.99, 4.0), (1.0, 4.0)]
)
def test_a_percentile_is_the_least_value_that_so_many_do_not_exceed(share: float, seconds: float) -> None:
    assert percentile([1_000_000, 2_000_000, 3_000_000, 4_000_000], share) == seconds
    assert percentile([], share) == 0.0
