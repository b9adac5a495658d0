"""Reading spans of time out of log streams, as record batches of the frame."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from penstock.database.tables import quoted
from penstock.schema import Table
from penstock.source.cdc_changes import ChangeDecoder, decode_log
from penstock.source.cdc_frame import Layout, layout
from penstock.source.cdc_generations import Span
from penstock.source.cdc_options import Settings
from penstock.source.cdc_pages import IN_SPAN, fetch_pages, span_queries
from penstock.source.cdc_tables import log_name


def select(columns: Layout) -> str:
    """The SELECT of these columns of a span."""
    names = ", ".join(quoted(name) for name in columns.names)
    return f"SELECT {names} FROM {log_name(columns.table)} WHERE {IN_SPAN}"


def read_span(chosen: Settings, table: Table, schema: StructType, span: Span) -> Iterator[pa.RecordBatch]:
    """The span's rows as record batches of `schema`, those of each stream in the log's order."""
    columns = layout(table)
    arrow = to_arrow_schema(schema, timezone="UTC")
    text = select(columns)
    for query in span_queries(chosen, span):
        pages = fetch_pages(chosen, text, query)
        if chosen.rows == "log":
            yield from decode_log(pages, columns, arrow, span.only)
            continue
        decoder = ChangeDecoder(columns, chosen.images, arrow, span.planned, span.only)
        for page in pages:
            batch = decoder.decode(page)
            if batch is not None:
                yield batch
