"""The envelope and the key of an event with their Connect schemas, as expressions over a change frame."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, get_args

from pyspark.sql import Column, functions as F

import penstock
from penstock.codec import change_frame
from penstock.codec.change_frame import Layout, encode, field_of
from penstock.codec.connect_schema import envelope_schema, key_schema, nothing
from penstock.codec.typed_records import RecordPart
from penstock.database.cql_types import CqlType, clustering_order

EXTENDED_COLUMNS = (
    "written",
    "deleted",
    "delta",
    "deleted_elements",
    "ttl",
    "stream_id",
    "time",
    "batch_seq_no",
    "end_of_batch",
)
"""Columns of the change frame that the extended format needs in addition to the columns of every event."""
LEGACY_COLUMNS = ("delta", "deleted")
"""Columns of the change frame that the legacy format needs in addition to the columns of every event."""
ROW_DELETES = (3, -3)
PARTITION_DELETES = (4, -4)
EventFormat: TypeAlias = Literal["advanced", "legacy", "extended"]
FORMATS = get_args(EventFormat)
TOMBSTONE = "penstock_tombstone"
"""The column that distinguishes a delete's tombstone from the delete."""


@dataclass(frozen=True)
class Format:
    """The format of the events of one table: names, images, and where the primary key goes."""

    prefix: str
    shape: str
    images: tuple[str, str]
    places: frozenset[str]
    payload_key_name: str
    timed: bool = False
    """Whether the events have times of writes and of expiry, and exact values."""

    @property
    def legacy(self) -> bool:
        return self.shape == "legacy"

    @property
    def extended(self) -> bool:
        return self.shape == "extended"

    @property
    def needed(self) -> tuple[str, ...]:
        """Columns of the change frame that this format needs in addition to the columns of every event."""
        if self.legacy:
            return LEGACY_COLUMNS
        if self.extended:
            return EXTENDED_COLUMNS
        return ("written",) if "only-updated" in self.images else ()


def key(table: Layout, style: Format) -> RecordPart | None:
    """The record's key, if the placement asks for one."""
    if "kafka-key" not in style.places:
        return None
    return RecordPart(change_frame.row_key(table), key_schema(table, style.prefix))


def values(table: Layout, style: Format) -> tuple[RecordPart, ...]:
    """The event, and for tables with clustering columns the event of a deleted range."""
    change = ~F.col(TOMBSTONE)
    if not table.clustering_key:
        return (_event(table, style, change, ranged=False),)
    return (
        _event(table, style, change & ~deletes_range(), ranged=False),
        _event(table, style, change & deletes_range(), ranged=True),
    )


def _event(table: Layout, style: Format, condition: Column, *, ranged: bool) -> RecordPart:
    """The event where the condition is true."""
    schema = envelope_schema(
        table,
        style.prefix,
        images=("payload-before" in style.places, "payload-after" in style.places),
        payload_key=style.payload_key_name if "payload-key" in style.places else None,
        ranged=ranged,
        cells=style.legacy,
        extended=style.extended,
        timed=style.timed,
    )
    members = {field["field"]: field for field in schema["fields"]}
    members_by_name = {"source": _source(table, style.prefix), "op": F.col("op"), **_times(style)}
    if not ranged:
        members_by_name |= _images(table, style)
    if "payload-key" in style.places:
        members_by_name[style.payload_key_name] = change_frame.row_key(table)
    if style.extended:
        members_by_name["change"] = change_member(table, exact=style.timed)
    if style.timed:
        members_by_name["times"] = times_member(table)
    if ranged:
        members_by_name["range"] = deleted_range(table)
    payload = F.struct(*(members_by_name.get(name, nothing(kind)).alias(name) for name, kind in members.items()))
    return RecordPart(F.when(condition, payload), schema)


def _images(table: Layout, style: Format) -> dict[str, Column]:
    """The images before and after that the format includes."""
    if style.legacy:
        before, after = legacy_images(table)
        return {"before": before, "after": after}
    images = {
        side: change_frame.row_image(
            side, table, "full" if mode == "none" else mode, with_key=f"payload-{side}" in style.places
        )
        for side, mode in zip(("before", "after"), style.images, strict=True)
        if mode != "none" or side == "after"
    }
    if style.timed:
        images["after"] = F.coalesce(F.when(F.col("op") == "r", _exact_row(table, style)), images["after"])
    if style.images[1] == "none":
        # Without `after`, the event of a snapshot row would be empty.
        images["after"] = F.when(F.col("op") == "r", images["after"])
    return images


def _times(style: Format) -> dict[str, Column]:
    # Not current_timestamp(): it is a new constant in each batch, so Spark would compile this code again.
    times = {"ts_ms": F.unix_millis("read_ts")}
    if style.legacy:
        micros = legacy_encoded_at()
        times |= {"ts_us": micros, "ts_ns": micros * 1000}
    return times


def _source(table: Layout, prefix: str) -> Column:
    millis = F.unix_millis("ts")
    return F.struct(
        F.lit(penstock.__version__).alias("version"),
        F.lit("scylla").alias("connector"),
        F.lit(prefix).alias("name"),
        millis.alias("ts_ms"),
        _of_snapshot().alias("snapshot"),
        F.lit(table.keyspace).alias("db"),
        F.lit(None).cast("string").alias("sequence"),
        F.unix_micros("ts").alias("ts_us"),
        # Whole milliseconds, as in the connector. A client may write with any timestamp, and nanoseconds of the year
        # 2262 and later do not fit a long.
        F.try_multiply(millis, F.lit(1_000_000)).alias("ts_ns"),
        F.lit(table.keyspace).alias("keyspace_name"),
        F.lit(table.table).alias("table_name"),
    )


def _of_snapshot() -> Column:
    """What Debezium says of the snapshot that an event is of; the rows of an ad-hoc snapshot have an operation."""
    row = F.when(F.col("operation").isNull(), "true").otherwise("incremental")
    return F.when(F.col("op") == "r", row).otherwise("false")


# The primary key as headers of a record.


def key_headers(table: Layout) -> Column:
    """Headers `pk.<column>` and `ck.<column>`, in the log's column order; a null key column has no header."""
    fields = table.fields("key")
    names = [name for name in table.columns if name in fields]
    headers = [
        F.struct(
            F.lit(f"{'pk' if name in table.partition_key else 'ck'}.{name}").alias("key"),
            F.encode(_java_text(field_of(F.col("key"), name, fields), table.types[name]), "UTF-8").alias("value"),
        )
        for name in names
    ]
    return F.filter(F.array(*headers), lambda header: header.getField("value").isNotNull())


def _java_text(value: Column, kind: CqlType) -> Column:
    """The value like Java's `toString` in the connector, but bytes as base64 and nested values as JSON."""
    if kind.name in ("date", "timestamp"):
        return F.date_format(value.cast("timestamp"), "EEE MMM dd HH:mm:ss zzz y")
    if kind.name == "blob":
        return F.base64(value)
    if kind.args:
        return F.to_json(encode(value, kind), {"ignoreNullFields": "false"})
    return value.cast("string")


# Deletes in a change frame: deletes of one row, and the range of the others.


def deletes_one_row(table: Layout) -> Column:
    """Whether the change deletes the single row of its key, so that a tombstone follows."""
    codes = ROW_DELETES if table.clustering_key else (*ROW_DELETES, *PARTITION_DELETES)
    return F.col("operation").isin(*codes)


def deletes_range() -> Column:
    """Whether the change deletes a range or a whole partition of a table with clustering columns."""
    return (F.col("op") == "d") & ~F.col("operation").isin(*ROW_DELETES)


def deleted_range(table: Layout) -> Column:
    """The deleted range; a partition delete is a range without bounds."""
    bounds = F.col("range")
    order = [F.lit(text) for text in clustering_order(table.clustering_key, table.descending)]
    return F.struct(
        _bound(bounds.getField("start"), table).alias("start"),
        F.coalesce(bounds.getField("start_inclusive"), F.lit(True)).alias("start_inclusive"),
        _bound(bounds.getField("end"), table).alias("end"),
        F.coalesce(bounds.getField("end_inclusive"), F.lit(True)).alias("end_inclusive"),
        *([F.array(*order).alias("order")] if len(order) > 1 else []),
    )


def _bound(bound: Column, table: Layout) -> Column:
    kinds = {name: table.types[name] for name in table.clustering_key}
    first = field_of(bound, table.clustering_key[0], kinds)
    fields = [encode(field_of(bound, name, kinds), kind).alias(name) for name, kind in kinds.items()]
    return F.when(first.isNotNull(), F.struct(*fields))


# The connector's older output format, `legacy`: rows of cells, without collections and structs.
#
# A column outside the key is in a cell: null means not touched, `{"value": null}` set to null, `{"value": v}` set.
# `after` holds what the statement wrote, not the row. `before` holds the preimage, if the change frame has one.


def legacy_layout(table: Layout) -> Layout:
    """The table in this format: only scalar columns, and the key sorted by name."""
    columns = tuple(name for name in table.columns if not table.types[name].args)
    return replace(table, columns=columns, key=tuple(sorted(set(table.key) & set(columns))))


def legacy_images(table: Layout) -> tuple[Column, Column]:
    """The images before and after: a write has its cells, a delete has the deleted row or, if unknown, only its key."""
    delete = F.col("op") == "d"
    before = F.when(delete | F.col("before").isNotNull(), _legacy_row("before", table))
    return before, F.when(~delete, _legacy_row("delta", table))


def legacy_encoded_at() -> Column:
    """When the event was created, in microseconds; null for a write with a preimage.

    Debezium fills in this time in events that it builds, but the connector itself builds writes with a preimage.
    """
    return F.when((F.col("op") == "d") | F.col("before").isNull(), F.unix_micros("read_ts"))


def _legacy_row(struct: str, table: Layout) -> Column:
    return F.struct(
        *(
            change_frame.row_field("key", name, table) if name in table.key else _legacy_cell(struct, name, table)
            for name in table.columns
        )
    )


def _legacy_cell(struct: str, name: str, table: Layout) -> Column:
    # The connector decides by the statement whether a column was set to null, for cells of the preimage too.
    known = field_of(F.col(struct), name, table.fields(struct)).isNotNull() | F.array_contains("deleted", name)
    return F.when(known, F.struct(change_frame.row_field(struct, name, table).alias("value"))).alias(name)


# The format `extended` adds a member `change` with everything that the log holds about the statement.


def _exact_row(table: Layout, style: Format) -> Column:
    names = [name for name in table.columns if "payload-after" in style.places or name not in table.key]
    fields = (encode(field_of(F.col("after"), n, table.types), table.types[n], exact=True).alias(n) for n in names)
    return F.struct(*fields)


def times_member(table: Layout) -> Column:
    """The member `times`: of frames that are read with `write_times`."""
    values = [name for name in table.types if name not in table.key]
    members = [F.unix_seconds("expires").alias("expires")]
    if values:
        members += [F.col("write_times"), F.col("expiries")]
    lists = [name for name in values if table.types[name].nonfrozen_list]
    if lists:
        members.append(F.struct(*(_whole_list(name, table).alias(name) for name in lists)).alias("lists"))
    members.append(F.col("inserted"))
    return F.struct(*members)


def _whole_list(name: str, table: Layout) -> Column:
    whole = F.col("lists").getField(name)
    values = encode(whole.getField("values"), table.types[name], exact=True).alias("values")
    return F.when(whole.isNotNull(), F.struct(values, whole.getField("expiries").alias("expiries")))


def change_member(table: Layout, *, exact: bool = False) -> Column:
    """The member `change`; null for rows of a snapshot, which have no statement."""
    members = {
        "touched": F.col("written"),
        "set_to_null": F.col("deleted"),
        "values": _struct({name: _written(name, table, exact) for name in table.fields("delta")}),
        "removed_elements": _struct({name: _removed(name, table) for name in table.fields("deleted_elements")}),
        "ttl": F.col("ttl"),
        "stream_id": F.lower(F.hex("stream_id")),
        "time": F.col("time"),
        "batch_seq_no": F.col("batch_seq_no"),
        "end_of_batch": F.col("end_of_batch"),
    }
    there = [column.alias(name) for name, column in members.items() if column is not None]
    return F.when(F.col("op") != "r", F.struct(*there))


def _struct(fields: dict[str, Column]) -> Column | None:
    """A struct of the fields, null for deletes; None if there are no fields."""
    if not fields:
        return None
    return F.when(F.col("op") != "d", F.struct(*(column.alias(name) for name, column in fields.items())))


def _written(name: str, table: Layout, exact: bool) -> Column:
    kinds = table.fields("delta")
    return encode(field_of(F.col("delta"), name, kinds), kinds[name], exact=exact)


def _removed(name: str, table: Layout) -> Column:
    kinds = table.fields("deleted_elements")
    elements = field_of(F.col("deleted_elements"), name, kinds)
    kind = table.types[name]
    if kind.name == "udt":
        fields = F.array(*map(F.lit, kind.fields))
        return F.transform(elements, lambda position: F.get(fields, position.cast("int")))
    return encode(elements, kinds[name])
