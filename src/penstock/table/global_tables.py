"""Tables that every worker holds completely, from a topic or a CQL table: lookups need no shuffle and no state."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, functions as F, types as st

from penstock.codec.decode_columns import struct_of
from penstock.errors import PenstockError
from penstock.kafka.security import require_servers
from penstock.keyed_state.arrow_keys import arrow_schema
from penstock.table.json_rows import unreadable
from penstock.table.replica import CompactedTopic, Feed, replica

KEY = "_key"


@dataclass(frozen=True)
class GlobalTable:
    """A table for `join.enrich`, created by `table.global_table` and `cql.global_table`."""

    source: Feed
    schema: st.StructType

    def enrich(self, frame: DataFrame, *, on: str, how: str, name: str) -> DataFrame:
        """See `join.enrich`."""
        if twice := sorted(set(frame.columns) & set(self.schema.names)):
            raise PenstockError(
                f"both sides have a column {', '.join(twice)}", where=f"join {name}", next="rename it in the frame"
            )
        output = st.StructType([*frame.schema, *self.schema])
        keyed = frame.withColumn(KEY, F.col(on).cast("string").cast("binary"))
        return keyed.mapInArrow(_Enrich(self.source, arrow_schema(output), how), output)


def global_table(
    topic: str,
    *,
    servers: str,
    schema: str | st.StructType,
    memory: int = 512 << 20,
    folder: str = "",
    max_decompressed_bytes: int | None = None,
) -> GlobalTable:
    """A topic of JSON objects with string keys as a table for `join.enrich`: the newest record of each key.

    `schema` names the members that become columns. Each Python worker (one per core) reads the whole topic before its
    first lookup and then follows it. A table larger than `memory` bytes is kept in RocksDB under `folder` (default: the
    system's folder for temporary files), which needs the extra `rocksdb`. Records that cannot be read are skipped. A
    record batch larger than `max_decompressed_bytes` (default 116 MB) when decompressed is an error. A lookup depends
    on its time: a batch that runs again may find newer rows.

    Raises PenstockError for invalid `servers` or `schema`, and for column types that cannot be read from JSON.
    """
    where = f"table.global_table of {topic}"
    require_servers(servers, where, next="fix servers=")
    kind = struct_of(schema, where)
    for field in kind:
        if wrong := unreadable(field.dataType):
            raise PenstockError(
                f"the column {field.name} is {wrong.simpleString()}, which cannot be read here",
                where=where,
                next="declare it as string to get its JSON, and parse that after the join",
            )
    return GlobalTable(CompactedTopic(topic, servers, arrow_schema(kind), memory, folder, max_decompressed_bytes), kind)


@dataclass(frozen=True)
class _Enrich:
    """Adds the columns of the table to Arrow batches."""

    source: Feed
    output: pa.Schema
    how: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = pa.Table.from_batches([batch])
            found, values = replica(self.source).get(batch.column(KEY))
            rows = rows.drop_columns([KEY])
            for name in values.column_names:
                rows = rows.append_column(name, values[name])
            if self.how == "inner":
                rows = rows.filter(pa.array(found))
            yield from rows.cast(self.output).to_batches()
