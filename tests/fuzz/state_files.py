"""Files and rows of Spark's state stores: what is read is what the same bytes would be written from.

An input begins with a byte for its kind: files of changes of RocksDB and of HDFS-backed stores, or a row of one of some
types. What a file's changes are written as must be the file, up to its compression; of a row it is only seen that it is
read or refused, in little time and memory, because damaged rows may have their values anywhere.
"""

from __future__ import annotations

import json
import random as randoms
from decimal import Decimal
from pathlib import Path

from pyspark.sql import types as st
from store_bytes import encoded, lz4, text, typed, untyped

from penstock.state.change_files import (
    DELETE,
    MERGE,
    PUT,
    Change,
    DamagedState,
    Unsupported,
    changelog,
    decompressed,
    delta,
)
from penstock.state.unsafe_rows import DamagedRow, OtherType, decoder, shown

from .mutate import mutated, noise
from .runner import Decoder, Difference

FILE = Path("7.changelog")
LOG, DELTA, PLAIN = range(3)
_TEXTS = st.ArrayType(st.StringType())
TYPES: list[tuple[st.StructType, list[object]]] = [
    (st.StructType([st.StructField("a", kind)]), [value])
    for kind, value in (
        (st.StringType(), "ann"),
        (st.DecimalType(30, 4), Decimal("-1234567890123456789.1234")),
        (_TEXTS, ["a", None, "b" * 20]),
        (st.ArrayType(st.ArrayType(_TEXTS)), [[["a"], None, []], []]),
        (st.MapType(st.StringType(), st.ArrayType(st.TimestampType())), [("k", [1, None]), ("l", [])]),
        (st.StructType([st.StructField(f"f{n}", st.LongType()) for n in range(70)]), [None, *range(69)]),
    )
]


def _draw(random: randoms.Random) -> bytes:
    kind = random.randrange(PLAIN + len(TYPES))
    if kind >= PLAIN:
        row = encoded(*TYPES[kind - PLAIN])
        return bytes([kind]) + (mutated(random, row) if random.random() < 0.8 else noise(random, 300))
    names = [PUT, DELETE] if kind == DELTA else [PUT, DELETE, MERGE]
    changes = [_change(random, names) for _ in range(random.randrange(20))]
    body = untyped(changes) if kind == DELTA else text("v4") + text(json.dumps([])) + typed(changes)
    if random.random() < 0.5:
        body = mutated(random, body)
    file = lz4(body)
    return bytes([kind]) + (mutated(random, file) if random.random() < 0.3 else file)


def _change(random: randoms.Random, kinds: list[int]) -> Change:
    kind = random.choice(kinds)
    return kind, noise(random, 100), b"" if kind == DELETE else noise(random, 2000)


def _check(data: bytes) -> bool:
    kind, data = data[0] if data else LOG, data[1:]
    try:
        if kind >= PLAIN:
            found, _ = TYPES[(kind - PLAIN) % len(TYPES)]
            shown(decoder(found)(memoryview(data)), found)
            return True
        body = decompressed(data, FILE)
        changes = list((delta if kind == DELTA else changelog)(body, FILE))
    except (DamagedState, Unsupported, DamagedRow, OtherType):
        return False
    if kind == LOG and body.startswith(text("v4")):
        ids = 4 + 2 + int.from_bytes(body[4:6], "big")
        if typed(changes) != body[ids:]:
            raise Difference(f"{changes!r:.200} from {body!r:.200}")
    # Any negative size says that a value is gone, so its bytes may differ.
    if kind == DELTA and len(untyped(changes)) != len(body):
        raise Difference(f"{changes!r:.200} from {body!r:.200}")
    return True


DECODER = Decoder(name="state_files", draw=_draw, check=_check)
