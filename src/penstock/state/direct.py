"""State from checkpoints without Spark; what only Spark can read is left to it, with a line on stderr that says why."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import types as st

from penstock.errors import PenstockError
from penstock.state import keys, store_rows
from penstock.state.change_files import Gone, Unsupported
from penstock.state.store_rows import Match, Rows
from penstock.state.stores import LIMIT, MOST, StateRows, States, StateStore, cut, find, overview, require_some
from penstock.state.unsafe_rows import OtherType, partition, shown

if TYPE_CHECKING:
    from penstock.state.unpacking import Unpacking

ATTEMPTS = 5
"""How often a read begins because the query has removed files meanwhile."""
PAUSE = 0.3
"""Seconds between attempts."""


@dataclass(frozen=True)
class Direct:
    """The states below a folder of checkpoints; `spark` is called for those that only Spark can read."""

    folder: Path
    spark: Callable[[], States]
    reported: set[str] = field(default_factory=set)
    """What was written to stderr: each reason once."""

    def overview(self) -> list[dict[str, Any]]:
        return overview(self.folder)

    def get(self, name: str, key: str, limit: int = LIMIT) -> StateRows:
        def read(store: StateStore, rows: Rows) -> Iterator[Any]:
            if store.packed:
                return _packed(store, rows, key)
            wanted = keys.wanted(rows.key, key, store)
            match = keys.matching(rows.key, list(keys.conditions(rows.key, wanted, store)))
            return _texts(rows.columns, _of_key(rows, wanted, match))

        state_rows = self._read(name, limit, read)
        return self.spark().get(name, key, limit) if state_rows is None else require_some(state_rows, key)

    def scan(self, name: str, where: str | None = None, limit: int = LIMIT) -> StateRows:
        if where:
            self._report(f"{find(self.folder, name).name}: a condition in SQL needs it")
            return self.spark().scan(name, where, limit)

        def read(store: StateStore, rows: Rows) -> Iterator[Any]:
            return _packed(store, rows) if store.packed else _texts(rows.columns, rows.all())

        state_rows = self._read(name, limit, read)
        return self.spark().scan(name, where, limit) if state_rows is None else state_rows

    def _read(self, name: str, limit: int, read: Callable[[StateStore, Rows], Iterator[Any]]) -> StateRows | None:
        """The answer; None if only Spark can give it."""
        store, limit = find(self.folder, name), min(limit, MOST)
        for _ in range(ATTEMPTS):
            fresh = store.fresh()
            assert fresh.batch is not None
            try:
                rows = store_rows.rows(store, fresh.batch)
                return cut(store.name, fresh, list(islice(read(store, rows), limit + 1)), limit)
            except (Unsupported, OtherType) as error:
                self._report(f"{store.name}: {error}")
                return None
            except Gone as error:
                gone = error
                # A query may remove a version when the next one is written, and commit its batch after that.
                time.sleep(PAUSE)
        raise PenstockError(
            f"the state {store.name} lacks a file of batch {fresh.batch}",
            where=str(gone),
            next="ask again if the query is running; else put the checkpoint back from a backup",
        )

    def _report(self, why: str) -> None:
        if why not in self.reported:
            self.reported.add(why)
            print(f"penstock: reads with Spark, which takes some seconds: {why}", file=sys.stderr, flush=True)


def _texts(columns: st.StructType, rows: Iterator[list[Any]]) -> Iterator[Any]:
    return (shown(row, columns) for row in rows)


def _of_key(rows: Rows, wanted: dict[str, Any], match: Match) -> Iterator[list[Any]]:
    """The rows of a key: from its partition if the whole key is given, from all partitions if that one has none.

    This assumes that Spark partitions the state by the key's columns, which is not true of each Spark operator.
    """
    if (place := _place(rows, wanted)) is not None:
        own = rows.of(place, match)
        first = next(own, None)
        if first is not None:
            yield first
            yield from own
            return
    yield from rows.all(match)


def _place(rows: Rows, wanted: dict[str, Any]) -> int | None:
    if not keys.whole(rows.key, wanted):
        return None
    kinds: list[st.DataType] = [column.dataType for column in rows.key.fields]
    values = [keys.value_of(wanted[name], kind) for name, kind in zip(rows.key.names, kinds, strict=True)]
    try:
        return partition(values, kinds, rows.partitions)
    except OtherType:
        return None


def _packed(store: StateStore, rows: Rows, key: str | None = None) -> Iterator[Any]:
    """The rows of a packed state, all or those of a key."""
    # It loads Arrow, which other states do not need.
    from penstock.state import unpacking

    how = unpacking.of_rows(rows, store.packed)
    if how is None:
        return
    match, pieces = None, rows.all()
    if key is not None:
        wanted = keys.wanted(how.key, key, store, how.by)
        match = keys.matching(how.key, list(keys.conditions(how.key, wanted, store)))
        pieces = _of_bucket(rows, how, wanted)
    for _, log in groupby(pieces, key=lambda piece: piece[0]):
        unpacked = unpacking.unpacked_rows(rows, list(log), store.packed, how)
        yield from _texts(how.schema, (row for row in unpacked if match is None or match(row[0])))


def _of_bucket(rows: Rows, how: Unpacking, wanted: dict[str, Any]) -> Iterator[list[Any]]:
    """The pieces of a key's bucket, or all if the key does not determine it."""
    if not all(name in wanted for name in how.by):
        return rows.all()
    bucket = how.bucket([keys.value_of(wanted[name], how.key[name].dataType) for name in how.by])
    if bucket is None:
        return rows.all()
    return _of_key(rows, {rows.key.names[0]: bucket}, lambda key: bool(key == [bucket]))
