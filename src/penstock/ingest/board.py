"""Memory that processes share: the last text that each of them wrote, which outlives its writer.

A place has two halves and a byte that tells which of them holds. A text is written to the other half before the byte
is turned, so one whose writer is killed is not seen.
"""

from __future__ import annotations

import mmap
import struct

from penstock.native.crc32c import crc32c

HEAD = struct.Struct("<II")
"""Bytes of the text, and their CRC32C."""


class Board:
    """Made before the processes are forked; a place has one writer at a time, and any number of readers."""

    def __init__(self, places: int, room: int) -> None:
        """`room` is the most bytes of a text."""
        self._half = HEAD.size + room
        self._place = 1 + 2 * self._half
        self._memory = mmap.mmap(-1, places * self._place)

    def write(self, place: int, text: bytes) -> None:
        if HEAD.size + len(text) > self._half:
            raise ValueError(f"{len(text)} bytes; there is room for {self._half - HEAD.size}")
        start = place * self._place
        half = 1 - self._memory[start]
        at = start + 1 + half * self._half
        HEAD.pack_into(self._memory, at, len(text), crc32c(text))
        self._memory[at + HEAD.size : at + HEAD.size + len(text)] = text
        self._memory[start] = half

    def read(self, place: int) -> bytes:
        """Empty if nothing was written."""
        start = place * self._place
        while True:
            at = start + 1 + self._memory[start] * self._half
            size, checksum = HEAD.unpack_from(self._memory, at)
            text = self._memory[at + HEAD.size : at + HEAD.size + min(size, self._half - HEAD.size)]
            # Another text, if the writer came round to this half while it was copied.
            if crc32c(text) == checksum:
                return text
