"""Level 3 of a comparison: also what reads do not show, over as many comparisons as it needs to be sure.

What is compared of two tables depends on what both databases show (`hidden_scans`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise

from pyspark.sql import SparkSession

from penstock.cdc.generations import now_micros
from penstock.database.cql_connection import connection
from penstock.database.cql_types import CqlType
from penstock.database.retrying import retrying
from penstock.errors import PenstockError
from penstock.replicate.comparison_tasks import in_tasks, number_of_ranges
from penstock.replicate.fragment_reader import FragmentReader, Key, fragment_reader
from penstock.replicate.hidden_differences import (
    HiddenDifference,
    HiddenScans,
    Unlike,
    described,
    proven,
    read_by_rows,
)
from penstock.replicate.hidden_repair import insert_again, reason, repair, why_left
from penstock.replicate.hidden_state import WantedFacts
from penstock.replicate.row_digests import BUCKETS, bounds
from penstock.replicate.table_scan import Scans

log = logging.getLogger(__name__)

MOST_PARTITIONS = 10_000
"""Partitions that differ and are compared again; of more, only the number is known."""
SAME_TEXT = (
    *("ascii", "bigint", "blob", "boolean", "int", "smallint", "text", "timeuuid", "tinyint", "uuid", "varchar"),
    "varint",
)
"""Types whose values ScyllaDB and Cassandra write in the same way."""
NO_DELETIONS = 2**63 - 1
OPTIONS = "SELECT gc_grace_seconds, extensions FROM system_schema.tables WHERE keyspace_name = %s AND table_name = %s"


@dataclass(frozen=True)
class HiddenReport:
    """The differences in what reads do not show.

    `different` partitions differ, of which `described` has the first differences; `undecided` ones differed in every
    comparison, but were written in between. `repaired` partitions are equal after a repair.
    """

    different: int
    undecided: int
    repaired: int
    described: tuple[HiddenDifference, ...]


class HiddenComparison:
    """The partitions that differ, over several comparisons; `sure` says that the first one counts already."""

    def __init__(self, spark: SparkSession, scans: HiddenScans, *, sure: bool) -> None:
        self.spark, self.scans, self.sure = spark, scans, sure
        self.different: dict[Key, Unlike] = {}
        self.open: dict[Key, Unlike] = {}
        self.more = 0
        self.repaired = 0
        self.after_repair = False

    def compare(self) -> None:
        """Compare all partitions."""
        differences = self.different if self.sure else self.open
        for some, more in self._scanned():
            self.more += more
            differences |= some

    def again(self) -> None:
        """Compare those that are not decided, when all changes of before have arrived."""
        first, self.open = self.open, {}
        for key, unlike in self._read(first):
            if sure := proven(first[key], unlike):
                self.different[key] = sure
            elif unlike:
                self.open[key] = unlike

    def repair(self, written: Iterable[Key]) -> None:
        """Write what CQL can say; `written` are the partitions of rows that were repaired."""
        tried, scans = list(dict.fromkeys([*self.different, *written])), self.scans
        self.after_repair = True

        def work(items: list[Key]) -> Iterator[tuple[Key, Unlike]]:
            for key in items:
                repair(scans.target, [(key, scans.unlike(key))])
                yield key, _hidden(scans.unlike(key))

        left = {key: unlike for key, unlike in in_tasks(self.spark, work, tried) if unlike} if tried else {}
        self.repaired += len(self.different.keys() - left.keys())
        self.different = left

    def take_markers(self, taken: Iterable[Key], at: int) -> None:
        """Insert rows again that were taken from the source, where a deletion of the target hid them; `at` is a time
        in microseconds that wins over it."""
        scans, partitions = self.scans, list(dict.fromkeys(taken))

        def work(items: list[Key]) -> Iterator[tuple[Key, Unlike]]:
            for key in items:
                insert_again(scans.target, key, scans.unlike(key), at)
                yield key, _hidden(scans.unlike(key))

        for key, unlike in in_tasks(self.spark, work, partitions):
            self.different.pop(key, None)
            if unlike:
                self.different[key] = unlike

    def report(self, most: int) -> HiddenReport:
        table, target = self.scans.source.table, self.scans.target
        why = why_left if self.after_repair else reason
        shown = (
            described(table, key, path, both, why(target, path, both))
            for key, unlike in self.different.items()
            for path, both in unlike.items()
        )
        return HiddenReport(
            different=len(self.different) + (self.more if self.sure else 0),
            undecided=len(self.open) + (0 if self.sure else self.more),
            repaired=self.repaired,
            described=tuple(islice(shown, most)),
        )

    def _scanned(self) -> Iterator[tuple[dict[Key, Unlike], int]]:
        count, scans = number_of_ranges(self.spark), self.scans
        edges = [BUCKETS * number // count for number in range(count + 1)]
        most = MOST_PARTITIONS // count + 1

        def work(items: list[tuple[int, int]]) -> Iterator[tuple[dict[Key, Unlike], int]]:
            for part in items:
                differences: dict[Key, Unlike] = {}
                more = 0
                for key, unlike in scans.differing(*bounds(*part)):
                    if not (hidden := _hidden(unlike)):
                        continue
                    if len(differences) < most:
                        differences[key] = hidden
                    else:
                        more += 1
                yield differences, more

        yield from in_tasks(self.spark, work, list(pairwise(edges)))

    def _read(self, keys: Iterable[Key]) -> Iterator[tuple[Key, Unlike]]:
        scans = self.scans

        def work(items: list[Key]) -> Iterator[tuple[Key, Unlike]]:
            for key in items:
                yield key, _hidden(scans.unlike(key))

        some = list(keys)
        yield from in_tasks(self.spark, work, some) if some else ()


def _hidden(unlike: Unlike) -> Unlike:
    """What a comparison of rows does not show."""
    return {path: both for path, both in unlike.items() if not read_by_rows(path, both)}


# What of two tables can be compared.


def hidden_scans(both: Scans, *, patience: timedelta, page_size: int) -> tuple[HiddenScans, tuple[str, ...]]:
    """What is compared of two tables, and what of them cannot be.

    Raises PenstockError if one of the clusters does not show what its nodes have stored, or if the rows are in
    different orders.
    """
    readers = [
        fragment_reader(scan.side, scan.table, patience=patience, page_size=page_size)
        for scan in (both.source, both.target)
    ]
    source, target = readers
    if source.table.descending != target.table.descending:
        raise PenstockError(
            "the tables have different orders of rows (CLUSTERING ORDER BY), and level 3 compares deleted ranges",
            where=f"{source.table.full_name} and {target.table.full_name}",
            next="compare with level 2",
        )
    since, forgotten = _since(readers)
    shape, unseen = _shape(both, readers, since)
    return HiddenScans(source, target, shape), (*unseen, forgotten)


def _shape(both: Scans, readers: list[FragmentReader], since: int) -> tuple[WantedFacts, list[str]]:
    values = [scanned for scanned in both.source.columns if scanned.is_value and scanned.column]
    shared = {scanned.column.name: scanned.column.type for scanned in values if scanned.column}
    lists = [name for name, kind in shared.items() if kind.nonfrozen_list]
    counters = [name for name, kind in shared.items() if kind.name == "counter"]
    collections = {name: kind for name, kind in shared.items() if kind.multi_cell and not kind.nonfrozen_list}
    unknown = [name for name, kind in collections.items() if not _has_keys(kind, readers)]
    shape = WantedFacts(
        clustering=both.source.table.clustering_key,
        columns=frozenset(shared) - {*lists, *counters},
        elements=frozenset(collections) - {*unknown},
        timed=frozenset(scanned.column.name for scanned in values if scanned.column and scanned.timed),
        since=since,
    )
    unseen = []
    if lists:
        unseen.append(f"keys, write times and deletions of the elements of lists ({', '.join(lists)})")
    if counters:
        unseen.append(f"write times and deletions of counters ({', '.join(counters)})")
    if unknown:
        unseen.append(f"deletions of single elements of {', '.join(unknown)}, which the databases do not show alike")
    if all(reader.by_key for reader in readers):
        unseen.append("partitions without rows on both sides, which ScyllaDB does not list")
    return shape, unseen


def _has_keys(kind: CqlType, readers: list[FragmentReader]) -> bool:
    """Whether both sides show the keys of elements in the same way."""
    if not any(reader.by_key for reader in readers):
        return True
    # ScyllaDB does not name the fields of user types.
    return kind.name != "udt" and (all(reader.by_key for reader in readers) or kind.args[0].name in SAME_TEXT)


def _since(readers: list[FragmentReader]) -> tuple[int, str]:
    """The time from which on deletions are compared, and what this leaves out."""
    grace = [_grace(reader) for reader in readers]
    for reader, seconds in zip(readers, grace, strict=True):
        if seconds is None:
            return NO_DELETIONS, (
                f"deletions: {reader.side} may forget them at any time (set tombstone_gc = {{'mode': 'timeout'}} on it)"
            )
    # A tenth is for the time that the comparison takes, and for clocks.
    least = min(seconds for seconds in grace if seconds is not None)
    since = now_micros() - least * 900_000
    when = datetime.fromtimestamp(max(since, 0) / 1_000_000, UTC).isoformat(" ", "seconds")
    return since, f"deletions from before {when}, which nodes may have forgotten (gc_grace_seconds = {least})"


def _grace(reader: FragmentReader) -> int | None:
    """For how many seconds nodes keep deletions; None if that is not known."""
    table = reader.table
    row = retrying(
        lambda: connection(reader.side.access).rows.execute(OPTIONS, (table.keyspace, table.name)).one(),
        what="looking up for how long deletions are kept",
        where=str(reader.side),
        patience=reader.patience,
    )
    mode = bytes((row[1] or {}).get("tombstone_gc", b"")) if row else b""
    if reader.by_key and b"timeout" not in mode and b"disabled" not in mode:
        return None
    return int(row[0]) if row else 0
