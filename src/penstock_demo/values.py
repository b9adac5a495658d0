"""Small pools of values to draw from: each value as the driver binds it, and as it is in an event."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from decimal import Decimal
from itertools import product
from random import Random
from typing import Any, NamedTuple, TypeVar

from cassandra.util import Date

_T = TypeVar("_T")


class Pair(NamedTuple):
    """A value: what the driver binds, and what the event has."""

    bound: Any
    image: Any


def draw(rng: Random, pool: list[_T]) -> _T:
    # Costs a third of Random.choice; the list is never empty.
    return pool[int(rng.random() * len(pool))]


def entries(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A map as it is in an event."""
    return [{"key": key, "value": values[key]} for key in sorted(values)]


def _same(values: Iterable[Any]) -> list[Pair]:
    return [Pair(value, value) for value in values]


def _decimals(count: int) -> list[Pair]:
    return [Pair(amount, str(amount)) for amount in (Decimal(cents).scaleb(-2) for cents in range(5, 37 * count, 37))]


def _sets(words: list[str]) -> list[Pair]:
    return [Pair({a, b}, sorted({a, b})) for a, b in product(words, words)]


def _maps(words: list[str], values: Iterable[Any]) -> list[Pair]:
    maps = [{a: value, b: value} for (a, b), value in zip(product(words, words), values, strict=False)]
    return [Pair(one, entries(one)) for one in maps]


_WORDS = ["blue", "gift", "late", "new", "sale", "small", "spare", "top"]
_TITLES = [f"{a} {b}" for a, b in product(_WORDS, ["bottle", "chair", "kettle", "lamp", "müsli", "żurek"])]
_CITIES = ["Bergen", "Kraków", "Lisboa", "Oslo", "Tartu", "Zürich"]

ELEMENTS = _WORDS
"""Elements of sets and keys of maps."""

POOLS: dict[str, list[Pair]] = {
    "name": _same(f"customer {n}" for n in range(100)),
    "tier": _same([*range(5), None]),
    "status": _same(["open", "paid", "packed", "sent", "returned", 'on "hold"', None]),
    "total": _decimals(500),
    "placed": _same(range(1_700_000_000_000, 1_700_000_900_000, 1_234)),
    "lines": _maps(_WORDS, range(1, 65)),
    "tags": _sets(_WORDS),
    "notes": [Pair(list(two), list(two)) for two in product(_TITLES[:8], _TITLES[8:16])] + [Pair([], None)],
    "address": [
        Pair((street, city, code), {"street": street, "city": city, "zip": code})
        for street, city, code in product(["High St 1", "Rue d'Or 2", "Ulica 3"], _CITIES, [1000, 2345])
    ],
    "coupon": _same(["SPRING", "WELCOME", None]),
    "quantity": _same(range(1, 20)),
    "price": _same(range(10**12, 10**12 + 100)),
    "gift": _same([True, False]),
    "options": [Pair(list(two), list(two)) for two in product(_WORDS[:4], _WORDS[4:])] + [Pair([], [])],
    "page": _same(f"/shelf/{n}" for n in range(200)),
    "seconds": _same(range(3_000)),
    "score": _same(n / 64 for n in range(1, 64)),
    "title": _same(_TITLES),
    "cost": _decimals(200),
    "stock": _same([*range(300), None]),
    "labels": _sets(_WORDS),
    "attributes": _maps(_WORDS, [f"a{n}" for n in range(64)]),
}
"""Values for each column that is not part of a key; columns with the same name in two tables have the same type."""

FIELDS: dict[str, list[Any]] = {"city": _CITIES, "zip": [10, 20, 30]}
"""Values for single fields of an address."""


def _clustering(bound: Iterable[Any], image: Iterable[Any]) -> list[Pair]:
    return [Pair(one, other) for one, other in zip(bound, image, strict=True)]


# The driver's own date type: it saves a conversion at each use.
_DAYS = [Date(f"2026-03-{day}") for day in ("14", "10", "05", "02")]

CLUSTERING: dict[str, list[Pair]] = {
    "orders": _same((n,) for n in range(12)),
    "carts": _same((f"product-{n:02}",) for n in range(10)),
    "visits": _clustering(
        product(_DAYS, range(4)),
        ((day.days_from_epoch, slot) for day, slot in product(_DAYS, range(4))),
    ),
    "products": _same([()]),
}
"""The clustering keys a partition can have, in the table's clustering order."""


def partition_keys(table: str, count: int) -> list[Pair]:
    """Keys of `count` partitions, always the same."""
    numbers = range(count)
    if table == "carts":
        ids = [uuid.UUID(int=0x5EED << 96 | number) for number in numbers]
        return [Pair((one,), (str(one),)) for one in ids]
    return _same((f"sku-{number:06}" if table == "products" else number,) for number in numbers)
