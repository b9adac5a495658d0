"""Damage to valid bytes: what random bytes alone never reach."""

from __future__ import annotations

import random as randoms
import struct

EDGES = (0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 127, 128, 255, 256, 32767, 32768, 65535, 2**31 - 1, 2**31, 2**32 - 1)
"""Numbers at which sizes and counts turn: signs, widths, off by one."""
MOST_CHANGES = 4


def mutated(random: randoms.Random, data: bytes) -> bytes:
    """The bytes with one to four changes: bits, bytes, numbers, cuts, insertions, repeats and moved parts."""
    changed = bytearray(data)
    for _ in range(random.randint(1, MOST_CHANGES)):
        random.choice(_CHANGES)(random, changed)
    return bytes(changed)


def noise(random: randoms.Random, most: int) -> bytes:
    """Up to `most` random bytes, short ones more often."""
    return random.randbytes(int(most * random.random() ** 3))


def _place(random: randoms.Random, data: bytearray) -> int:
    return random.randrange(len(data)) if data else 0


def _flip(random: randoms.Random, data: bytearray) -> None:
    if data:
        data[_place(random, data)] ^= 1 << random.randrange(8)


def _byte(random: randoms.Random, data: bytearray) -> None:
    if data:
        data[_place(random, data)] = random.choice((0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)))


def _number(random: randoms.Random, data: bytearray) -> None:
    """A number of a usual width, big-endian or little-endian, in the place of what stands there."""
    layout = random.choice((">i", "<i", ">h", ">q", "B"))
    width = struct.calcsize(layout)
    value = random.choice(EDGES) * random.choice((1, 1, 1, -1))
    at = _place(random, data)
    data[at : at + width] = (value & ((1 << 8 * width) - 1)).to_bytes(width, "little" if layout[0] == "<" else "big")


def _cut(random: randoms.Random, data: bytearray) -> None:
    at = _place(random, data)
    del data[at : at + random.choice((1, 1, 2, 4, 8, len(data)))]


def _insert(random: randoms.Random, data: bytearray) -> None:
    at = _place(random, data)
    data[at:at] = random.randbytes(random.choice((1, 1, 2, 4, 16)))


def _repeat(random: randoms.Random, data: bytearray) -> None:
    at = _place(random, data)
    part = data[at : at + random.randint(1, 16)]
    data[at:at] = part * random.choice((1, 2, 50))


def _move(random: randoms.Random, data: bytearray) -> None:
    start, end = sorted((_place(random, data), _place(random, data)))
    part = data[start:end]
    del data[start:end]
    at = _place(random, data)
    data[at:at] = part


_CHANGES = (_flip, _flip, _byte, _byte, _number, _number, _cut, _insert, _repeat, _move)
