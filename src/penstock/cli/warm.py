"""Does first what is slow on its first use, part by part: compiles loops, and archives the classes of Spark sessions.

Each part runs on a few values through the functions that its users call, so that loops are compiled for the types with
which they are called. Machine code is kept on disk beside the package, or in the user's cache directory if that cannot
be written to; the classes are `local.classes`.
"""

from __future__ import annotations

import json
import os
import struct
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory


def is_first_use(folder: Path = Path(__file__).parents[1]) -> bool:
    """Whether no loop of the package was ever compiled.

    False where its folder cannot be written to: the machine code is elsewhere then, under names of Numba's.
    """
    cache_folder = os.environ.get("NUMBA_CACHE_DIR")
    return (bool(cache_folder) or os.access(folder, os.W_OK)) and next(
        Path(cache_folder or folder).rglob("*.nbi"), None
    ) is None


def _kafka_client() -> None:
    """Binary and large columns, with and without partitions, and reading."""
    import pyarrow as pa

    from penstock.native.text_slices import Texts
    from penstock.wire.records.compression import NONE
    from penstock.wire.records.partitioner import partition_for
    from penstock.wire.records.record_decoder import decode
    from penstock.wire.records.record_encoder import TableEncoder

    headers = pa.array([[{"key": "k", "value": b"v"}]], pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})))
    for kind in (pa.binary(), pa.large_binary()):
        cells = pa.array([b"x"], kind)
        batch = pa.record_batch({"key": cells, "value": cells, "headers": headers})
        for encoded in TableEncoder(2, batch_size=1000, compression=NONE, level=None).encode(batch):
            decode(encoded.data, verify=False)
    TableEncoder(2, batch_size=1000, compression=NONE).join([Texts.of([b"v"])])
    partition_for(b"k", 2)


def _json() -> None:
    """Columns of JSON values."""
    import pyarrow as pa
    from pyspark.sql.types import StringType, StructType

    from penstock.kafka.kafka_records import columns, members

    wanted = members(StructType().add("a", StringType()))
    assert wanted
    columns(pa.array([b'{"a": "\\n"}']), wanted)


def _ingest() -> None:
    """From the body of a request to columns."""
    import numpy as np

    from penstock.ingest.events import TopicFormat, elements, table

    events, _ = TopicFormat(None, ("k",), 100, 1).read(b'[{"k":"v"}]', lines=False, key=None)
    table([events])
    elements(np.zeros(1, np.uint8), 1)


def _change_logs() -> None:
    """A page with one insert whose values are null, and the hash of its row."""
    from penstock.cdc.cdc_tables import Images, frame_schema, layout
    from penstock.cdc.change_decoder import ChangeDecoder, View
    from penstock.cdc.row_pairing import OPERATION, SEQUENCE, STREAM, TIME, row_hashes
    from penstock.database import Page
    from penstock.database.cql_types import Column, CqlTable, parse_type
    from penstock.spark_runtime.arrow_types import to_arrow_schema

    kinds = ("text", "uuid", "list<int>", "map<text, bigint>")
    values = (Column(f"v{number}", parse_type(kind, {}), "regular") for number, kind in enumerate(kinds))
    columns = layout(CqlTable("ks", "t", (Column("id", parse_type("int", {}), "partition_key", 0), *values)))
    schema = to_arrow_schema(frame_schema(columns.table), timezone="UTC")
    row = {STREAM: bytes(16), TIME: uuid.UUID(int=1 << 76).bytes, SEQUENCE: bytes(4), OPERATION: b"\x02"}
    row[columns.at("id")] = bytes(4)
    cells = [row.get(number, b"") for number in range(len(columns.names))]
    data = b"".join(struct.pack(">i", len(cell) or -1) + cell for cell in cells)
    page = Page(data, 1, final=True)
    ChangeDecoder(columns, Images("full", "full"), schema, read_micros=0).decode(page)
    view = View.of(page, columns)
    row_hashes(view.buffer, view.starts, view.lengths, [STREAM])


def _verify() -> None:
    """The digest of a page with one row, which has a key and a value."""
    import numpy as np

    from penstock.database.cells import indexed
    from penstock.replicate.row_digests import BUCKETS, CELL, KEY, TOKEN, WIDTH, digests

    cells = [bytes(8), bytes(4), bytes(4)]
    data = b"".join(struct.pack(">i", len(cell)) + cell for cell in cells)
    kinds = np.array([TOKEN, KEY, CELL], np.int64)
    digests(*indexed(data, 1, len(cells), where="penstock compile"), kinds, 0, np.zeros((BUCKETS, WIDTH), np.uint64))


def _tables() -> None:
    """The index of keys."""
    import pyarrow as pa

    from penstock.keyed_state.byte_index import KeyIndex

    keys, index = pa.array(["a"]), KeyIndex()
    index.add(keys)
    index.find(keys)


def _segments() -> None:
    """Events of rules with and without totals: packed, taken, saved and carried over to other rules."""
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from penstock.segment.event_packing import packer, unpack
    from penstock.segment.predicate_index import index
    from penstock.segment.record_store import RecordStore, migrated
    from penstock.segment.rule_definitions import rule
    from penstock.segment.rule_plan import plan

    without_totals = plan([rule("warm", when="a", ttl=timedelta(seconds=1), to="t")])
    totals = plan([rule("warm", when="a", total="v", at_least=1, within="1 second", ttl="1 second", to="t")])
    for wanted, values in ((without_totals, []), (totals, ["v0"])):
        columns = {"hash": [1], "id": ["a"], "at": [1], "b0": [1], **{name: [1.0] for name in values}}
        pack = packer(wanted, index(wanted.predicates, StructType()), 2)
        for batch in pack(iter([pa.record_batch({name: pa.array(some) for name, some in columns.items()})])):
            store = RecordStore(without_totals)
            store.take(unpack(batch["events"][0].as_py()), latest=1)
            store.tick(1)
            store.compact(1)
            store.load(store.save())
            migrated(store, without_totals, 1)


def _spark_classes() -> None:
    """The archive of the classes that a query loads, with which a session starts in half of the time."""
    from penstock.local import java
    from penstock.spark_runtime import class_archive as classes

    classes.make(java.find(), __name__)


PARTS: dict[str, Callable[[], None]] = {
    "kafka-client": _kafka_client,
    "json": _json,
    "ingest": _ingest,
    "change-logs": _change_logs,
    "tables": _tables,
    "verify": _verify,
    "segments": _segments,
    "spark-classes": _spark_classes,
}


def compiled(parts: Iterable[str], *, whole: bool = False) -> Iterator[str]:
    """Compile these parts, with lines about it; a part whose packages are not installed is left out.

    With `whole` that is a ModuleNotFoundError.
    """
    for part in parts:
        yield f"compiling {part} ..."
        began = time.monotonic()
        try:
            PARTS[part]()
        except ModuleNotFoundError as error:
            if whole:
                raise
            yield f"left out {part}: {error.name} is not installed"
        else:
            yield f"compiled {part} in {time.monotonic() - began:.1f} s"


def _query() -> None:
    """A typical query: a stream of JSON, a window, files."""
    from penstock import window
    from penstock.spark_runtime.session import local_session

    session = local_session("warm", cores=1)
    with TemporaryDirectory() as folder:
        source = Path(folder, "in")
        source.mkdir()
        (source / "a.json").write_text(json.dumps({"k": "a", "at": "2026-01-31T12:00:00Z"}))
        frame = session.readStream.schema("k string, at timestamp").json(str(source)).withWatermark("at", "1 minute")
        counted = frame.transform(window.tumbling, "1 minute", at="at", key="k", name="counts", n="count(*)")
        to = counted.writeStream.format("parquet").option("checkpointLocation", f"{folder}/checkpoint")
        to.trigger(availableNow=True).start(f"{folder}/out").awaitTermination()
        session.read.parquet(f"{folder}/out").groupBy("k").count().collect()
    session.stop()


if __name__ == "__main__":
    _query()
