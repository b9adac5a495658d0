"""`cql.match`: adds the person, and all identities of the person, to each event that has one of them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import partial

from pyspark.sql import DataFrame, functions as F, types as st

from penstock.config import duration
from penstock.cql.matching.id_batches import KEY, MEASURES, Match
from penstock.cql.matching.id_store import TABLES, WHERE, IdStore
from penstock.cql.matching.identity_text import identity
from penstock.database.cql_connection import connection
from penstock.database.retrying import retrying
from penstock.database.table_catalog import describe
from penstock.errors import PenstockError
from penstock.keyed_state.query_metrics import measured
from penstock.schema import CqlTable

UNKNOWN = ("create", "ignore")
MAX_TTL = timedelta(days=20 * 365)


def match(
    frame: DataFrame,
    *,
    store: IdStore,
    ids: Sequence[str],
    into: str,
    unknown: str,
    ttl: timedelta | str,
    fresh: timedelta | str = timedelta(seconds=10),
    cache: int = 200_000,
    name: str = "match",
) -> DataFrame:
    """The frame with the person of each event in the column `into`, and the person's identities in `<into>_ids`.

    `ids` are columns with identities (strings or integers); an identity is the column's name and the value as a string.
    Null, the empty string, strings above 4096 bytes and invalid UTF-8 are not identities. All identities of an event
    belong to one person. For identities that are not in the store, `unknown` "create" writes them, for `ttl` after they
    were last seen (at most a tenth less); "ignore" only reads.

    `into` is a string (a UUID), null for an event without a person. `<into>_ids` is a map<string, array<string>> from
    kind to values, with at most 1000 values. Each Python process of Spark caches what it reads for `fresh`, at most
    `cache` identities; it sees merges by other processes after that. `name` names the metrics in the query's progress
    (`observedMetrics`).

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
    made = Match(
        store, tuple(ids), into, unknown == "create", int(lives.total_seconds()), duration(fresh, name="fresh"), cache
    )
    keys = F.struct(*(F.nullif(identity(F.col(each).cast("string")), F.lit("")).alias(each) for each in ids))
    lists = st.MapType(st.StringType(), st.ArrayType(st.StringType()))
    added = [st.StructField(into, st.StringType()), st.StructField(f"{into}_ids", lists)]
    fields = [*frame.schema.fields, *added, MEASURES.field]
    return measured(frame.withColumn(KEY, keys).mapInArrow(made, st.StructType(fields)), name, MEASURES)


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
    if taken := {into, f"{into}_ids"} & set(frame.columns):
        raise PenstockError(f"the frame already has a column {taken.pop()}", where=WHERE, next="use another into=")


def _describe(store: IdStore, name: str) -> CqlTable:
    return describe(connection(store.access).rows, store.table(name))


def require_tables(store: IdStore) -> None:
    """Raise unless the store has the tables of `create`."""
    for name, columns in TABLES.items():
        table = retrying(
            partial(_describe, store, name),
            what="describing the table",
            where=f"{store.table(name)} at {store.access.hosts}",
            patience=store.limits.patience,
        )
        wanted = {column.split()[0] for column in columns.split(", PRIMARY")[0].split(", ")}
        if {column.name for column in table.columns} != wanted:
            raise PenstockError(
                f"{table.full_name} is not a table of cql.create", where=WHERE, next="use another keyspace for cql.ids"
            )
