"""Events of some persons as they travel to their bucket: columns of numbers in one compressed piece of bytes.

Each event touches rules, each with a mask of the rule's predicates that hold for it (`plan`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.native import Array

CODEC = "lz4"


@dataclass(frozen=True)
class Touches:
    """Events in any order.

    `keys` are hashes of the persons, `times` in milliseconds, ids those of `offsets` in `ids`; `ends[i]` tells where
    the touches of event i end in `rules` and `masks`; `values` has a row for each event.
    """

    keys: Array
    times: Array
    offsets: Array
    ids: Array
    ends: Array
    rules: Array
    masks: Array
    values: Array

    def __len__(self) -> int:
        return len(self.keys)

    def pack(self) -> bytes:
        """As bytes, with the sizes in front."""
        columns = (self.keys, self.times, self.offsets, self.ends, self.masks, self.values, self.rules, self.ids)
        head = np.array([len(self.keys), len(self.rules), len(self.ids), self.values.shape[1]], np.int64)
        body = b"".join(column.tobytes() for column in columns)
        return bytes(head.tobytes() + len(body).to_bytes(8, "little") + pa.compress(body, CODEC, asbytes=True))


def unpack(data: bytes) -> Touches:
    """What `Touches.pack` made."""
    n, touches, size, wide = np.frombuffer(data, np.int64, 4).tolist()
    # In memory of our own: arrays that cannot be written to are another type, for which all loops would be compiled.
    body = bytearray(pa.decompress(data[40:], int.from_bytes(data[32:40], "little"), CODEC))
    at = 0

    def column(kind: type[np.generic], count: int) -> Array:
        nonlocal at
        found: Array = np.frombuffer(body, kind, count, at)
        at += found.nbytes
        return found

    keys, times, offsets, ends = (column(np.int64, c) for c in (n, n, n + 1, n))
    masks, values = column(np.int64, touches), column(np.float64, n * wide).reshape(n, wide)
    rules, ids = column(np.int32, touches), column(np.uint8, size)
    return Touches(keys, times, offsets, ids, ends, rules, masks, values)


def joined(parts: Sequence[Touches]) -> Touches:
    """All events of these, one part after another."""
    if len(parts) == 1:
        return parts[0]
    offsets = _ends([part.offsets[1:] for part in parts], [len(part.ids) for part in parts])
    return Touches(
        np.concatenate([part.keys for part in parts]),
        np.concatenate([part.times for part in parts]),
        np.concatenate([np.zeros(1, np.int64), offsets]),
        np.concatenate([part.ids for part in parts]),
        _ends([part.ends for part in parts], [len(part.rules) for part in parts]),
        np.concatenate([part.rules for part in parts]),
        np.concatenate([part.masks for part in parts]),
        np.concatenate([part.values for part in parts]),
    )


def _ends(parts: Sequence[Array], sizes: Sequence[int]) -> Array:
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    return np.concatenate([part + start for part, start in zip(parts, starts, strict=False)])
