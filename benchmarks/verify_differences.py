"""Finds ten injected differences among a million rows: penstock verify must tell these and no others.

    python benchmarks/verify_differences.py --rows 1000000 --json found.json

Two tables in two keyspaces of one node get the same rows with the same write times. A line tells of a comparison that
finds them equal, a second one of the comparison after the changes of `CHANGES`. It exits with 1 if a difference was
missed, or one told that is none.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Semaphore
from typing import Any

from cassandra.query import BatchStatement, BatchType

from cdc_source import connect
from penstock import replicate
from penstock.local import services
from penstock.spark_runtime.session import spark as spark_session

KEYSPACES = "one", "other"
TABLE = (
    "CREATE TABLE {ks}.t (id bigint, at int, s int STATIC, v int, w text, m map<text, int>, l list<int>, extra text, "
    "PRIMARY KEY (id, at))"
)
ROWS_PER_PARTITION = 20
BATCHES_IN_FLIGHT = 32
COLUMN = "column extra text is only in the source"
CHANGES: dict[str, tuple[str, tuple[int, ...] | None, str]] = {
    # The change of the target, the rows of the partition in which it shows, and the column or the side that is told.
    "value": ("UPDATE {ks}.t USING TIMESTAMP {T} SET v = 999 WHERE id = 1 AND at = 1", (1,), "v"),
    "time": ("UPDATE {ks}.t USING TIMESTAMP {later} SET w = 'w' WHERE id = 2 AND at = 1", (1,), "writetime(w)"),
    "time to live": (
        "UPDATE {ks}.t USING TIMESTAMP {T} AND TTL 90000 SET v = 1 WHERE id = 3 AND at = 1",
        (1,),
        "ttl(v)",
    ),
    "missing row": ("DELETE FROM {ks}.t USING TIMESTAMP {T} WHERE id = 4 AND at = 1", (1,), "target"),
    "extra row": ("INSERT INTO {ks}.t (id, at, v) VALUES (5, 99, 1)", (99,), "source"),
    "static column": ("UPDATE {ks}.t USING TIMESTAMP {T} SET s = 999 WHERE id = 7", tuple(range(20)), "s"),
    "element of a map": ("UPDATE {ks}.t USING TIMESTAMP {T} SET m['a'] = 999 WHERE id = 8 AND at = 1", (1,), "m"),
    "order of a list": ("UPDATE {ks}.t SET l = [2, 1] WHERE id = 9 AND at = 1", (1,), "l"),
    "dropped column": ("ALTER TABLE {ks}.t DROP extra", None, COLUMN),
}
SWAPPED = 6
"""The partition of the tenth difference: its rows 1 and 2 have each other's values."""


def fill(hosts: str, keyspace: str, rows: int, time: int) -> None:
    session = connect(hosts)
    session.execute(
        f"CREATE KEYSPACE {keyspace} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}"
    )
    session.execute(TABLE.replace("{ks}", keyspace))
    row = session.prepare(
        f"INSERT INTO {keyspace}.t (id, at, v, w, m, extra) VALUES (?, ?, ?, 'w', ?, 'x') USING TIMESTAMP {time}"
    )
    static = session.prepare(f"UPDATE {keyspace}.t USING TIMESTAMP {time} SET s = ? WHERE id = ?")
    listed = session.prepare(f"UPDATE {keyspace}.t USING TIMESTAMP {time} SET l = [1, 2] WHERE id = ? AND at = 1")
    free, failures = Semaphore(BATCHES_IN_FLIGHT), list[BaseException]()

    def failed(error: BaseException) -> None:
        failures.append(error)
        free.release()

    for id in range(rows // ROWS_PER_PARTITION):
        batch = BatchStatement(BatchType.UNLOGGED)
        for at in range(ROWS_PER_PARTITION):
            batch.add(row, (id, at, at, {"a": 1, "b": at}))
        batch.add(static, (id, id))
        batch.add(listed, (id,))
        free.acquire()
        session.execute_async(batch).add_callbacks(lambda _: free.release(), failed)
    for _ in range(BATCHES_IN_FLIGHT):
        free.acquire()
    session.cluster.shutdown()
    if failures:
        raise failures[0]


def changes(time: int) -> Iterator[str]:
    """The statements that change the target."""
    for statement, _, _ in CHANGES.values():
        yield statement.replace("{T}", str(time)).replace("{later}", str(time + 5)).replace("{ks}", KEYSPACES[1])
    for at, value in ((1, 2), (2, 1)):
        # Of two values written at one time the greater one stays: so the old one is deleted first.
        yield f"DELETE v FROM {KEYSPACES[1]}.t USING TIMESTAMP {time} WHERE id = {SWAPPED} AND at = {at}"
        yield f"UPDATE {KEYSPACES[1]}.t USING TIMESTAMP {time + 1} SET v = {value} WHERE id = {SWAPPED} AND at = {at}"


def wanted() -> set[str]:
    """What a comparison must tell: rows with the side that lacks them or a column that differs, and columns."""
    found = {COLUMN} | {_told(SWAPPED, at, "v") for at in (1, 2)}
    for number, (_, rows, what) in enumerate(CHANGES.values(), 1):
        id = number if number < SWAPPED else number + 1
        found |= {_told(id, at, what) for at in rows or ()}
    return found


def _told(id: int, at: int, what: str) -> str:
    return f"{json.dumps({'id': id, 'at': at})}: {what}"


def told(report: replicate.Report) -> set[str]:
    """The same of a report."""
    rows = {f"{row.key}: {row.missing or next(iter(row.columns))}" for row in report.described}
    return rows | set(report.unlike)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    lines: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as place:
        found = services.up(Path(place), only=["cassandra"])
        try:
            written = time.time_ns() // 1000 - 60_000_000
            for keyspace in KEYSPACES:
                fill(found.cql, keyspace, options.rows, written)
            spark = spark_session("verify")
            source, target = (replicate.side(f"{keyspace}.t", hosts=found.cql) for keyspace in KEYSPACES)
            for case in ("equal", "ten differences"):
                if case != "equal":
                    session = connect(found.cql)
                    for statement in changes(written):
                        session.execute(statement)
                report = replicate.verify(spark, source, target, settle=0)
                seen, due = told(report), wanted() if case != "equal" else set[str]()
                line = {
                    "case": case,
                    "rows": report.rows[0],
                    "seconds": round(report.seconds, 1),
                    "result": report.result,
                }
                lines.append(
                    line | {"missed": sorted(due - seen), "false": sorted(seen - due), "found": len(seen & due)}
                )
                print(json.dumps(lines[-1]), flush=True)
        finally:
            services.down(Path(place))
    if options.json:
        options.json.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return int(any(line["missed"] or line["false"] for line in lines))


if __name__ == "__main__":
    sys.exit(main())
