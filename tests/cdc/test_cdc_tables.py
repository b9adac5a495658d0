"""Tables with a change log, and the columns of the log and the frame; the schema tables are the test's."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st
from log_pages import table

from penstock.cdc.cdc_tables import cdc_options, expand, find_table, frame_schema, layout, log_name, log_schema
from penstock.database.cql_types import spark_type
from penstock.errors import PenstockError

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def serialised(options: dict[str, str]) -> bytes:
    texts = [text.encode() for pair in options.items() for text in pair]
    return struct.pack("<I", len(options)) + b"".join(struct.pack("<I", len(text)) + text for text in texts)


@given(st.dictionaries(TEXT, TEXT, max_size=5))
def test_options_of_a_log_are_read_as_they_were_written(options: dict[str, str]) -> None:
    assert cdc_options(serialised(options)) == options


def test_a_table_without_options_has_none() -> None:
    assert cdc_options(b"") == {}


OPTIONS = {"enabled": "true", "preimage": "full", "ttl": "60"}


class Schema:
    """Schema tables with `shop.orders`, which has a log, and `shop.plain`, which has none."""

    TABLES = (
        *(("shop", "orders"), ("shop", "orders_scylla_cdc_log"), ("shop", "plain"), ("shop", "Odd Name")),
        *(("shop", "Odd Name_scylla_cdc_log"), ("shop2", "orders"), ("shop2", "orders_scylla_cdc_log"), ("empty", "t")),
    )

    def execute(self, text: str, values: tuple[str, ...] = ()) -> Any:
        if "SELECT keyspace_name, table_name" in text:
            return list(self.TABLES)
        if text.startswith("SELECT table_name"):
            return [(table,) for keyspace, table in self.TABLES if keyspace == values[0]]
        if "extensions" in text:
            known = (values[0], values[1]) in self.TABLES
            return SimpleNamespace(one=lambda: ({"cdc": serialised(OPTIONS)}, 1234) if known else None)
        if text.startswith("SELECT id"):
            return SimpleNamespace(one=lambda: ("an id",))
        if "system_schema.columns" in text:
            return [("id", "int", "partition_key", 0, "none"), ("v", "text", "regular", -1, "none")]
        return []


def test_a_table_has_the_options_and_the_id_of_its_log() -> None:
    found = find_table(Schema(), "Shop.orders")
    assert (found.full_name, found.log, found.altered) == ("shop.orders", "an id", 1234)
    assert (found.option("ttl"), found.option("none")) == ("60", "")
    assert found.has_image("preimage") and not found.has_image("postimage")
    assert log_name(found) == '"shop"."orders_scylla_cdc_log"'


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("shop.order", r"there is no table shop.order. .*tables with a change log in shop: Odd Name, orders"),
        ("shop.plain", r"table shop.plain has no change log. .*ALTER TABLE shop.plain WITH cdc = {'enabled': true}"),
        ("empty.none", "there is no table empty.none. .*keyspace empty has no table with a change log"),
        ("none.none", "there is no table none.none. .*keyspace none does not exist or is empty"),
        ("orders", "'orders' is not the name of a table"),
    ],
)
def test_a_table_that_cannot_be_read_is_told_with_the_next_step(name: str, said: str) -> None:
    with pytest.raises(PenstockError, match=said):
        find_table(Schema(), name)


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["shop.orders", "any.name"], ["shop.orders", "any.name"]),
        (["shop.*"], ['shop."Odd Name"', "shop.orders"]),
        (["*.order?"], ["shop.orders", "shop2.orders"]),
        (["SHOP?.*"], ["shop2.orders"]),
        (["shop.orders", "*.orders", "shop.orders"], ["shop.orders", "shop2.orders"]),
        (['shop."a*"'], ['shop."a*"']),
        (["shop.plain*", "none.*"], []),
    ],
)
def test_patterns_become_tables_with_a_log_without_duplicates(names: list[str], found: list[str]) -> None:
    assert expand(Schema(), names) == found


WIDE = table(
    "p int; q text",
    "c date",
    "s text",
    "v int; m map<text, int>; l list<text>; f frozen<list<int>>; u pair",
    pair="a int",
)


def test_the_log_has_each_column_with_the_columns_of_its_deletes() -> None:
    columns = layout(WIDE)
    fixed = ["cdc$stream_id", "cdc$time", "cdc$batch_seq_no", "cdc$operation", "cdc$ttl"]
    assert list(columns.names[:5]) == fixed and [str(kind) for kind in columns.kinds[:2]] == ["blob", "timeuuid"]
    assert [name for name in columns.names if name.startswith("cdc$deleted_elements_")] == [
        *("cdc$deleted_elements_l", "cdc$deleted_elements_m", "cdc$deleted_elements_u"),
    ]
    # A column of the key is never deleted.
    deleted = {name.removeprefix("cdc$deleted_") for name in columns.names if name.startswith("cdc$deleted_")}
    assert {name for name in deleted if not name.startswith("elements_")} == {"s", "v", "m", "l", "f", "u"}
    kinds = {name: str(columns.kinds[columns.at(name)]) for name in ("l", "m", "f", "u", "cdc$deleted_elements_u")}
    assert kinds == {
        "l": "frozen<map<timeuuid, text>>",
        "m": "frozen<map<text, int>>",
        "f": "frozen<list<int>>",
        "u": "frozen<pair>",
        "cdc$deleted_elements_u": "frozen<set<smallint>>",
    }


def test_rows_of_the_log_have_its_columns_unchanged() -> None:
    columns = layout(WIDE)
    schema = log_schema(columns)
    assert schema.names == list(columns.names)
    assert [field.dataType for field in schema] == [spark_type(kind) for kind in columns.kinds]
    assert log_schema(columns, problem=True).names == [*columns.names, "problem"]


@pytest.mark.parametrize(
    ("of", "absent"),
    [
        (WIDE, set()),
        (table("p int"), {"delta", "deleted_elements", "range"}),
        (table("p int", "c int"), {"delta", "deleted_elements"}),
        (table("p int", "", "", "v int"), {"deleted_elements", "range"}),
        (table("p int", "", "", "v frozen<list<int>>"), {"deleted_elements", "range"}),
        (table("p int", "", "", "v list<int>"), {"range"}),
    ],
)
def test_a_struct_without_fields_is_left_out_of_the_frame(of: Any, absent: set[str]) -> None:
    assert set(frame_schema(WIDE).names) - set(frame_schema(of).names) == absent
    assert frame_schema(of, problem=True).names[-1] == "problem"
    assert frame_schema(of)["key"].metadata["penstock.table"] == "ks.t"
