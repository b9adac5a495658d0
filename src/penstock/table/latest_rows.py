"""The latest row of each key, in memory or, if that is too large, in RocksDB on disk."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from penstock.errors import PenstockError
from penstock.extras import install
from penstock.keyed_state.arrow_keys import Numbers, taken
from penstock.keyed_state.byte_index import KeyIndex
from penstock.table.json_rows import decoded

PREFIX = "penstock-replica-"
MOST_CHUNKS = 8
LEAST_ROWS = 1 << 16


Decode: TypeAlias = Callable[[pa.Array, pa.Schema], tuple[pa.Table, Any]]
"""Returns the rows of the values that are neither null nor bad, in order, and a mask of the values that are not bad."""


class InMemory:
    """Arrow columns with an index of the keys."""

    def __init__(self, schema: pa.Schema, decode: Decode = decoded) -> None:
        self._schema, self._decode, self._index = schema, decode, KeyIndex()
        self._row = np.zeros(0, np.int64)  # by key number; -1 for a deleted key
        self._table = schema.empty_table()
        self._live = 0
        self.bad = 0

    @property
    def nbytes(self) -> int:
        return int(self._table.nbytes) + self._index.nbytes + self._row.nbytes

    def put(self, keys: pa.Array, values: pa.Array) -> None:
        """Add the newest records, in order; a null value deletes its key."""
        rows, good = self._decode(values, self._schema)
        self.bad += int((~good).sum())
        number = self._index.add(keys)
        self._row = np.concatenate([self._row, np.full(len(self._index) - len(self._row), -1, np.int64)])
        at = np.full(len(keys), -1, np.int64)
        present = good & values.is_valid().to_numpy(zero_copy_only=False)
        at[present] = len(self._table) + np.arange(present.sum())
        # The row before a record that cannot be read stays.
        touched = np.unique(number[good])
        self._live -= int((self._row[touched] >= 0).sum())
        self._row[number[good]] = at[good]
        self._live += int((self._row[touched] >= 0).sum())
        self._table = pa.concat_tables([self._table, rows])
        if max(len(self._table), len(self._index)) > max(LEAST_ROWS, 2 * self._live):
            self._compact()
        elif self._table.num_columns and self._table.column(0).num_chunks > MOST_CHUNKS:
            self._table = self._table.combine_chunks()

    def get(self, keys: pa.Array) -> tuple[Any, pa.Table]:
        """A mask of the keys with a row, and a row for each key, null if there is none."""
        number = self._index.find(keys)
        row = np.full(len(keys), -1, np.int64)
        row[number >= 0] = self._row[number[number >= 0]]
        return row >= 0, taken(self._table, row)

    def _compact(self) -> None:
        """Drop replaced rows and deleted keys."""
        live = np.flatnonzero(self._row >= 0)
        self._table = self._table.take(pa.array(self._row[live])).combine_chunks()
        self._index, self._row = self._index.only(live), np.arange(len(live))


@dataclass
class OnDisk:
    """The same in RocksDB, with the unparsed records, in a folder that is removed with it."""

    schema: pa.Schema
    folder: str
    decode: Decode = decoded

    def __post_init__(self) -> None:
        self.bad = 0
        rocksdb, folder = _rocksdb(), claimed(self.folder)
        self._database = rocksdb.Rdict(str(folder.path))
        weakref.finalize(self, _removed, self._database, folder)

    def put(self, keys: pa.Array, values: pa.Array) -> None:
        _, good = self.decode(values, self.schema)
        self.bad += int((~good).sum())
        # The row before a record that cannot be read stays.
        readable = pa.array(good)
        for key, value in zip(keys.filter(readable).to_pylist(), values.filter(readable).to_pylist(), strict=True):
            if value is None:
                del self._database[key]
            else:
                self._database[key] = value

    def get(self, keys: pa.Array) -> tuple[Any, pa.Table]:
        asked = [key or b"" for key in keys.to_pylist()]
        values = pa.array(self._database[asked], pa.binary())
        rows, good = self.decode(values, self.schema)
        present = good & values.is_valid().to_numpy(zero_copy_only=False)
        is_found = present & keys.is_valid().to_numpy(zero_copy_only=False)
        place: Numbers = np.full(len(keys), -1, np.int64)
        place[present] = np.arange(present.sum())
        place[~is_found] = -1
        return is_found, taken(rows, place)


def _removed(database: Any, folder: ScratchFolder) -> None:
    database.close()
    folder.remove()


def _rocksdb() -> Any:
    try:
        import rocksdict
    except ImportError as missing:
        raise PenstockError(
            "a global table is larger than its memory, and RocksDB is not installed",
            where="global_table",
            next=f"set a larger memory=, or run: {install('rocksdb')}",
        ) from missing
    return rocksdict


# Scratch folders. A process removes its own; if it was killed, the next process that creates one removes it.


@dataclass(frozen=True)
class ScratchFolder:
    """A folder owned by this process while its lock is open."""

    path: Path
    lock: int
    process: int

    def remove(self) -> None:
        # A forked process also has the object.
        if os.getpid() == self.process:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self.lock)


def claimed(parent: str) -> ScratchFolder:
    """A new folder under `parent`, or under the system's folder for temporary files if that is empty."""
    place = Path(parent or tempfile.gettempdir())
    for left in place.glob(f"{PREFIX}*"):
        if abandoned := _locked(left):
            abandoned.remove()
    while True:
        scratch = _locked(Path(tempfile.mkdtemp(prefix=PREFIX, dir=place)))
        # Before it was locked, another process may have removed it as abandoned.
        if scratch and scratch.path.exists():
            return scratch
        if scratch:
            scratch.remove()


def _locked(path: Path) -> ScratchFolder | None:
    """The folder with its lock; None if another process has it."""
    try:
        lock = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    return ScratchFolder(path, lock, os.getpid())
