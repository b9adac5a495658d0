"""Compares what reads do not show (`hidden_state`) of two tables: partition by partition, as two streams.

A partition's facts are summed up in a digest as they come, so a partition of any size needs no memory; those whose
digests differ are read again, and only facts that differ are collected.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain, islice, zip_longest
from typing import Any, NamedTuple, TypeAlias

from penstock.database.bad_values import key_text
from penstock.database.cql_types import Column, CqlTable
from penstock.database.encode_cells import cells_of
from penstock.replicate.clustering_order import position
from penstock.replicate.fragment_reader import Fragment, FragmentReader, Key, Partition
from penstock.replicate.hidden_state import (
    CELL,
    COLLECTION,
    ELEMENT,
    MARKER,
    PARTITION,
    RANGE,
    ROW,
    Fact,
    Path,
    Place,
    WantedFacts,
    WriteFacts,
    facts,
)
from penstock.replicate.row_differences import SLACK

MOST_FACTS = 1000
"""Facts of one partition that differ and are collected."""
MOST_PENDING = 100_000
"""Facts of one partition that one side has and the other one may still have."""


class Both(NamedTuple):
    """What the source and the target have."""

    source: WriteFacts | None
    target: WriteFacts | None


Unlike: TypeAlias = dict[Path, Both]


@dataclass(frozen=True)
class HiddenScans:
    """Both tables, and what is compared of them."""

    source: FragmentReader
    target: FragmentReader
    shape: WantedFacts

    def differing(self, after: int, until: int) -> Iterator[tuple[Key, Unlike]]:
        """The partitions of the tokens (after, until] that differ."""
        for key, sides in self._joined(after, until):
            now = int(time.time())
            source_digest, target_digest = (_Digest.of(facts(sources, self.shape, now)) for sources in sides)
            if not source_digest.agrees(target_digest) and (unlike := self.unlike(key)):
                yield key, unlike

    def unlike(self, key: Key) -> Unlike:
        """The facts of a partition that differ; the first ones, if they are many."""
        now = int(time.time())
        # The target first, so that it cannot have what the source does not know yet.
        target, source = self.target.partition(key), self.source.partition(key)
        both_facts = facts(source, self.shape, now), facts(target, self.shape, now)
        unlike = _unlike(*both_facts, self.shape.clustering)
        # ScyllaDB shows a marker that expired as one that does not expire, once it is compacted.
        vague = self.source.by_key or self.target.by_key
        return {
            path: both
            for path, both in unlike.items()
            if not _same(both, now + SLACK) and not (vague and path.kind == MARKER and _same_time(both))
        }

    def _joined(self, after: int, until: int) -> Iterator[tuple[Key, list[list[Iterator[Fragment]]]]]:
        readers = self.source, self.target
        streams = [reader.partitions(after, until) for reader in readers]
        heads = [next(stream, None) for stream in streams]
        while any(heads):
            token, key = min(head[:2] for head in heads if head)
            here = [head if head and head[:2] == (token, key) else None for head in heads]
            yield key, [_sources(reader, head, key) for reader, head in zip(readers, here, strict=True)]
            heads = [
                next(stream, None) if now else head for stream, now, head in zip(streams, here, heads, strict=True)
            ]


def _sources(reader: FragmentReader, head: Partition | None, key: Key) -> list[Iterator[Fragment]]:
    if head and head.sources is not None:
        return head.sources
    return reader.partition(key) if reader.by_key else []


class _Digest(NamedTuple):
    """The sum of the facts' hashes; of those that expire, the sum of the seconds at which they do, and their number."""

    total: int
    seconds: int
    expiring: int

    @classmethod
    def of(cls, some: Iterable[Fact]) -> _Digest:
        total = seconds = expiring = 0
        for path, written in some:
            expires = not written.dead and written.expires is not None
            text = repr((*path, written.time, written.dead, expires))
            total += int.from_bytes(blake2b(text.encode(), digest_size=16).digest(), "big")
            if expires:
                seconds, expiring = seconds + (written.expires or 0), expiring + 1
        return cls(total % 2**128, seconds, expiring)

    def agrees(self, other: _Digest) -> bool:
        near = abs(self.seconds - other.seconds) <= SLACK + 4 * math.isqrt(self.expiring)
        return self.total == other.total and near


def _unlike(source: Iterator[Fact], target: Iterator[Fact], clustering: Sequence[Column]) -> Unlike:
    """The facts that one side lacks or has otherwise.

    Both come in the same order, so a fact waits only as long as the other side lacks it.
    """
    waiting: tuple[dict[Path, WriteFacts], dict[Path, WriteFacts]] = ({}, {})
    unlike: Unlike = {}
    last = [Path(PARTITION), Path(PARTITION)]
    for pair in zip_longest(source, target):
        for side, fact in enumerate(pair):
            if fact is None:
                continue
            path, written = fact
            last[side] = path
            if (other := waiting[1 - side].pop(path, None)) is None:
                waiting[side][path] = written
            elif other != written:
                unlike[path] = Both(other, written) if side else Both(written, other)
        if len(unlike) >= MOST_FACTS:
            return unlike
        if len(waiting[0]) + len(waiting[1]) > MOST_PENDING:
            # What the other side has not reached yet, it may still have.
            for side in (0, 1):
                end = _order(last[1 - side], clustering)
                for path in [pending for pending in waiting[side] if _order(pending, clustering) >= end]:
                    del waiting[side][path]
            break
    left = chain(
        ((path, Both(written, None)) for path, written in waiting[0].items()),
        ((path, Both(None, written)) for path, written in waiting[1].items()),
    )
    return unlike | dict(islice(left, MOST_FACTS - len(unlike)))


def _order(path: Path, clustering: Sequence[Column]) -> tuple[Any, ...]:
    """Where in the partition a fact comes."""
    if path.kind == PARTITION or path.row is None:
        return ()
    values, weight = path.end if path.kind == RANGE else (path.row, 0)
    return position(clustering, values, weight)


def _same(both: Both, soon: int) -> bool:
    """Whether both are the same write, or one that a read compares, or one that expires about now."""
    source, target = both
    if source is None or target is None:
        there = source or target
        return there is None or _ends(there, soon)
    if source.time != target.time:
        return False
    if source.dead or target.dead:
        return (source.dead or _ends(source, soon)) and (target.dead or _ends(target, soon))
    if source.expires is None or target.expires is None:
        return source.expires is target.expires
    return abs(source.expires - target.expires) <= SLACK


def _same_time(both: Both) -> bool:
    return both.source is not None and both.target is not None and both.source.time == both.target.time


def _ends(written: WriteFacts, soon: int) -> bool:
    return not written.dead and written.expires is not None and written.expires <= soon


def proven(first: Mapping[Path, Both], second: Mapping[Path, Both]) -> Unlike:
    """What differed in the same way in two comparisons, between which all changes have arrived."""
    return {path: both for path, both in second.items() if first.get(path) == both}


def read_by_rows(path: Path, both: Both) -> bool:
    """Whether a comparison of rows shows this difference: of values that both sides would show."""
    return path.kind == CELL and not any(side and side.dead for side in both)


# For people.


@dataclass(frozen=True)
class HiddenDifference:
    """Something that reads do not show and that differs: where (a key as JSON), what, and what both sides have.

    `left` says why a repair could not write it.
    """

    key: str
    what: str
    source: str
    target: str
    left: str = ""


def described(table: CqlTable, key: Key, path: Path, both: Both, left: str = "") -> HiddenDifference:
    row = {} if path.kind in (PARTITION, RANGE) else _named(table.clustering_key, path.row or ())
    if path.row is None:
        row = {column.name: (column, None) for column in table.clustering_key}
    where = _text({**_named(table.partition_key, key), **row})
    return HiddenDifference(where, _what(table, path), _when(path, both.source), _when(path, both.target), left)


def _what(table: CqlTable, path: Path) -> str:
    if path.kind == RANGE:
        return f"deletion of the rows {_interval(table, (path.row or (), path.weight), path.end)}"
    if path.kind == ELEMENT:
        return f"element {json.dumps(path.element, ensure_ascii=False)} of {path.column}"
    return {
        PARTITION: "deletion of the partition",
        ROW: "deletion of the row",
        MARKER: "row marker",
        CELL: f"value of {path.column}",
        COLLECTION: f"deletion of all elements of {path.column}",
    }[path.kind]


def _interval(table: CqlTable, start: Place, end: Place) -> str:
    """The range in the order of the rows, such as [{"day": 1}, {"day": 3})."""
    begin = f"{'[' if start[1] < 0 else '('}{_text(_named(table.clustering_key, start[0]))}" if start[0] else "("
    close = f"{_text(_named(table.clustering_key, end[0]))}{']' if end[1] > 0 else ')'}" if end[0] else ")"
    return f"{begin}, {close}"


def _named(columns: Iterable[Column], cells: Iterable[bytes]) -> dict[str, tuple[Column, bytes | None]]:
    return {column.name: (column, cell) for column, cell in zip(columns, cells, strict=False)}


def _text(named: Mapping[str, tuple[Column, bytes | None]]) -> str:
    kinds = {name: column.type for name, (column, _) in named.items()}
    return key_text(kinds, {name: cells_of([cell]) for name, (_, cell) in named.items()}, 0)


def _when(path: Path, written: WriteFacts | None) -> str:
    if written is None:
        return "none"
    if path.kind in (PARTITION, RANGE, ROW, COLLECTION):
        return f"at {written.time}"
    if path.kind == MARKER and written.dead:
        return f"at {written.time}, expired"
    if written.dead:
        return f"deleted at {written.time}"
    until = "" if written.expires is None else f", expires at {written.expires}"
    return f"at {written.time}{until}" if path.kind == MARKER else f"written at {written.time}{until}"
