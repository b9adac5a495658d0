"""Reads what nodes have stored of a table: rows with their markers, deletions, and the times of all cells.

`SELECT ... FROM MUTATION_FRAGMENTS(table)` is a statement of ScyllaDB's, and of Cassandra with the plugin. A node
answers it from its own copies, source by source (a memtable, the cache, an sstable; the plugin merges them). So all
nodes are asked, and what they have of a partition is merged: that is what the cluster has, like a read of all copies.

ScyllaDB takes a partition key, but no range of tokens (scylladb 18768), so its partitions are listed by a SELECT of the
table, which finds those with rows. The plugin takes a range, and has partitions of which only deletions are left, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias, TypeVar

from cassandra import InvalidRequest
from cassandra.metadata import Murmur3Token
from cassandra.protocol import SyntaxException
from cassandra.query import BoundStatement

from penstock.database import Page
from penstock.database.cells import indexed
from penstock.database.cql_connection import CqlConnection, connection
from penstock.database.cql_types import CqlTable
from penstock.database.retrying import retrying
from penstock.database.table_catalog import base_name, is_scylla, quoted, token_of_key
from penstock.database.token_ring import partition_key
from penstock.errors import PenstockError, SchemaChanged
from penstock.replicate.table_scan import Side

T = TypeVar("T")

START, STATIC, CLUSTERED, END = range(4)
"""Where in a partition a fragment is (`partition_region`)."""
FRAGMENTS = "MUTATION_FRAGMENTS"

Key: TypeAlias = tuple[bytes, ...]
"""The cells of a partition key."""


class Fragment(NamedTuple):
    """A part of a partition: its start, its static row, a row, or where the deletion of a range begins or changes.

    `clustering` are the first values of the clustering key, and `weight` says whether the place is before (-1), at (0)
    or after (1) the rows that begin with them. `metadata` is JSON.
    """

    key: Key
    source: str
    region: int
    clustering: tuple[bytes, ...]
    weight: int
    metadata: str


class Partition(NamedTuple):
    """A partition and its sources, each in the order of the rows; None if it must be read by its key."""

    token: int
    key: Key
    sources: list[Iterator[Fragment]] | None


@dataclass(frozen=True)
class FragmentReader:
    """Reads a table of one cluster; from `fragment_reader`."""

    side: Side
    table: CqlTable
    by_key: bool
    patience: timedelta
    page_size: int

    def partitions(self, after: int, until: int) -> Iterator[Partition]:
        """The partitions of the tokens (after, until], by token; each must be read before the next one."""
        if self.by_key:
            return self._listed(after, until)
        return self._read(after, until)

    def partition(self, key: Key) -> list[Iterator[Fragment]]:
        """The sources of one partition; without any if there is no such partition."""
        sources: list[Iterator[Fragment]] = []
        for node in self._nodes():
            sources += self._sources_of(node, key)
        return sources

    def _read(self, after: int, until: int) -> Iterator[Partition]:
        key = token_of_key(self.table)
        text = f"{self._select} WHERE {key} > ? AND {key} <= ?"
        bounds = [bound.to_bytes(8, "big", signed=True) for bound in (after, until)]
        streams = [
            groupby(self._fragments(_Request(self, text, bounds, node).pages(), node), lambda fragment: fragment.key)
            for node in self._nodes()
        ]
        heads = [(stream, head) for stream in streams if (head := _head(stream))]
        while heads:
            first = min(head[:2] for _, head in heads)
            now = [(stream, head) for stream, head in heads if head[:2] == first]
            yield Partition(*first, [head[2] for _, head in now])
            later = [(stream, head) for stream, head in heads if head[:2] != first]
            heads = later + [(stream, head) for stream, _ in now if (head := _head(stream))]

    def _listed(self, after: int, until: int) -> Iterator[Partition]:
        names = ", ".join(quoted(column.name) for column in self.table.partition_key)
        key = token_of_key(self.table)
        text = f"SELECT DISTINCT {names} FROM {base_name(self.table)} WHERE {key} > ? AND {key} <= ?"
        bounds = [bound.to_bytes(8, "big", signed=True) for bound in (after, until)]
        for page in _Request(self, text, bounds, None).pages():
            for cells in self._rows(page, len(self.table.partition_key)):
                partition: Key = tuple(cell or b"" for cell in cells)
                yield Partition(token_of(partition), partition, None)

    def _sources_of(self, node: Any, key: Key) -> list[Iterator[Fragment]]:
        where = " AND ".join(f"{quoted(column.name)} = ?" for column in self.table.partition_key)
        pages = _Request(self, f"{self._select} WHERE {where}", key, node).pages()
        first = next(pages)
        some = list(self._fragments([first], node))
        if not self.by_key:
            return [self._fragments(pages, node, some)] if some else []
        if first.final:
            return [iter(list(group)) for _, group in groupby(some, lambda fragment: fragment.source)]
        # A large partition: its sources are read beside each other, page by page.
        names = f"SELECT mutation_source FROM {self._name} WHERE {where} AND partition_region = 0 ALLOW FILTERING"
        sources = [row[0] or b"" for page in _Request(self, names, key, node).pages() for row in self._rows(page, 1)]
        text = f"{self._select} WHERE {where} AND mutation_source = ?"
        return [
            self._fragments(_Request(self, text, [*key, source], node).pages(), node)
            for source in dict.fromkeys(sources)
        ]

    def _fragments(self, pages: Iterable[Page], node: Any, before: Iterable[Fragment] = ()) -> Iterator[Fragment]:
        yield from before
        count, keys, name = len(self._columns), len(self.table.partition_key), str(node.endpoint)
        for page in pages:
            for cells in self._rows(page, count):
                key = tuple(cell or b"" for cell in cells[:keys])
                source, region, *clustering, weight, metadata = cells[keys:]
                place = int.from_bytes(weight or b"", "big", signed=True)
                yield Fragment(
                    key,
                    f"{name} {(source or b'').decode()}",
                    int.from_bytes(region or b"", "big"),
                    _prefix(clustering, strip=self.by_key and place != 0),
                    place,
                    (metadata or b"").decode(),
                )

    @property
    def _name(self) -> str:
        return f"{FRAGMENTS}({base_name(self.table)})"

    @cached_property
    def _columns(self) -> tuple[str, ...]:
        partition = (quoted(column.name) for column in self.table.partition_key)
        clustering = (quoted(column.name) for column in self.table.clustering_key)
        return (*partition, "mutation_source", "partition_region", *clustering, "position_weight", "metadata")

    @cached_property
    def _select(self) -> str:
        return f"SELECT {', '.join(self._columns)} FROM {self._name}"

    def _nodes(self) -> list[Any]:
        return retrying(lambda: nodes(connection(self.side.access)), **self._what)

    @property
    def _what(self) -> dict[str, Any]:
        return {"what": "reading what nodes have stored", "where": str(self.side), "patience": self.patience}

    def _rows(self, page: Page, columns: int) -> Iterator[list[bytes | None]]:
        buffer, starts, lengths = indexed(page.data, page.rows, columns, where=self.table.full_name)
        data = buffer.tobytes()
        for begins, sizes in zip(starts.tolist(), lengths.tolist(), strict=True):
            yield [data[begin : begin + size] if size >= 0 else None for begin, size in zip(begins, sizes, strict=True)]


def token_of(key: Key) -> int:
    return int(Murmur3Token.hash_fn(partition_key(key)))


def nodes(link: CqlConnection) -> list[Any]:
    """All nodes that may have copies: those of `local_dc`, if it is set."""
    wanted = link.access.local_dc
    hosts = [host for host in link.cluster.metadata.all_hosts() if wanted in ("", host.datacenter)]
    return sorted(hosts, key=lambda host: str(host.endpoint))


def _head(stream: Iterator[tuple[Key, Iterator[Fragment]]]) -> tuple[int, Key, Iterator[Fragment]] | None:
    head = next(stream, None)
    return (token_of(head[0]), *head) if head else None


def _prefix(clustering: list[bytes | None], *, strip: bool) -> tuple[bytes, ...]:
    """The values of a place; ScyllaDB has empty ones for those that it lacks, the plugin null."""
    values = [cell for cell in clustering if cell is not None]
    while strip and values and not values[-1]:
        values.pop()
    return tuple(values)


class _Request:
    """One SELECT, whose pages all come from one node, as they must; any node if `node` is None."""

    def __init__(self, reader: FragmentReader, text: str, values: Iterable[bytes], node: Any) -> None:
        self.reader, self.text, self.values, self.node = reader, text, list(values), node

    def pages(self) -> Iterator[Page]:
        """Each page is yielded when the next one is requested."""
        state: bytes | None = None
        future = self._send(state)
        while True:
            page, state = self._received(future, state)
            if state is None:
                yield page
                return
            future = self._send(state)
            yield page

    def _send(self, state: bytes | None) -> Any:
        return retrying(lambda: self._execute(state), **self.reader._what)

    def _received(self, future: Any, state: bytes | None) -> tuple[Page, bytes | None]:
        waiting = [future]

        def wait() -> tuple[Page, bytes | None]:
            # After a failure it is sent again.
            result = (waiting.pop() if waiting else self._execute(state)).result()
            return result.current_rows[0], result.paging_state

        try:
            return retrying(wait, **self.reader._what)
        except InvalidRequest as error:
            raise SchemaChanged(
                f"the table cannot be read as it was when the comparison began: {error}",
                where=str(self.reader.side),
                next="start the comparison again",
            ) from error

    def _execute(self, state: bytes | None) -> Any:
        link = connection(self.reader.side.access)
        bound = BoundStatement(link.prepare(self.text), fetch_size=self.reader.page_size)
        bound.values = self.values
        return link.pages.execute_async(bound, paging_state=state, host=self.node)


def fragment_reader(side: Side, table: CqlTable, *, patience: timedelta, page_size: int) -> FragmentReader:
    """A reader of what the nodes of a cluster have stored of a table.

    Raises PenstockError if they do not show it.
    """
    where = " AND ".join(f"{quoted(column.name)} = ?" for column in table.partition_key)

    def look() -> bool:
        link = connection(side.access)
        link.pages.prepare(f"SELECT metadata FROM {FRAGMENTS}({base_name(table)}) WHERE {where}")
        return is_scylla(link.rows)

    try:
        by_key = retrying(look, what="looking up what nodes show", where=str(side), patience=patience)
    except (InvalidRequest, SyntaxException) as error:
        raise PenstockError(
            "level 3 compares what nodes have stored, and this cluster does not show it",
            where=str(side),
            next="start Apache Cassandra with Penstock's plugin (docs/cassandra.md), or update ScyllaDB to 5.4 or "
            "later; or compare with level 2",
        ) from error
    return FragmentReader(side, table, by_key, patience, page_size)
