"""Whether a table can take the events of a topic: nothing of an event is left out without a word.

The schemas in a registry are compared with the table when a query is built. What only a record shows becomes the
reason of its problem: another kind of event, a key with other columns, a column that the table does not have.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

from pyspark.sql import Column, functions as F

from penstock.codec.avro import field_name
from penstock.database.cql_types import CqlTable
from penstock.errors import PenstockError
from penstock.replicate.event_members import EventMembers

KEY = "row_key"
"""The member of an event with its primary key."""
NEEDED = ("op", "source", KEY, "change", "times")
"""The members without which an event cannot be applied."""
WITH_TIMES = (
    "write the topic with replicate.events; or with cdc.output.format=extended and penstock.write.times=true of the "
    "source connector, and without transforms that change its values"
)
NO_EVENT = f"it is not an extended event with the times of writes: {WITH_TIMES}"


def require_fit(event: EventMembers, table: CqlTable, topic: str) -> None:
    """Raise PenstockError if events of the newest schema cannot be applied to the table."""
    if any(event.decoded_type(name) is None for name in NEEDED):
        raise PenstockError(
            "the records are not extended events with the times of writes", where=f"topic {topic}", next=WITH_TIMES
        )
    has, wants = event.names(KEY), {field_name(name) for name in _key(table)}
    if has != wants:
        raise PenstockError(
            f"the tables have different keys: the events have {', '.join(sorted(has))}; {table.full_name} has "
            f"{', '.join(sorted(wants))}",
            where=f"topic {topic}",
            next="create the target with the same PRIMARY KEY",
        )
    known = {field_name(column.name) for column in table.columns}
    for name in sorted((event.names("after") | event.names("change", "values")) - known):
        raise PenstockError(
            f"the target has no column {name}, which the events have",
            where=f"{table.full_name}.{name}, topic {topic}",
            next=f"run ALTER TABLE {table.full_name} ADD {name} with its type in the source; then start again: no "
            "change is lost",
        )


def reasons(event: EventMembers, table: CqlTable, rows: Column | None) -> list[Column]:
    """Why an event cannot be applied, each null if it can; the first one counts.

    `rows` are the names of the columns of a snapshot's row, where the format has no schema with them.
    """
    return [_other_kind(event), _other_key(event, table), _other_columns(event, table, rows)]


def of_another_table(event: EventMembers, source: tuple[str, str]) -> Column:
    """A reason for an event that is not of the keyspace and the table `source`."""
    names = [event.member("source", name) for name in ("keyspace_name", "table_name")]
    same = (names[0] == source[0]) & (names[1] == source[1])
    said = F.concat(F.lit("it is of the table "), names[0], F.lit("."), names[1], F.lit(f", not of {'.'.join(source)}"))
    return F.when(~F.coalesce(same, F.lit(False)), F.coalesce(said, F.lit("it does not name its table")))


def _other_kind(event: EventMembers) -> Column:
    op = event.member("op")
    needed = [event.has(KEY), event.has("times"), event.has("source", "ts_us")]
    needed.append((op == "r") | (op.isin("c", "u", "d") & event.has("change")))
    whole = reduce(lambda condition, other: condition & other, needed)
    return F.when(~F.coalesce(whole, F.lit(False)), NO_EVENT)


def _other_key(event: EventMembers, table: CqlTable) -> Column:
    """A change without a row must be of static columns, or of a range; one of another key looks like that."""
    of_partition = _missing(event, (column.name for column in table.partition_key))
    of_row = _missing(event, (column.name for column in table.clustering_key))
    op, touched = event.member("op"), event.member("change", "touched")
    static = _names(column.name for column in table.values if column.kind == "static")
    of_static = (op != "d") & (F.size(touched) > 0) & (F.size(F.array_except(touched, static)) == 0)
    rowless = event.has("range") | (op == "r") | F.coalesce(of_static, F.lit(False))
    missing = F.coalesce(of_partition, F.when(~rowless, of_row))
    return F.concat(F.lit("its key has no "), missing, F.lit(f", which is in the key of {table.full_name}"))


def _missing(event: EventMembers, names: Iterable[str]) -> Column:
    """The first of these columns of the key that an event lacks."""
    cases = [F.when(~event.has(KEY, field_name(name)), name) for name in names]
    return F.coalesce(*cases) if cases else F.lit(None).cast("string")


def _other_columns(event: EventMembers, table: CqlTable, rows: Column | None) -> Column:
    known = [column.name for column in table.values]
    if event.decoded_type("change", "values") is not None:
        # An older schema may have had more than the newest one, to which records are converted.
        known = [name for name in known if field_name(name) in event.names("change", "values")]
    op = event.member("op")
    lacking = F.when(op != "r", F.array_except(event.member("change", "touched"), _names(known)))
    if rows is not None:
        every = _names(column.name for column in table.columns)
        lacking = F.coalesce(lacking, F.when(op == "r", F.array_except(rows, every)))
    said = F.concat(
        F.lit("it has values for "),
        F.array_join(lacking, ", "),
        F.lit(f", which {table.full_name} lacks: run ALTER TABLE ... ADD, and start again"),
    )
    return F.when(F.size(lacking) > 0, said)


def _key(table: CqlTable) -> list[str]:
    return [column.name for column in (*table.partition_key, *table.clustering_key)]


def _names(names: Iterable[str]) -> Column:
    return F.array(*map(F.lit, names)).cast("array<string>")
