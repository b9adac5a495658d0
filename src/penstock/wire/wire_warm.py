"""Compiles the loops for the most common columns, so that the first batch of a process need not wait for that.

Machine code is kept on disk beside the package, or in the user's cache directory if that cannot be written to.
"""

from __future__ import annotations

import pyarrow as pa

from penstock.native.text_slices import Texts
from penstock.wire.records.compression import NONE
from penstock.wire.records.partitioner import partition_for
from penstock.wire.records.record_decoder import decode
from penstock.wire.records.record_encoder import TableEncoder


def warm() -> None:
    """Compile, or load, the code for binary and large columns, with and without partitions, and for reading."""
    headers = pa.array([[{"key": "k", "value": b"v"}]], pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})))
    for kind in (pa.binary(), pa.large_binary()):
        cells = pa.array([b"x"], kind)
        batch = pa.record_batch({"key": cells, "value": cells, "headers": headers})
        for encoded in TableEncoder(2, batch_size=1000, compression=NONE, level=None).encode(batch):
            decode(encoded.data, verify=False)
    TableEncoder(2, batch_size=1000, compression=NONE).join([Texts.of([b"v"])])
    partition_for(b"k", 2)
