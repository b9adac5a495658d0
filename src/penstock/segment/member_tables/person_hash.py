"""XXH64 (Yann Collet's specification, "xxHash fast digest algorithm") of one text, as Spark's `xxhash64` has it: the
bucket of a person, without Spark. For a few texts; many are hashed by Spark."""

from __future__ import annotations

SEED = 42
"""Spark's."""
_P1, _P2, _P3, _P4, _P5 = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)
_ALL = (1 << 64) - 1


def xxhash64(text: str) -> int:
    """The hash as a signed number of 64 bits."""
    data = text.encode()
    at, found = _stripes(data) if len(data) >= 32 else (0, SEED + _P5)
    found = _tail(data, at, (found + len(data)) & _ALL)
    found = (found ^ (found >> 33)) * _P2 & _ALL
    found = (found ^ (found >> 29)) * _P3 & _ALL
    found ^= found >> 32
    return found - (1 << 64) if found >> 63 else found


def _stripes(data: bytes) -> tuple[int, int]:
    """Four lanes over pieces of 32 bytes: where they end, and the lanes as one."""
    lanes = [(SEED + _P1 + _P2) & _ALL, (SEED + _P2) & _ALL, SEED, (SEED - _P1) & _ALL]
    end = len(data) // 32 * 32
    for at in range(0, end, 8):
        lane = at // 8 % 4
        lanes[lane] = _round(lanes[lane], _word(data, at, 8))
    a, b, c, d = lanes
    found = (_left(a, 1) + _left(b, 7) + _left(c, 12) + _left(d, 18)) & _ALL
    for lane in lanes:
        found = ((found ^ _round(0, lane)) * _P1 + _P4) & _ALL
    return end, found


def _tail(data: bytes, at: int, found: int) -> int:
    """Words of 8, then of 4 bytes, then single bytes."""
    while at + 8 <= len(data):
        found = (_left(found ^ _round(0, _word(data, at, 8)), 27) * _P1 + _P4) & _ALL
        at += 8
    if at + 4 <= len(data):
        found = (_left(found ^ (_word(data, at, 4) * _P1 & _ALL), 23) * _P2 + _P3) & _ALL
        at += 4
    for byte in data[at:]:
        found = _left(found ^ (byte * _P5 & _ALL), 11) * _P1 & _ALL
    return found


def _round(lane: int, word: int) -> int:
    return _left((lane + word * _P2) & _ALL, 31) * _P1 & _ALL


def _left(number: int, by: int) -> int:
    return (number << by | number >> (64 - by)) & _ALL


def _word(data: bytes, at: int, size: int) -> int:
    return int.from_bytes(data[at : at + size], "little")
