"""The writes of the load, and how often each is chosen."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from random import Random

from penstock_demo import operations as op
from penstock_demo.model import Partition
from penstock_demo.operations import Operation, Statement, Write
from penstock_demo.shop import ADDRESS, CARTS, ORDERS, PRODUCTS, TABLES, VISITS
from penstock_demo.values import draw, partition_keys

_ORDER = ("status", "total", "placed", "lines", "tags", "notes", "address")

Weighted = list[tuple[Operation, int]]

WEIGHTS: dict[str, Weighted] = {
    "orders": [
        (op.insert(ORDERS, _ORDER), 16),
        (op.insert(ORDERS, ("name", "tier", "status", "total")), 3),
        (op.update(ORDERS, ("status", "total")), 12),
        (op.update(ORDERS, ("status",), ttl=True), 4),
        (op.add_to_set(ORDERS, "tags"), 5),
        (op.remove_from_set(ORDERS, "tags"), 3),
        (op.put_in_map(ORDERS, "lines"), 6),
        (op.remove_from_map(ORDERS, "lines"), 3),
        (op.append_to_list(ORDERS, "notes"), 4),
        (op.update(ORDERS, ("notes",)), 3),
        (op.set_field(ORDERS, "address", ADDRESS, "city"), 3),
        (op.set_field(ORDERS, "address", ADDRESS, "zip"), 2),
        (op.update_static(ORDERS, "tier"), 3),
        (op.delete_row(ORDERS), 5),
        (op.delete_between(ORDERS), 2),
        (op.delete_after(ORDERS), 1),
        (op.delete_partition(ORDERS), 1),
        (op.batch(ORDERS, "total", "status"), 4),
    ],
    "carts": [
        (op.insert(CARTS, ("quantity", "price", "gift", "options")), 12),
        (op.insert(CARTS, ("quantity", "price", "gift"), ttl=True), 8),
        (op.update(CARTS, ("quantity",)), 14),
        (op.update(CARTS, ("options", "gift"), ttl=True), 4),
        (op.update_static(CARTS, "coupon"), 3),
        (op.delete_row(CARTS), 7),
        (op.delete_between(CARTS), 2),
        (op.delete_after(CARTS), 1),
        (op.delete_partition(CARTS), 2),
        (op.batch(CARTS, "quantity", "options"), 3),
    ],
    "visits": [
        (op.insert(VISITS, ("page", "seconds", "score")), 30),
        (op.update(VISITS, ("seconds", "score")), 12),
        (op.delete_row(VISITS), 2),
        (op.delete_prefix(VISITS), 2),
        (op.delete_descending(VISITS), 2),
        (op.delete_partition(VISITS), 1),
        (op.batch(VISITS, "page", "seconds"), 3),
    ],
    "products": [
        (op.insert(PRODUCTS, ("title", "cost", "stock", "labels", "attributes")), 8),
        (op.update(PRODUCTS, ("stock",)), 16),
        (op.add_to_set(PRODUCTS, "labels"), 3),
        (op.remove_from_set(PRODUCTS, "labels"), 2),
        (op.put_in_map(PRODUCTS, "attributes"), 3),
        (op.delete_partition(PRODUCTS), 3),
    ],
}
"""The operations of each table, each with its share of the load."""


class Mix:
    """Draws writes over a set of partitions; never two at a time for the same partition."""

    def __init__(
        self, rng: Random, *, partitions: int, tables: Iterable[str] = tuple(TABLES), appends: bool = True
    ) -> None:
        """`partitions` for each table. Without `appends` no write appends to a list: a second attempt appends again."""
        self._rng, self.tables = rng, tuple(tables)
        self._choices = [
            (name, operation)
            for name in self.tables
            for operation, n in WEIGHTS[name]
            for _ in range(n)
            if appends or _tried(name, operation).appends_to is None
        ]
        self._partitions = {name: _partitions(name, partitions) for name in self.tables}

    def next(self) -> Write:
        """A write to a free partition, which is then busy until its `busy` is reset. One must be free."""
        while True:
            name, operation = draw(self._rng, self._choices)
            partition = draw(self._rng, self._partitions[name])
            if not partition.busy:
                partition.busy = True
                return operation(self._rng, partition)

    def partitions(self) -> Iterable[Partition]:
        """Every partition."""
        return chain.from_iterable(self._partitions.values())


def statements(tables: Iterable[str] = tuple(TABLES)) -> Iterable[Statement]:
    """Every statement of the load on these tables."""
    for name in tables:
        for operation, _ in WEIGHTS[name]:
            yield _tried(name, operation).statement


def _tried(name: str, operation: Operation) -> Write:
    """A write of this kind to a temporary partition."""
    return operation(Random(0), *_partitions(name, 1))


def _partitions(name: str, count: int) -> list[Partition]:
    return [Partition(TABLES[name], key.image, key.bound) for key in partition_keys(name, count)]
