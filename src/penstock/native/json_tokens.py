"""The tokens of JSON (RFC 8259) at an address, for compiled loops: where each ends, and the values of numbers.

A token that they accept is correct. They are unsure of anything wrong or rare, and their callers leave it to a full
parser. Positions that they return are after the token.
"""

from __future__ import annotations

import numpy as np

from penstock.native.byte_loads import WIDE, alike, byte, plain
from penstock.native.jit import compiled

DIGITS = 18
"""Most digits of a whole number."""
LONG = 30
"""Most characters of other numbers, without the exponent; with an exponent of two digits they are doubles."""

_ESCAPED, _HEX, _SPACE = (np.zeros(256, np.bool_) for _ in range(3))
_ESCAPED[list(b'"\\/bfnrt')] = True
_HEX[list(b"0123456789abcdefABCDEF")] = True
_SPACE[list(b" \t\r")] = True
DAYS = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])
"""Days of each month, in years that are not leap years."""


@compiled
def escape(at: int, end: int) -> int:
    """Where the escape ends whose backslash is before `at`; 0 if it is not an escape, or half of a surrogate pair."""
    if at + 5 > end or byte(at) != 0x75:
        return at + 1 if at < end and _ESCAPED[byte(at)] else 0
    for i in range(at + 1, at + 5):
        if not _HEX[byte(i)]:
            return 0
    if byte(at + 1) | 0x20 != 0x64 or byte(at + 2) < 0x38:
        return at + 5
    # The first half of a surrogate pair: D8 to DB, which DC to DF must follow.
    if at + 11 > end or byte(at + 2) | 0x20 > 0x62 or byte(at + 5) != 0x5C or byte(at + 6) != 0x75:
        return 0
    if byte(at + 7) | 0x20 != 0x64 or not 0x63 <= byte(at + 8) | 0x20 <= 0x66:
        return 0
    return at + 11 if _HEX[byte(at + 9)] and _HEX[byte(at + 10)] else 0


@compiled
def string(at: int, end: int) -> int:
    """Where the string at `at` ends, after its quote, negative if it has escapes; 0 if unsure."""
    escaped = False
    while True:
        while at + WIDE <= end:
            step = plain(at)
            at += step
            if step < WIDE:
                break
        while at < end and byte(at) >= 0x20 and byte(at) != 0x22 and byte(at) != 0x5C:
            at += 1
        if at >= end or byte(at) < 0x20:
            return 0
        if byte(at) == 0x22:
            return -at - 1 if escaped else at + 1
        escaped = True
        at = escape(at + 1, end)
        if at == 0:
            return 0


@compiled
def digits(at: int, end: int) -> int:
    while at < end and 0x30 <= byte(at) <= 0x39:
        at += 1
    return at


@compiled
def number(first: int, end: int) -> int:
    """Where the number at `first` ends, negative if it has a fraction or an exponent; 0 if unsure."""
    unsigned = first + 1 if byte(first) == 0x2D else first
    begin, whole = unsigned, True
    at = digits(begin, end)
    if at == begin or (at > begin + 1 and byte(begin) == 0x30):
        return 0
    if at < end and byte(at) == 0x2E:
        whole, begin = False, at + 1
        at = digits(begin, end)
        if at == begin:
            return 0
    if at - unsigned > (DIGITS if whole else LONG):
        return 0
    if at < end and byte(at) | 0x20 == 0x65:
        whole, begin = False, at + 1
        if begin < end and (byte(begin) == 0x2B or byte(begin) == 0x2D):
            begin += 1
        at = digits(begin, end)
        if at == begin or at > begin + 2:
            return 0
    return at if whole else -at


@compiled
def decimal(at: int, end: int) -> float:
    """The double of a number of at most 15 digits without an exponent; NaN for other numbers.

    The digits and the power of ten are exact doubles, so their quotient is rounded once (Clinger 1990).
    """
    mantissa, digits, scale, behind = 0, 0, 1.0, False
    negative = byte(at) == 0x2D
    for i in range(at + 1 if negative else at, end):
        if byte(i) == 0x2E:
            behind = True
        elif byte(i) > 0x39:
            return np.nan
        else:
            mantissa, digits = mantissa * 10 + (byte(i) - 0x30), digits + 1
            if behind:
                scale *= 10.0
    if digits > 15:
        return np.nan
    return -mantissa / scale if negative else mantissa / scale


@compiled
def pair(at: int) -> int:
    """The number of two digits at `at`; -1 if they are not digits."""
    a, b = byte(at) - 0x30, byte(at + 1) - 0x30
    return a * 10 + b if 0 <= a <= 9 and 0 <= b <= 9 else -1


@compiled
def is_time(at: int, end: int) -> bool:
    """Whether it is certainly a date-time of RFC 3339; false for a 29th of February and for a leap second."""
    if end - at < 20 or byte(at + 4) != 0x2D or byte(at + 7) != 0x2D or byte(at + 10) != 0x54:
        return False
    if byte(at + 13) != 0x3A or byte(at + 16) != 0x3A or pair(at) < 0 or pair(at + 2) < 0:
        return False
    month, day = pair(at + 5), pair(at + 8)
    if month < 1 or month > 12 or day < 1 or day > DAYS[month]:
        return False
    if not (0 <= pair(at + 11) <= 23 and 0 <= pair(at + 14) <= 59 and 0 <= pair(at + 17) <= 59):
        return False
    i = at + 19
    if byte(i) == 0x2E:
        i = digits(at + 20, end)
        if i == at + 20 or i > at + 29:
            return False
    if i + 1 == end and byte(i) == 0x5A:
        return True
    if i + 6 != end or not (byte(i) == 0x2B or byte(i) == 0x2D) or byte(i + 3) != 0x3A:
        return False
    return 0 <= pair(i + 1) <= 23 and 0 <= pair(i + 4) <= 59


@compiled
def space(at: int, end: int, lines: bool) -> int:
    """Where the white space between two tokens ends; with `lines`, a line feed is not white space."""
    while at < end and byte(at) <= 0x20 and (_SPACE[byte(at)] or (byte(at) == 0x0A and not lines)):
        at += 1
    return at


@compiled
def equal(at: int, end: int, other: int, length: int) -> bool:
    """Whether the bytes at `at` start with the `length` bytes at `other`, which `WIDE` more bytes must follow."""
    so_far = 0
    while so_far + WIDE <= length and at + so_far + WIDE <= end and alike(at + so_far, other + so_far) == WIDE:
        so_far += WIDE
    if at + so_far + WIDE <= end:
        return bool(alike(at + so_far, other + so_far) >= length - so_far)
    while so_far < length and byte(at + so_far) == byte(other + so_far):
        so_far += 1
    return so_far == length


@compiled
def literal(at: int, end: int) -> int:
    """Where true, false (both negative) or null ends; 0 if it is none of them."""
    if at + 4 <= end and byte(at + 3) == 0x65 and byte(at) == 0x74 and byte(at + 1) == 0x72 and byte(at + 2) == 0x75:
        return -at - 4
    if at + 4 <= end and byte(at) == 0x6E and byte(at + 1) == 0x75 and byte(at + 2) == 0x6C and byte(at + 3) == 0x6C:
        return at + 4
    if at + 5 <= end and byte(at) == 0x66 and byte(at + 1) == 0x61 and byte(at + 2) == 0x6C and byte(at + 3) == 0x73:
        return -at - 5 if byte(at + 4) == 0x65 else 0
    return 0
