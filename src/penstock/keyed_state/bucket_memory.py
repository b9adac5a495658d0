"""The tables of buckets between batches, in memory shared by an executor's workers.

A slot has two copies in Arrow's stream format, written alternately: a new table may refer to parts of the old one.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

import pyarrow as pa

from penstock.keyed_state.arrow_keys import unpacked
from penstock.native import shared_memory

_VERSION, _COPY, _TOKEN = 1, 2, slice(3, 5)
"""Positions in the notes of a slot."""
_SPARE = 8
"""A copy gets an eighth more room than it needs, and a new array when it needs less than an eighth of its room."""


@dataclass(frozen=True)
class Known:
    """A bucket's state after the change `version`, with its token: a UUID in hexadecimal digits."""

    version: int
    token: str
    table: pa.Table


_KNOWN: dict[str, Known] = {}
"""What a worker without shared memory knows, by the name of the state and the bucket."""


def place(name: str) -> AbstractContextManager[shared_memory.SharedValue[Known]]:
    """The slot of a bucket's table (see `shared_memory.place`); do not use the table outside the `with` block."""
    return shared_memory.place(name, _KNOWN, _take, _put)


def _take(slot: shared_memory.Slot) -> Known:
    notes = slot.notes
    table = unpacked(pa.py_buffer(slot.array(int(notes[_COPY]))))
    return Known(int(notes[_VERSION]), notes[_TOKEN].tobytes().hex(), table)


def _put(slot: shared_memory.Slot, known: Known) -> None:
    notes, token = slot.notes, bytes.fromhex(known.token)
    if notes[_TOKEN].tobytes() == token:
        return
    copy = 1 - int(notes[_COPY])
    _write(slot, copy, known.table)
    notes[_VERSION], notes[_COPY] = known.version, copy
    notes.view("u1")[8 * _TOKEN.start : 8 * _TOKEN.stop] = bytearray(token)


def _write(slot: shared_memory.Slot, copy: int, table: pa.Table) -> None:
    sized = pa.MockOutputStream()
    _send(sized, table)
    words, room = -(-sized.size() // 8), slot.array(copy)
    if not len(room) // _SPARE <= words <= len(room):
        room = slot.zeros(copy, words + words // _SPARE)
    _send(pa.FixedSizeBufferWriter(pa.py_buffer(room)), table)


def _send(to: pa.NativeFile, table: pa.Table) -> None:
    with pa.ipc.new_stream(to, table.schema) as writer:
        writer.write_table(table)
