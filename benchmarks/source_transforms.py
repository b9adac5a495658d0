"""What a source's stage of transforms costs for a record: Arrow's columns to records, the transforms, and back.

    python benchmarks/source_transforms.py

Rows of ten columns as `ExtractNewRecordState` makes them. Each line is a chain: microseconds of CPU for a record, and
records a second and core; the best of five runs over a batch of Spark (10 000 rows), without Spark around it.
"""

from __future__ import annotations

import gc
import time
from typing import Any

import pyarrow as pa

from penstock.codec.connect_schema import Schema, spark_type
from penstock.connect.transforms.definitions import OF_SOURCES, chosen
from penstock.connect.transforms.source_stage import plan
from penstock.connect.transforms.steps import Shapes
from penstock.spark_runtime.arrow_types import to_arrow_type

KAFKA = "org.apache.kafka.connect.transforms."
TIMESTAMP = {"type": "int64", "name": "org.apache.kafka.connect.data.Timestamp", "version": 1}
TYPES: dict[str, dict[str, Any]] = {
    **{name: {"type": "int64"} for name in ("id", "at", "n")},
    **{name: {"type": "string"} for name in ("name", "ref", "note")},
    "price": {"type": "double"},
    "seen": TIMESTAMP,
    "tags": {"type": "array", "items": {"type": "string", "optional": True}},
    "ok": {"type": "boolean"},
}
SCHEMA: Schema = {
    "type": "struct",
    "fields": [{**own, "optional": True, "field": name} for name, own in TYPES.items()],
    "optional": False,
}
ROWS = 10_000
CHAINS: dict[str, list[dict[str, str]]] = {
    "MaskField": [{"type": "MaskField$Value", "fields": "name"}],
    "MaskField, InsertField": [
        {"type": "MaskField$Value", "fields": "name"},
        {"type": "InsertField$Value", "static.field": "s", "static.value": "v"},
    ],
    "Cast of a field": [{"type": "Cast$Value", "spec": "price:string"}],
    "TimestampConverter": [
        {"type": "TimestampConverter$Value", "field": "seen", "target.type": "string", "format": "yyyy-MM-dd HH:mm"}
    ],
    "ValueToKey, ExtractField": [{"type": "ValueToKey", "fields": "id"}, {"type": "ExtractField$Key", "field": "id"}],
    "InsertHeader": [{"type": "InsertHeader", "header": "h", "value.literal": "x"}],
}


def row(number: int) -> dict[str, Any]:
    more = {"price": number * 0.5, "seen": 1_700_000_000_000 + number, "tags": ["a", "b"], "ok": True}
    return {"id": number, "at": 1, "n": number, "name": f"name {number}", "ref": "x" * 36, "note": "a note"} | more


def micros(steps: list[dict[str, str]]) -> float:
    config: dict[str, str | None] = {"transforms": ",".join(f"t{number}" for number in range(len(steps)))}
    for number, step in enumerate(steps):
        config |= {f"transforms.t{number}.{name}": text for name, text in step.items()}
    stage = plan(list(chosen(config, OF_SOURCES)), Shapes("t", (SCHEMA,), (SCHEMA,)), tolerant=False)
    assert stage is not None
    values = pa.array([row(number) for number in range(ROWS)], to_arrow_type(spark_type(SCHEMA)))
    headers = pa.nulls(ROWS, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])))
    rows = pa.StructArray.from_arrays([values, values, headers], names=["key0", "value0", "headers"])
    best = float("inf")
    for _ in range(5):
        start = time.process_time()
        stage.changed(rows)
        best = min(best, time.process_time() - start)
    return best / ROWS * 1e6


def main() -> None:
    gc.set_threshold(50_000)  # as in Spark's Python processes (`spark_runtime/daemon.py`)
    print(f"{'chain':28} {'µs':>6} {'records/s':>10}")
    for name, steps in CHAINS.items():
        cost = micros(steps)
        print(f"{name:28} {cost:6.1f} {1e6 / cost:10,.0f}")


if __name__ == "__main__":
    main()
