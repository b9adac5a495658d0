"""Memory that processes share: the last bytes that each of them wrote, which outlive the writer.

A slot has two halves and a byte that says which of them is valid. A write goes to the other half before that byte
changes, so the write of a process that is killed is not seen.
"""

from __future__ import annotations

import mmap
import struct

from penstock.native.crc32c import crc32c

HEAD = struct.Struct("<II")
"""The number of bytes, and their CRC32C."""


class Board:
    """Created before the processes are forked; a slot has one writer at a time, and any number of readers."""

    def __init__(self, places: int, room: int) -> None:
        """`places` is the number of slots, `room` the largest number of bytes in one."""
        self._half = HEAD.size + room
        self._place = 1 + 2 * self._half
        self._memory = mmap.mmap(-1, places * self._place)

    def write(self, place: int, text: bytes) -> None:
        if HEAD.size + len(text) > self._half:
            raise ValueError(f"{len(text)} bytes do not fit; there is room for {self._half - HEAD.size}")
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
            # The checksum differs if the writer wrote to this half again during the copy.
            if crc32c(text) == checksum:
                return text
