"""The CQL of changes as writes to a table: each keeps its own time, so that applying it again or late changes nothing.

Every statement names its timestamp, and every write its time to live, 0 for none: without one, the table's default
would count. Texts have a place for each value, so that a node prepares few of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

from penstock.cql.cql_writer import MAX_TTL
from penstock.database.cql_types import CqlTable
from penstock.database.requests import Expiry, Value
from penstock.database.table_catalog import base_name, quoted

Cells = list[bytes | None]
_NEVER = bytes(4)


class TableStatements:
    """The texts of statements for one table."""

    def __init__(self, table: CqlTable) -> None:
        self.table = table
        self.name = base_name(table)
        self.partition = [column.name for column in table.partition_key]
        self.clustering = [column.name for column in table.clustering_key]
        self._texts: dict[tuple[str, ...], str] = {}

    @cached_property
    def of_partition(self) -> str:
        return _all_equal(self.partition)

    @cached_property
    def of_row(self) -> str:
        return _all_equal([*self.partition, *self.clustering])

    def insert(self, columns: Sequence[str]) -> str:
        """Binds the key, the columns, the time and the time to live."""
        return self._text("insert", columns, self._insert)

    def update(self, assignments: Sequence[str], *, static: bool) -> str:
        """Binds the time, the time to live, the assignments and the key."""
        return self._text("update static" if static else "update", assignments, self._update)

    def delete(self, where: Sequence[str]) -> str:
        """Binds the time, and what the conditions bind."""
        return self._text("delete", where, self._delete)

    def _text(self, kind: str, parts: Sequence[str], make: Callable[[str, Sequence[str]], str]) -> str:
        known = (kind, *parts)
        if known not in self._texts:
            self._texts[known] = make(kind, parts)
        return self._texts[known]

    def _insert(self, kind: str, columns: Sequence[str]) -> str:
        names = [*self.partition, *self.clustering, *columns]
        marks = ", ".join("?" * len(names))
        return f"INSERT INTO {self.name} ({_listed(names)}) VALUES ({marks}) USING TIMESTAMP ? AND TTL ?"

    def _update(self, kind: str, assignments: Sequence[str]) -> str:
        where = self.of_partition if kind == "update static" else self.of_row
        return f"UPDATE {self.name} USING TIMESTAMP ? AND TTL ? SET {', '.join(assignments)} WHERE {where}"

    def _delete(self, kind: str, where: Sequence[str]) -> str:
        return f"DELETE FROM {self.name} USING TIMESTAMP ? WHERE {' AND '.join(where)}"


def time_to_live(expires: int | None, now: int) -> Value:
    """The time to live of values that expire then, in seconds since 1970; None for never."""
    return _NEVER if expires is None else Expiry(min(expires, now + MAX_TTL))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(quoted, names))


def _all_equal(names: Sequence[str]) -> str:
    return " AND ".join(f"{quoted(name)} = ?" for name in names)


def to(column: str) -> str:
    """An assignment of the whole column."""
    return f"{quoted(column)} = ?"


def added(column: str) -> str:
    return f"{quoted(column)} = {quoted(column)} + ?"


def removed(column: str) -> str:
    return f"{quoted(column)} = {quoted(column)} - ?"


def to_field(column: str, field: str) -> str:
    return f"{quoted(column)}.{quoted(field)} = ?"


# A deleted range of rows, as slices of one column each: only they can be said where columns differ in their order.


def slices(
    columns: Sequence[str],
    start: Sequence[bytes],
    start_inclusive: bool,
    end: Sequence[bytes],
    end_inclusive: bool,
    descending: Sequence[bool],
) -> list[tuple[list[str], list[bytes]]]:
    """The conditions that together select a range, each with the values that it binds.

    `start` and `end` are values of the first `columns`, in the order of the rows; a bound without values is open.
    """
    common = 0
    while common < min(len(start), len(end)) and start[common] == end[common]:
        common += 1
    if common == len(start) == len(end):
        both = start_inclusive and end_inclusive
        return [([to(name) for name in columns[:common]], list(start))] if both else []
    return [
        *_tail(columns, start, common, ">", start_inclusive, descending),
        _middle(columns, (start, start_inclusive), (end, end_inclusive), common, descending),
        *_tail(columns, end, common, "<", end_inclusive, descending),
    ]


def _tail(
    columns: Sequence[str], bound: Sequence[bytes], common: int, side: str, inclusive: bool, descending: Sequence[bool]
) -> list[tuple[list[str], list[bytes]]]:
    """The rows beside a bound with several values, which share its first ones: those that `_middle` leaves out."""
    tail = []
    for depth in range(len(bound) - 1, common, -1):
        last = depth == len(bound) - 1
        condition = _beyond(columns[depth], side, last and inclusive, descending[depth])
        tail.append(([*map(to, columns[:depth]), condition], list(bound[: depth + 1])))
    return tail


def _middle(
    columns: Sequence[str],
    first: tuple[Sequence[bytes], bool],
    last: tuple[Sequence[bytes], bool],
    common: int,
    descending: Sequence[bool],
) -> tuple[list[str], list[bytes]]:
    """The rows between the bounds by the first column in which these differ."""
    conditions, values = list(map(to, columns[:common])), list(first[0][:common])
    for (bound, inclusive), side in ((first, ">"), (last, "<")):
        if len(bound) > common:
            whole = inclusive and len(bound) == common + 1
            conditions.append(_beyond(columns[common], side, whole, descending[common]))
            values.append(bound[common])
    return conditions, values


def _beyond(column: str, side: str, inclusive: bool, descending: bool) -> str:
    sign = {">": "<", "<": ">"}[side] if descending else side
    return f"{quoted(column)} {sign}{'=' if inclusive else ''} ?"
