"""Cuts a record batch that a broker refuses as a whole into smaller ones, each with the same compression."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from penstock.native import Array
from penstock.wire.records.batch_header import HEADER_SIZE, read_headers
from penstock.wire.records.compression import MAX_SIZE, decompress
from penstock.wire.records.record_decoder import decode
from penstock.wire.records.record_encoder import Encoded, TableEncoder


def halves(batch: memoryview, level: int | None) -> Iterator[Encoded]:
    """Batches with the records of one that has at least two, in their order, each with at most half of its bytes.

    A record that is larger than half gets a batch of its own, so there may be three. Their `rows` count from 0.
    """
    (header,) = read_headers(batch)
    size = len(decompress(header.codec, batch[HEADER_SIZE:]))
    encoder = TableEncoder(1, batch_size=HEADER_SIZE + size // 2, compression=header.codec, level=level)
    return encoder.encode(_records(batch))


def parted(batch: memoryview, parts: Sequence[Array], level: int | None) -> Iterator[Encoded]:
    """A batch for each of these parts of the records of one; each part has their numbers from 0, ascending."""
    (header,) = read_headers(batch)
    # Times that count from another record may take more bytes than in the whole, so that is no bound.
    encoder = TableEncoder(1, batch_size=MAX_SIZE, compression=header.codec, level=level)
    records = _records(batch)
    for rows in parts:
        yield from encoder.encode(records.take(pa.array(rows)))


def _records(batch: memoryview) -> pa.RecordBatch:
    (records,) = decode(batch).drop_columns(["offset"]).to_batches()
    return records


def sizes(batch: memoryview) -> str:
    """For whoever has to find out why a batch of one record is too large."""
    (header,) = read_headers(batch)
    size = len(decompress(header.codec, batch[HEADER_SIZE:]))
    return f"one record of {size} bytes, {len(batch)} bytes as its batch is sent, which is what the limit counts"
