"""Reads spans of time from log streams as record batches of the frame."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from penstock.cdc.cdc_options import CdcSettings
from penstock.cdc.cdc_tables import log_name
from penstock.cdc.change_decoder import ChangeDecoder, decode_log
from penstock.cdc.change_rows import LogLayout, layout
from penstock.cdc.generations import Span
from penstock.cdc.log_pages import IN_SPAN, fetch_pages, span_queries
from penstock.database.table_catalog import quoted
from penstock.schema import CqlTable


def span_select(columns: LogLayout) -> str:
    """The SELECT statement for these columns of a span."""
    names = ", ".join(quoted(name) for name in columns.names)
    return f"SELECT {names} FROM {log_name(columns.table)} WHERE {IN_SPAN}"


def read_span(chosen: CdcSettings, table: CqlTable, schema: StructType, span: Span) -> Iterator[pa.RecordBatch]:
    """Yield the span's rows as record batches of `schema`; the rows of each stream are in the log's order."""
    columns = layout(table)
    arrow = to_arrow_schema(schema, timezone="UTC")
    text = span_select(columns)
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
