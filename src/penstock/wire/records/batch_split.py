"""Splits a record batch that a broker refuses into smaller batches with the same compression."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from penstock.native import Array
from penstock.wire.records.batch_header import HEADER_SIZE, read_headers
from penstock.wire.records.compression import MAX_SIZE, decompress
from penstock.wire.records.record_decoder import decode
from penstock.wire.records.record_encoder import Encoded, TableEncoder


def halves(batch: memoryview, level: int | None) -> Iterator[Encoded]:
    """Splits a batch of at least two records into batches in order, each with at most half of its bytes.

    A record that is larger than half gets its own batch, so there may be three. Their `rows` count from 0.
    """
    (header,) = read_headers(batch)
    size = len(decompress(header.codec, batch[HEADER_SIZE:]))
    encoder = TableEncoder(1, batch_size=HEADER_SIZE + size // 2, compression=header.codec, level=level)
    return encoder.encode(_records(batch))


def parted(batch: memoryview, parts: Sequence[Array], level: int | None) -> Iterator[Encoded]:
    """A batch for each part of a batch's records; a part has the records' numbers from 0, ascending."""
    (header,) = read_headers(batch)
    # Time deltas from another first record may take more bytes than before, so the old size is not a bound.
    encoder = TableEncoder(1, batch_size=MAX_SIZE, compression=header.codec, level=level)
    records = _records(batch)
    for rows in parts:
        yield from encoder.encode(records.take(pa.array(rows)))


def _records(batch: memoryview) -> pa.RecordBatch:
    (records,) = decode(batch).drop_columns(["offset"]).to_batches()
    return records


def sizes(batch: memoryview) -> str:
    """Describes the sizes of a batch of one record, for the error that it is too large."""
    (header,) = read_headers(batch)
    size = len(decompress(header.codec, batch[HEADER_SIZE:]))
    return f"one record of {size} bytes, {len(batch)} bytes in its batch as sent, to which the limit applies"
