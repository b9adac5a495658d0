"""Where signals come from besides the REST API: a topic, and a table of the database.

A channel gives what is new since a cursor, a JSON object that the caller keeps with what it has taken, so each signal
is taken once. Neither waits long for a server that does not answer.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from penstock.connect.source import database
from penstock.connect.source.signal_format import BadSignal, object_of
from penstock.database.retrying import REFUSED
from penstock.database.table_catalog import quoted, split_name
from penstock.errors import PenstockError
from penstock.kafka.security import SETTINGS, Security
from penstock.wire import Reader
from penstock.wire.errors import KafkaError, UnknownTopicOrPartition

PATIENCE = timedelta(seconds=5)
MOST_RECORDS = 100
"""Records of a partition, and rows of a table, that are taken at once."""
MOST_ROWS = 1000
"""Rows of a table of signals: the ids of all are read at each look."""
MOST_BYTES = 1 << 20

Cursor = dict[str, Any]


@dataclass(frozen=True)
class Arrived:
    """What has come: an object with `id`, `type` and `data`, or why it is none; `where` it comes from."""

    where: str
    about: Mapping[str, Any] | None = None
    problem: BadSignal | None = None


class Channel(Protocol):
    """Signals from one place."""

    name: str
    where: str

    def new(self, cursor: Cursor | None) -> tuple[list[Arrived], Cursor]:
        """What has come since the cursor, and the cursor behind it; without one it is the first look.

        Raises PenstockError.
        """


class SignalTopic:
    """The records of a topic whose key is the connector's `topic.prefix`; the first look begins at the first record.

    Debezium reads only the first partition, this all.
    """

    name = "kafka"

    def __init__(self, servers: str, topic: str, key: str, settings: Mapping[str, str]) -> None:
        self._servers, self._topic, self._key = servers, topic, key
        self._settings = {name: text for name, text in settings.items() if name in SETTINGS}
        self.where = f"topic {topic} at {servers}"

    def new(self, cursor: Cursor | None) -> tuple[list[Arrived], Cursor]:
        known = cursor if cursor and cursor.get("topic") == self._topic else {}
        try:
            records, ends = asyncio.run(self._read({int(p): at for p, at in known.get("offsets", {}).items()}))
        except UnknownTopicOrPartition:
            # Nobody has sent a signal yet.
            return [], dict(known)
        except KafkaError as error:
            raise PenstockError(
                f"the topic of signals cannot be read: {error}",
                where=self.where,
                next="check that Kafka is up, that this user may read the topic, and signal.kafka.*",
            ) from error
        return list(self._arrived(records)), {"topic": self._topic, "offsets": {str(p): at for p, at in ends.items()}}

    def _arrived(self, records: list[tuple[int, int, bytes | None, bytes | None]]) -> Iterator[Arrived]:
        for partition, offset, key, value in records:
            if key is None or value is None or key.decode(errors="replace") != self._key:
                continue
            where = f"{self.where}, partition {partition}, offset {offset}"
            try:
                yield Arrived(where, object_of(value, where))
            except BadSignal as error:
                yield Arrived(where, problem=error)

    async def _read(
        self, known: Mapping[int, int]
    ) -> tuple[list[tuple[int, int, bytes | None, bytes | None]], dict[int, int]]:
        """Partition, offset, key and value of the next records, and the offsets behind them."""
        security = Security.of(self._settings)
        records = []
        async with Reader(
            self._servers, patience=PATIENCE, tls=security.tls(), authenticate=security.authenticate()
        ) as reader:
            first, end = await reader.earliest(self._topic), await reader.latest(self._topic)
            # A topic that was created again is shorter than the cursor.
            at = {p: max(known.get(p, 0), first[p]) if known.get(p, 0) <= end[p] else first[p] for p in first}
            # Offsets may have gaps, so this is the most.
            until = {p: min(end[p], at[p] + MOST_RECORDS) for p in at}
            start = {p: offset for p, offset in at.items() if offset < until[p]}
            if start:
                async for partition, table in reader.read(
                    self._topic, start=start, end={p: until[p] for p in start}, max_bytes=MOST_BYTES
                ):
                    columns = (table[name].to_pylist() for name in ("offset", "key", "value"))
                    records += [(partition, *row) for row in zip(*columns, strict=True)]
        return records, until


class SignalTable:
    """The rows of a table with the columns id, type and data, which needs no log.

    The first look takes no row: signals from before the connector are not for it. A row that is written again is a
    signal again. The cursor has the time of writing of each row that is there.
    """

    name = "source"

    def __init__(self, values: Mapping[str, Any], table: str) -> None:
        self._values, self._table = values, table
        self._name = ".".join(map(quoted, split_name(table)))
        self.where = f"table {table}"

    def new(self, cursor: Cursor | None) -> tuple[list[Arrived], Cursor]:
        rows = self._rows(f"SELECT id, writetime(type), writetime(data) FROM {self._name} LIMIT {MOST_ROWS + 1}")
        if len(rows) > MOST_ROWS:
            raise PenstockError(
                f"the table of signals has more than {MOST_ROWS} rows, and none is looked at",
                where=self.where,
                next="delete old rows, or let rows expire: INSERT ... USING TTL 86400",
            )
        times = {_digest(id): max(of_type or 0, of_data or 0) for id, of_type, of_data in rows}
        if cursor is None:
            return [], times
        fresh = [row for row in rows if cursor.get(_digest(row[0])) != times[_digest(row[0])]]
        fresh.sort(key=lambda row: times[_digest(row[0])])
        known = {digest: time for digest, time in cursor.items() if digest in times}
        taken = {_digest(row[0]): times[_digest(row[0])] for row in fresh[:MOST_RECORDS]}
        return [signal for row in fresh[:MOST_RECORDS] for signal in self._arrived(row[0])], known | taken

    def _arrived(self, id: Any) -> Iterator[Arrived]:
        for type, data in self._rows(f"SELECT type, data FROM {self._name} WHERE id = %s", id):
            # Without a type its other columns are about to be written.
            if type is not None:
                yield Arrived(f"{self.where}, row {str(id)[:100]!r}", {"id": id, "type": type, "data": data})

    def _rows(self, query: str, *values: Any) -> list[Any]:
        try:
            return database.rows(self._values, query, values)
        except REFUSED as error:
            raise self._unusable(str(error)) from error

    def _unusable(self, why: str) -> PenstockError:
        return PenstockError(
            f"the table of signals cannot be read: {why}",
            where=self.where,
            next=f"CREATE TABLE {self._table} (id text PRIMARY KEY, type text, data text), or correct "
            "signal.data.collection",
        )


def _digest(id: Any) -> str:
    """A short name of a row: ids may be long, and there may be many."""
    return hashlib.sha256(str(id).encode(errors="replace")).hexdigest()[:16]
