"""Spark's Python workers: a full garbage collection looks only at what is new, and loses nothing for good."""

from __future__ import annotations

import subprocess
import sys

from waiting import PATIENCE

COLLECTIONS = """
import gc, weakref
from penstock.spark_runtime import daemon as workers

class Knot:
    def __init__(self):
        self.self = self

workers.freeze_what_stays()
frozen = gc.get_freeze_count()
assert frozen > 50_000, frozen

new = weakref.ref(Knot())
gc.collect()
assert new() is None, "a knot that is new is collected"

old = Knot()
gc.collect()
told, old = weakref.ref(old), None
for _ in range(100):
    gc.collect()
assert told() is not None, "a knot that was there at the last collection is left alone"
stay = [Knot() for _ in range(workers.MOST)]
gc.collect()
assert gc.get_freeze_count() > frozen + workers.MOST
assert told() is not None
gc.collect()
assert told() is None, "until so many objects stay that it is time to look at all"
old = Knot()
gc.collect()
told, old = weakref.ref(old), None
gc.collect()
assert told() is not None, "once"
"""


def test_a_collection_looks_at_new_objects_and_at_all_when_many_stay() -> None:
    subprocess.run([sys.executable, "-c", COLLECTIONS], check=True, timeout=PATIENCE)
