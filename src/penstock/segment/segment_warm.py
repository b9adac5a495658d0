"""Compiles the loops of segmentation before a query needs them: in the middle of a batch it would take half a minute.

Machine code is cached on disk next to the package, or in the user's cache directory if that is not writable.
"""

from __future__ import annotations

from datetime import timedelta

import pyarrow as pa
from pyspark.sql.types import StructType

from penstock.segment.event_packing import packer, unpack
from penstock.segment.predicate_index import index
from penstock.segment.record_store import RecordStore, migrated
from penstock.segment.rule_definitions import Rule, rule
from penstock.segment.rule_plan import plan


def warm() -> None:
    """Compile, or load, every loop once."""
    made = plan([rule("warm", when="a", ttl=timedelta(seconds=1), to="t")])
    for values in ([], ["v0"]):
        columns = {"hash": [1], "id": ["a"], "at": [1], "b0": [1], **{name: [1.0] for name in values}}
        wanted = made if not values else plan(_totals())
        pack = packer(wanted, index(wanted.predicates, StructType()), 2)
        for batch in pack(iter([pa.record_batch({name: pa.array(some) for name, some in columns.items()})])):
            store = RecordStore(made)
            store.take(unpack(batch["events"][0].as_py()), latest=1)
            store.tick(1)
            store.compact(1)
            store.load(store.save())
            migrated(store, made, 1)


def _totals() -> list[Rule]:
    return [rule("warm", when="a", total="v", at_least=1, within="1 second", ttl="1 second", to="t")]
