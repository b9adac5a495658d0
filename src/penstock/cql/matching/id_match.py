"""`cql.match`: adds the person, and all identities of the person, to each event that has one of them.

Events are matched by Arrow batch, with the caches of a process between batches. Events whose identities are known to
belong to one person need no database: whole columns are compared. The other events of an Arrow batch go through the
rules of `linking` together.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from operator import itemgetter
from typing import Literal, TypeAlias, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, functions as F, types as st

from penstock.border.public import public
from penstock.cql.matching.id_store import (
    WHERE,
    Identity,
    IdStore,
    IdTables,
    Listed,
    Steps,
    read_lists,
    require_tables,
    with_own,
)
from penstock.cql.matching.linking import Node, node_of
from penstock.cql.row_cache import MEASURED, Measures, RowCache, measured
from penstock.database.columns import decode
from penstock.database.cql_types import CqlType
from penstock.database.encode_cells import encode
from penstock.durations import Duration, duration
from penstock.errors import PenstockError
from penstock.keyed_state.arrow_keys import taken
from penstock.native import Array

Unknown: TypeAlias = Literal["create", "ignore"]
UNKNOWN = get_args(Unknown)
MAX_TTL = timedelta(days=20 * 365)
LONGEST = 4096
"""Maximum bytes, as for a cookie (RFC 6265)."""
UNSEEN, NOBODY = -1, -2
"""Numbers instead of a person: for an unknown identity, and for an identity that is known to have no person."""
SEPARATOR = b"\0"
KEY = "penstock$ids"
"""The temporary column of the identities, a struct."""
MEASURES = Measures(("rows", "hits", "identities", "created", "merged", "requests", "wait_ms", "cached"))
_IDS = pa.map_(pa.string(), pa.list_(pa.string()))
_PERSON = pa.schema([("person", pa.binary())])
_LISTS = pa.schema([("ids", _IDS), ("whole", pa.bool_())])


@public("cql.match")
def match(
    frame: DataFrame,
    *,
    store: IdStore,
    ids: Sequence[str],
    into: str,
    unknown: Unknown,
    ttl: Duration,
    fresh: Duration = timedelta(seconds=10),
    cache: int = 200_000,
    name: str = "match",
) -> DataFrame:
    """The frame with the person of each event in the column `into`, and the person's identities in `<into>_ids`.

    `ids` are columns with identities (strings or integers); an identity is the column's name and the value as a string.
    Null, the empty string, strings above 4096 bytes and invalid UTF-8 are not identities. All identities of an event
    belong to one person. For identities that are not in the store, `unknown` "create" writes them, for `ttl` after they
    were last seen (at most a tenth less); "ignore" only reads.

    `into` is a string (a UUID), null for an event without a person. `<into>_ids` is a map<string, array<string>> from
    kind to values, with at most 1000 values, the event's own among them. Each Python process of Spark caches what
    it reads for `fresh`, at most `cache` identities; it sees merges by other processes after that. `name` names the
    metrics in the query's progress (`observedMetrics`).

    A batch that runs again adds only what is missing; its persons may be newer after a merge. Raises PenstockError for
    missing tables or columns and an invalid `ttl` or `unknown`.
    """
    lives = duration(ttl, name="ttl")
    if not timedelta(seconds=1) <= lives <= MAX_TTL:
        raise PenstockError(f"ttl cannot be {lives}", where=WHERE, next="use one second to 20 years")
    if unknown not in UNKNOWN:
        raise PenstockError(f"unknown cannot be {unknown!r}", where=WHERE, next="use 'create' or 'ignore'")
    _check_columns(frame, ids, into)
    require_tables(store)
    matcher = Match(
        store, tuple(ids), into, unknown == "create", int(lives.total_seconds()), duration(fresh, name="fresh"), cache
    )
    keys = F.struct(*(F.nullif(identity(F.col(each).cast("string")), F.lit("")).alias(each) for each in ids))
    lists = st.MapType(st.StringType(), st.ArrayType(st.StringType()))
    added = [st.StructField(into, st.StringType()), st.StructField(f"{into}_ids", lists)]
    fields = [*frame.schema.fields, *added, MEASURES.field]
    return measured(frame.withColumn(KEY, keys).mapInArrow(matcher, st.StructType(fields)), name, MEASURES)


def _check_columns(frame: DataFrame, ids: Sequence[str], into: str) -> None:
    for name in ids:
        if name not in frame.columns:
            raise PenstockError(
                f"the frame has no column {name}",
                where=f"{WHERE}, columns {', '.join(frame.columns)}",
                next="check ids=",
            )
        if not isinstance(frame.schema[name].dataType, st.StringType | st.IntegralType):
            raise PenstockError(
                f"the identity {name} is {frame.schema[name].dataType.simpleString()}",
                where=WHERE,
                next="convert it to a string: frame.withColumn(...)",
            )
    if not ids:
        raise PenstockError("ids is empty", where=WHERE, next='list the columns with identities: ids=["cookie", ...]')
    if present := {into, f"{into}_ids"} & set(frame.columns):
        raise PenstockError(f"the frame already has a column {present.pop()}", where=WHERE, next="use another into=")


def identity(text: Column) -> Column:
    """The string, or null if it is too long or not UTF-8: one event that no table can hold must not stop all others."""
    return F.when((F.octet_length(text) <= LONGEST) & F.is_valid_utf8(text), text)


@dataclass(frozen=True)
class Match:
    """Adds the person and its identities to the record batches of a task."""

    store: IdStore
    kinds: tuple[str, ...]
    into: str
    create: bool
    ttl: int
    fresh: timedelta
    limit: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        process = PROCESSES.setdefault(self, IdentityCache(self))
        for batch in batches:
            if batch.num_rows:
                yield process.matched(batch)


class IdentityCache:
    """The caches of a process: the persons of identities, and the identities of persons."""

    def __init__(self, match: Match) -> None:
        self.match = match
        self.tables = IdTables(match.store, match.ttl)
        self.steps = Steps(self.tables)
        self.own: dict[Node, list[Identity]] = {}
        self.persons = RowCache(_PERSON, match.limit, match.fresh.total_seconds())
        self.lists = RowCache(_LISTS, match.limit, match.fresh.total_seconds())

    def matched(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        began, self.tables.requests = time.monotonic(), 0
        events = EventIdentities.of(self.match.kinds, batch.column(KEY).flatten())
        places = self.persons.find(events.identities, began)
        persons = taken(self.persons.table, places).column(0).combine_chunks()
        cold, created, merged = events.unsettled(persons), 0, 0
        if cold.any():
            persons, created, merged = self._resolve(events, persons.to_pylist(), cold, began)
        codes, names = events.persons(persons)
        lists = self._lists(names, began)
        self.steps.forget()
        added = [_uuids(names).take(codes), events.lists(persons, codes, lists)]
        numbers = [
            batch.num_rows,
            int(np.count_nonzero(events.codes.max(axis=1, initial=-1) >= 0)) - int(cold.sum()),
            len(events.identities),
            created,
            merged,
            self.tables.requests,
            round((time.monotonic() - began) * 1000) if self.tables.requests else 0,
            len(self.persons),
        ]
        plain = [(name, column) for name, column in zip(batch.schema.names, batch.columns, strict=True) if name != KEY]
        named = [*(name for name, _ in plain), self.match.into, f"{self.match.into}_ids", MEASURED]
        columns = [*(column for _, column in plain), *added, MEASURES.column(numbers, batch.num_rows)]
        return pa.RecordBatch.from_arrays(columns, named)

    def _resolve(
        self, events: EventIdentities, persons: list[bytes | None], cold: Array, now: float
    ) -> tuple[pa.Array, int, int]:
        """Find the persons of the `cold` events; returns all persons, and how many are new and merged."""
        groups = np.unique(events.codes[cold], axis=0).tolist()
        places = sorted({code for group in groups for code in group if code >= 0})
        of_place = {place: events.identity(place) for place in places}
        nodes = {place: node_of(*identity) for place, identity in of_place.items()}
        identities = {nodes[place]: identity for place, identity in of_place.items()}
        together = [tuple(dict.fromkeys(nodes[code] for code in group if code >= 0)) for group in groups]
        resolved = self.steps.run(together, identities, self.match.create)
        for place, person in enumerate(persons):
            # This may have merged another event's person.
            if person:
                persons[place] = resolved.persons.get(person, person)
        for place, node in nodes.items():
            persons[place] = resolved.persons[node] if self.match.create or node in resolved.known else b""
        self.own = {}
        for node, identity in sorted(identities.items(), key=itemgetter(1)):
            self.own.setdefault(resolved.persons[node], []).append(identity)
        fresh = pa.table({"person": pa.array([persons[place] for place in places], pa.binary())})
        # As old as the batch: waiting for the database must not make the rows seem newer.
        self.persons.add(events.identities.take(pa.array(places)), fresh, now)
        return pa.array(persons, pa.binary()), resolved.created, resolved.merged

    def _lists(self, persons: pa.Array, now: float) -> pa.Table:
        """The identities of each person, as `_LISTS`; read again for persons that this batch changed."""
        places = self.lists.find(persons, now)
        touched = pc.is_in(persons, pa.array(list(self.steps.touched), pa.binary()))
        old = (places < 0) | touched.to_numpy(zero_copy_only=False)
        table = self.lists.table
        if old.any():
            wanted = persons.filter(pa.array(old))
            lists = self._read_lists(wanted.to_pylist())
            ids = _as_maps(person_list.identities for person_list in lists)
            fresh = pa.table([ids, pa.array([person_list.whole for person_list in lists], pa.bool_())], schema=_LISTS)
            places[old] = np.arange(table.num_rows, table.num_rows + len(wanted))
            table = pa.concat_tables([table, fresh])
            self.lists.add(wanted, fresh, now)
        return taken(table, places)

    def _read_lists(self, persons: list[Node]) -> list[Listed]:
        """The identities of persons: for persons new in this batch its identities, for others those in the tables."""
        own = {person: Listed(self.own[person], True) for person in persons if person in self.steps.new}
        others = [person for person in persons if person not in own]
        own.update(zip(others, read_lists(self.tables, others), strict=True))
        return [own[person] for person in persons]


def _uuids(persons: pa.Array) -> pa.Array:
    return decode(CqlType("uuid"), encode(CqlType("blob"), persons), pa.string())


def _as_maps(lists: Iterable[Iterable[Identity]]) -> pa.Array:
    """Lists of identities as maps from kind to values."""
    maps = []
    for identities in lists:
        kinds: dict[str, list[str]] = {}
        for kind, value in identities:
            kinds.setdefault(kind, []).append(value)
        maps.append(list(kinds.items()))
    return pa.array(maps, _IDS)


PROCESSES: dict[Match, IdentityCache] = {}
"""The caches of this Python process, shared by its tasks."""


# The events of an Arrow batch by their identities, in whole columns: which events need the rules, and the persons of
# the others.


@dataclass(frozen=True)
class EventIdentities:
    """The events of an Arrow batch: their distinct identities, and for each row the positions of its own (-1: none).

    An identity is the kind, a zero byte and the value. Arguments `persons` have the person of each identity: empty if
    it has none, null if unknown.
    """

    identities: pa.Array
    codes: Array

    @classmethod
    def of(cls, kinds: Sequence[str], columns: Sequence[pa.Array]) -> EventIdentities:
        identities: list[pa.Array] = []
        codes, known = [], 0
        for kind, column in zip(kinds, columns, strict=True):
            coded = column.dictionary_encode()
            local_codes = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
            codes.append(np.where(local_codes < 0, -1, local_codes + known))
            values = coded.dictionary.cast(pa.binary())
            identities.append(pc.binary_join_element_wise(kind.encode(), values, SEPARATOR))
            known += len(values)
        return cls(pa.concat_arrays(identities), np.column_stack(codes))

    def identity(self, place: int) -> Identity:
        kind, _, value = self.identities[place].as_py().decode().partition("\0")
        return kind, value

    def unsettled(self, persons: pa.Array) -> Array:
        """A mask of the events with an unknown identity, or with identities of two persons."""
        of_event = _numbered(persons)[self.codes]
        none = (self.codes < 0) | (of_event == NOBODY)
        low = np.where(none, np.iinfo(np.int64).max, of_event).min(axis=1)
        high = np.where(none, -1, of_event).max(axis=1)
        cold: Array = (of_event == UNSEEN).any(axis=1, where=~none) | ((high >= 0) & (low != high))
        return cold

    def persons(self, persons: pa.Array) -> tuple[pa.Array, pa.Array]:
        """For each event the position of its person, and the distinct persons in order."""
        names = pc.unique(persons.filter(pc.greater(pc.binary_length(persons), 0)))
        names = names.take(pc.sort_indices(names))
        ranks = pc.index_in(persons, names).fill_null(len(names)).to_numpy(zero_copy_only=False)
        rank = np.append(ranks, len(names))[self.codes].min(axis=1)
        return pa.array(rank, mask=rank == len(names)), names

    def lists(self, persons: pa.Array, person: pa.Array, lists: pa.Table) -> pa.Array:
        """For each event the identities of its person, whose position is in `person`; its own are among them.

        `lists` has the identities of the distinct persons. If one is not whole, events of this person may need others.
        """
        ids, places = lists.column("ids").combine_chunks(), person.fill_null(-1).to_numpy(zero_copy_only=False).copy()
        cut = np.append(~lists.column("whole").to_numpy(), False)
        known = {
            place: dict.fromkeys((kind, value) for kind, some in ids[place].as_py() for value in some)
            for place in np.flatnonzero(cut).tolist()
        }
        more: dict[tuple[int, frozenset[Identity]], int] = {}
        for row in np.flatnonzero(cut[places]).tolist():
            place = int(places[row])
            codes = [code for code in self.codes[row].tolist() if code >= 0 and persons[code].as_py()]
            own = frozenset(map(self.identity, codes))
            if not own <= known[place].keys():
                places[row] = more.setdefault((place, own), len(ids) + len(more))
        extended = _as_maps(with_own(known[place], own) for place, own in more)
        return pa.concat_arrays([ids, extended]).take(pa.array(places, mask=places < 0))


def _numbered(persons: pa.Array) -> Array:
    """A number for each person, equal for equal persons, and one more at the end, for the position -1."""
    coded = persons.dictionary_encode()
    numbers = coded.indices.fill_null(UNSEEN).to_numpy(zero_copy_only=False).astype(np.int64)
    nobody = coded.dictionary.index(b"").as_py()
    return np.append(np.where((numbers == nobody) & (numbers >= 0), NOBODY, numbers), NOBODY)
