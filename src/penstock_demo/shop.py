"""The demo's tables: their CQL, and what the load and the proof need to know of their columns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

KEYSPACE = "shop"

# A preimage of the written columns would leave the others null in `before` of an insert over a row.
CDC = "cdc = {'enabled': true, 'preimage': 'full', 'postimage': true}"

ADDED = "added_"
"""The prefix of the columns that are added while the demo runs."""

ADDRESS = ("street", "city", "zip")


@dataclass(frozen=True)
class Table:
    """A table: its columns by their role, and the columns whose elements have no order in an event.

    `order` is that of the rows of a partition, which an event of a deleted range names if there are several columns.
    """

    name: str
    partition: tuple[str, ...]
    clustering: tuple[str, ...]
    statics: tuple[str, ...]
    regular: tuple[str, ...]
    unordered: tuple[str, ...]
    cql: str
    order: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, ...]:
        return self.partition + self.clustering


ORDERS = Table(
    name="orders",
    partition=("customer",),
    clustering=("number",),
    statics=("name", "tier"),
    regular=("status", "total", "placed", "lines", "tags", "notes", "address"),
    unordered=("lines", "tags"),
    cql=f"""
        CREATE TABLE {KEYSPACE}.orders (
            customer int, number int, name text STATIC, tier int STATIC,
            status text, total decimal, placed timestamp,
            lines map<text, int>, tags set<text>, notes list<text>, address address,
            PRIMARY KEY (customer, number)
        ) WITH {CDC}""",
)

CARTS = Table(
    name="carts",
    partition=("shopper",),
    clustering=("product",),
    statics=("coupon",),
    regular=("quantity", "price", "gift", "options"),
    unordered=(),
    cql=f"""
        CREATE TABLE {KEYSPACE}.carts (
            shopper uuid, product text, coupon text STATIC,
            quantity int, price bigint, gift boolean, options frozen<list<text>>,
            PRIMARY KEY (shopper, product)
        ) WITH {CDC}""",
)

VISITS = Table(
    name="visits",
    partition=("shopper",),
    clustering=("day", "slot"),
    statics=(),
    regular=("page", "seconds", "score"),
    unordered=(),
    cql=f"""
        CREATE TABLE {KEYSPACE}.visits (
            shopper int, day date, slot int, page text, seconds bigint, score double,
            PRIMARY KEY (shopper, day, slot)
        ) WITH CLUSTERING ORDER BY (day DESC, slot ASC) AND {CDC}""",
    order=("day DESC", "slot ASC"),
)

PRODUCTS = Table(
    name="products",
    partition=("sku",),
    clustering=(),
    statics=(),
    regular=("title", "cost", "stock", "labels", "attributes"),
    unordered=("labels", "attributes"),
    cql=f"""
        CREATE TABLE {KEYSPACE}.products (
            sku text PRIMARY KEY, title text, cost decimal, stock int,
            labels set<text>, attributes map<text, text>
        ) WITH {CDC}""",
)

TABLES = {table.name: table for table in (ORDERS, CARTS, VISITS, PRODUCTS)}


def statements(copies: int = 1, tables: Iterable[str] = tuple(TABLES)) -> Iterable[str]:
    """The CQL that creates these tables of the shop, in order; `copies` is the replication factor."""
    yield f"CREATE KEYSPACE {KEYSPACE} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': {copies}}}"
    yield f"CREATE TYPE {KEYSPACE}.address (street text, city text, zip int)"
    for table in tables:
        yield TABLES[table].cql


def add_column(number: int) -> str:
    """The CQL that adds a column to one of the tables, chosen in turn by `number`."""
    return f"ALTER TABLE {KEYSPACE}.{list(TABLES)[number % len(TABLES)]} ADD {ADDED}{number} text"
