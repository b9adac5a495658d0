"""Names of tables, and tables as the database's schema tables describe them."""

from __future__ import annotations

from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from growth import assert_linear
from hypothesis import example, given, strategies as st

from penstock.database.cql_types import DEEPEST, parse_type
from penstock.database.table_catalog import base_name, describe, quoted, split_name, table_names, token_of_key
from penstock.errors import PenstockError

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)

COLUMNS = [
    ("shop", "orders", "v", "map<text, frozen<place>>", "regular", -1, "none"),
    ("shop", "orders", "b", "int", "partition_key", 1, "none"),
    ("shop", "orders", "a", "text", "partition_key", 0, "none"),
    ("shop", "orders", "at", "timestamp", "clustering", 0, "desc"),
    ("shop", "orders", "S", "text", "static", -1, "none"),
    ("shop", "Orders", "id", "int", "partition_key", 0, "none"),
]
TYPES = [("shop", "place", ["city", "spot"], ["text", "frozen<point>"]), ("shop", "point", ["x"], ["double"])]


class Schema:
    """The schema tables of a database."""

    def execute(self, text: str, values: tuple[str, ...]) -> list[tuple[Any, ...]]:
        if "system_schema.tables" in text:
            return sorted({(row[1],) for row in COLUMNS if row[0] == values[0]})
        if "system_schema.types" in text:
            return [row[1:] for row in TYPES if row[0] == values[0]]
        return [row[2:] for row in COLUMNS if row[:2] == values]


@given(NAMES, NAMES)
@example('a"b', "c.d")
@example('"', " ")
def test_a_quoted_name_keeps_every_character(keyspace: str, table: str) -> None:
    assert split_name(f"{quoted(keyspace)}.{quoted(table)}") == (keyspace, table)
    assert split_name(f"  {quoted(keyspace)}.{quoted(table)}\n") == (keyspace, table)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("shop.orders", ("shop", "orders")),
        ("Shop.ORDERS", ("shop", "orders")),
        ('Shop."Orders"', ("shop", "Orders")),
        ('"a.b".c_1', ("a.b", "c_1")),
    ],
)
def test_a_name_without_quotes_is_in_lower_case(text: str, names: tuple[str, str]) -> None:
    assert split_name(text) == names


@pytest.mark.parametrize("text", ["orders", "a.b.c", ".b", "a.", 'a."', 'a.""', 'a."b"c', "a b.c", "a.b; DROP", ""])
def test_what_is_no_table_name_is_refused(text: str) -> None:
    with pytest.raises(PenstockError, match=r"is not the name of a table.*keyspace.table"):
        split_name(text)


def test_a_table_has_its_columns_in_byte_order_and_its_key_in_the_key_s() -> None:
    table = describe(Schema(), "Shop.orders")
    assert table.full_name == "shop.orders" and [column.name for column in table.columns] == ["S", "a", "at", "b", "v"]
    assert [column.name for column in table.partition_key] == ["a", "b"]
    assert [column.name for column in table.clustering_key] == ["at"] == list(table.descending)
    assert [column.name for column in table.values] == ["S", "v"]
    udts = {"place": (("city", "spot"), ("text", "frozen<point>")), "point": (("x",), ("double",))}
    assert next(c for c in table.columns if c.name == "v").type == parse_type("map<text, frozen<place>>", udts)
    assert sorted(table.udts) == ["place", "point"]


def test_cql_for_a_table_quotes_what_needs_quotes() -> None:
    assert base_name(describe(Schema(), 'shop."Orders"')) == '"shop"."Orders"'
    assert token_of_key(describe(Schema(), "shop.orders")) == 'token("a", "b")'
    assert quoted('a"b') == '"a""b"'


def test_a_missing_table_is_told_with_those_that_exist() -> None:
    with pytest.raises(
        PenstockError, match=r"there is no table shop.order\. .*one of the tables in shop: Orders, orders"
    ):
        describe(Schema(), "shop.order")
    with pytest.raises(PenstockError, match=r"there is no table sho.orders.*keyspace sho does not exist or is empty"):
        describe(Schema(), "sho.orders")
    assert table_names(Schema(), "shop") == {"Orders", "orders"}


def test_at_most_ten_other_tables_are_listed() -> None:
    many = SimpleNamespace(execute=lambda text, _: [(f"t{n:02}",) for n in range(30)] if "tables" in text else [])
    with pytest.raises(PenstockError, match=r"in shop: t00, .*, t09$"):
        describe(many, "shop.none")


@pytest.mark.parametrize(
    "piece", [" ", '"', "'", "<", ">", ",", "list<", "a", "a ", "tuple<int,", "vector<float, 1", '""']
)
def test_a_type_costs_as_much_as_it_is_long(piece: str) -> None:
    def read(size: int) -> None:
        with suppress(PenstockError):
            parse_type(f"tuple<{piece * (size // len(piece))}>!", {})

    assert_linear(read, 20_000)


def test_types_in_types_are_bounded() -> None:
    assert parse_type("frozen<" * DEEPEST + "int" + ">" * DEEPEST, {}).name == "int"
    with pytest.raises(PenstockError, match=f"more than {DEEPEST} levels"):
        parse_type("list<" * 100_000, {})
