"""Compiles or loads the loops that read a change log, so that the first batch of a query does not wait for them."""

from __future__ import annotations

import struct
import uuid

from pyspark.sql.pandas.types import to_arrow_schema

from penstock.cdc.change_decoder import ChangeDecoder, View
from penstock.cdc.change_rows import Images, frame_schema, layout
from penstock.cdc.row_pairing import OPERATION, SEQUENCE, STREAM, TIME, row_hashes
from penstock.database.pages import Page
from penstock.schema import Column, CqlTable, parse_type

KINDS = ("text", "uuid", "list<int>", "map<text, bigint>")
ROW = {STREAM: bytes(16), TIME: uuid.UUID(int=1 << 76).bytes, SEQUENCE: bytes(4), OPERATION: b"\x02"}
"""The cells of an insert that has only its position in the log."""


def warm() -> None:
    """Decode a page with one insert whose columns are null, and hash its row."""
    columns = layout(_table())
    schema = to_arrow_schema(frame_schema(columns.table), timezone="UTC")
    cells = [ROW.get(number, b"") for number in range(len(columns.names))]
    data = b"".join(struct.pack(">i", len(cell) or -1) + cell for cell in cells)
    ChangeDecoder(columns, Images("full", "full"), schema, read_micros=0).decode(Page(data, 1, final=True))
    view = View.of(data, 1, columns)
    row_hashes(view.buffer, view.starts, view.lengths, [STREAM])


def _table() -> CqlTable:
    values = (Column(f"v{number}", parse_type(kind, {}), "regular") for number, kind in enumerate(KINDS))
    return CqlTable("ks", "t", (Column("id", parse_type("int", {}), "partition_key", 0), *values))
