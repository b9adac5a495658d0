"""The independent proof: both sides of each table, read row by row with the Python driver, and compared here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock_demo.node import connect
from penstock_demo.shop import KEYSPACE

PROBLEMS = ("lost", "extra", "wrong", "misdated")
MOST_EXAMPLES = 5
COLLECTIONS = ("map<", "set<", "list<", "address")
"""How the types begin whose elements have times of their own."""
TTL_SLACK = 3
"""Seconds: both sides are read one after the other."""

Key = tuple[Any, ...]
Row = tuple[dict[str, Any], dict[str, Any], dict[str, Any]]
"""Values, write times and times to live by column."""


@dataclass
class Sides:
    """What was compared: rows of the source, and rows that are not as they should be.

    `lost` rows are only in the source, `extra` ones only in the target; `wrong` ones have other values, `misdated` ones
    other write times or times to live.
    """

    rows: Counter[str] = field(default_factory=Counter)
    problems: dict[str, Counter[str]] = field(default_factory=lambda: {name: Counter() for name in PROBLEMS})
    examples: list[dict[str, Any]] = field(default_factory=list)

    def total(self, problem: str) -> int:
        return self.problems[problem].total()

    def compare(self, table: str, source: Mapping[Key, Row], target: Mapping[Key, Row]) -> None:
        self.rows[table] += len(source)
        for key in {**source, **target}:
            problem = _problem(source.get(key), target.get(key))
            if problem:
                self.problems[problem][table] += 1
                if len(self.examples) < MOST_EXAMPLES:
                    texts = {"source": repr(source.get(key)), "target": repr(target.get(key))}
                    self.examples.append({"problem": problem, "table": table, "key": repr(key), **texts})


def _problem(source: Row | None, target: Row | None) -> str:
    if source is None or target is None:
        return "extra" if source is None else "lost"
    if source[0] != target[0]:
        return "wrong"
    near = all(_near(one, target[2][name]) for name, one in source[2].items())
    return "" if source[1] == target[1] and near else "misdated"


def _near(one: int | None, other: int | None) -> bool:
    return one == other or (one is not None and other is not None and abs(one - other) <= TTL_SLACK)


def compared(source: str, target: str, copy: str, tables: Mapping[str, tuple[str, ...]]) -> Sides:
    """Compare the shop's tables, given with their keys, at `source` with those of the keyspace `copy` at `target`."""
    found = Sides()
    with connect(source) as ours, connect(target) as theirs:
        for table, key in tables.items():
            rows = [dict(_rows(session, at, table, key)) for session, at in ((ours, KEYSPACE), (theirs, copy))]
            found.compare(table, *rows)
    return found


def _rows(session: Any, keyspace: str, table: str, key: tuple[str, ...]) -> Iterator[tuple[Key, Row]]:
    known = session.execute(
        "SELECT column_name, type FROM system_schema.columns WHERE keyspace_name = %s AND table_name = %s",
        (keyspace, table),
    )
    types = {name: type for name, type in sorted(known) if name not in key}
    dated = [name for name, type in types.items() if not type.startswith(COLLECTIONS)]
    columns = [*key, *types, *(f"WRITETIME({name})" for name in dated), *(f"TTL({name})" for name in dated)]
    ends = len(key), len(key) + len(types), len(key) + len(types) + len(dated)
    for row in session.execute(f"SELECT {', '.join(columns)} FROM {keyspace}.{table}"):
        values, times, ttls = row[ends[0] : ends[1]], row[ends[1] : ends[2]], row[ends[2] :]
        yield (
            row[: ends[0]],
            (
                dict(zip(types, values, strict=True)),
                dict(zip(dated, times, strict=True)),
                dict(zip(dated, ttls, strict=True)),
            ),
        )
