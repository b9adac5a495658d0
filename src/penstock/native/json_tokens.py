"""The tokens of JSON (RFC 8259) in an array of bytes, for compiled loops: where each ends, and the values of numbers.

A token that they accept is correct. They are unsure of anything wrong or rare, and their callers leave it to a full
parser. Positions that they return are after the token.
"""

from __future__ import annotations

import numpy as np

from penstock.native import Array
from penstock.native.jit import uncounted

DIGITS = 18
"""Most digits of a whole number."""
LONG = 30
"""Most characters of other numbers, without the exponent; with an exponent of two digits they are doubles."""

_ESCAPED, _HEX, _SPACE = (np.zeros(256, np.bool_) for _ in range(3))
_PLAIN = np.ones(256, np.bool_)
_PLAIN[[*range(0x20), *b'"\\']] = False
_ESCAPED[list(b'"\\/bfnrt')] = True
_HEX[list(b"0123456789abcdefABCDEF")] = True
_SPACE[list(b" \t\r")] = True
DAYS = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])
"""Days of each month, in years that are not leap years."""


@uncounted
def escape(data: Array, at: int, end: int) -> int:
    """Where the escape ends whose backslash is before `at`; 0 if it is not an escape, or half of a surrogate pair."""
    if at + 5 > end or data[at] != 0x75:
        return at + 1 if at < end and _ESCAPED[data[at]] else 0
    for i in range(at + 1, at + 5):
        if not _HEX[data[i]]:
            return 0
    if data[at + 1] | 0x20 != 0x64 or data[at + 2] < 0x38:
        return at + 5
    # The first half of a surrogate pair: D8 to DB, which DC to DF must follow.
    if at + 11 > end or data[at + 2] | 0x20 > 0x62 or data[at + 5] != 0x5C or data[at + 6] != 0x75:
        return 0
    if data[at + 7] | 0x20 != 0x64 or not 0x63 <= data[at + 8] | 0x20 <= 0x66:
        return 0
    return at + 11 if _HEX[data[at + 9]] and _HEX[data[at + 10]] else 0


@uncounted
def string(data: Array, at: int, end: int) -> int:
    """Where the string at `at` ends, after its quote, negative if it has escapes; 0 if unsure."""
    escaped = False
    while True:
        while at < end and _PLAIN[data[at]]:
            at += 1
        if at >= end or data[at] < 0x20:
            return 0
        if data[at] == 0x22:
            return -at - 1 if escaped else at + 1
        escaped = True
        at = escape(data, at + 1, end)
        if at == 0:
            return 0


@uncounted
def digits(data: Array, at: int, end: int) -> int:
    while at < end and 0x30 <= data[at] <= 0x39:
        at += 1
    return at


@uncounted
def number(data: Array, first: int, end: int) -> int:
    """Where the number at `first` ends, negative if it has a fraction or an exponent; 0 if unsure."""
    unsigned = first + 1 if data[first] == 0x2D else first
    begin, whole = unsigned, True
    at = digits(data, begin, end)
    if at == begin or (at > begin + 1 and data[begin] == 0x30):
        return 0
    if at < end and data[at] == 0x2E:
        whole, begin = False, at + 1
        at = digits(data, begin, end)
        if at == begin:
            return 0
    if at - unsigned > (DIGITS if whole else LONG):
        return 0
    if at < end and data[at] | 0x20 == 0x65:
        whole, begin = False, at + 1
        if begin < end and (data[begin] == 0x2B or data[begin] == 0x2D):
            begin += 1
        at = digits(data, begin, end)
        if at == begin or at > begin + 2:
            return 0
    return at if whole else -at


@uncounted
def decimal(data: Array, at: int, end: int) -> float:
    """The double of a number of at most 15 digits without an exponent; NaN for other numbers.

    The digits and the power of ten are exact doubles, so their quotient is rounded once (Clinger 1990).
    """
    mantissa, digits, scale, behind = 0, 0, 1.0, False
    negative = data[at] == 0x2D
    for i in range(at + 1 if negative else at, end):
        if data[i] == 0x2E:
            behind = True
        elif data[i] > 0x39:
            return np.nan
        else:
            mantissa, digits = mantissa * 10 + (data[i] - 0x30), digits + 1
            if behind:
                scale *= 10.0
    if digits > 15:
        return np.nan
    return -mantissa / scale if negative else mantissa / scale


@uncounted
def pair(data: Array, at: int) -> int:
    """The number of two digits at `at`; -1 if they are not digits."""
    a, b = data[at] - 0x30, data[at + 1] - 0x30
    return a * 10 + b if 0 <= a <= 9 and 0 <= b <= 9 else -1


@uncounted
def is_time(data: Array, at: int, end: int) -> bool:
    """Whether it is certainly a date-time of RFC 3339; false for a 29th of February and for a leap second."""
    if end - at < 20 or data[at + 4] != 0x2D or data[at + 7] != 0x2D or data[at + 10] != 0x54:
        return False
    if data[at + 13] != 0x3A or data[at + 16] != 0x3A or pair(data, at) < 0 or pair(data, at + 2) < 0:
        return False
    month, day = pair(data, at + 5), pair(data, at + 8)
    if month < 1 or month > 12 or day < 1 or day > DAYS[month]:
        return False
    if not (0 <= pair(data, at + 11) <= 23 and 0 <= pair(data, at + 14) <= 59 and 0 <= pair(data, at + 17) <= 59):
        return False
    i = at + 19
    if data[i] == 0x2E:
        i = digits(data, at + 20, end)
        if i == at + 20 or i > at + 29:
            return False
    if i + 1 == end and data[i] == 0x5A:
        return True
    if i + 6 != end or not (data[i] == 0x2B or data[i] == 0x2D) or data[i + 3] != 0x3A:
        return False
    return 0 <= pair(data, i + 1) <= 23 and 0 <= pair(data, i + 4) <= 59


@uncounted
def space(data: Array, at: int, end: int, lines: bool) -> int:
    """Where the white space between two tokens ends; with `lines`, a line feed is not white space."""
    while at < end and data[at] <= 0x20 and (_SPACE[data[at]] or (data[at] == 0x0A and not lines)):
        at += 1
    return at


@uncounted
def equal(data: Array, at: int, end: int, other: Array, start: int, length: int) -> bool:
    """Whether the bytes at `at` start with the `length` bytes at `start` of `other`."""
    if at + length > end:
        return False
    same = 0
    while same < length and data[at + same] == other[start + same]:
        same += 1
    return same == length


@uncounted
def literal(data: Array, at: int, end: int) -> int:
    """Where true, false (both negative) or null ends; 0 if it is none of them."""
    if at + 4 <= end and data[at + 3] == 0x65 and data[at] == 0x74 and data[at + 1] == 0x72 and data[at + 2] == 0x75:
        return -at - 4
    if at + 4 <= end and data[at] == 0x6E and data[at + 1] == 0x75 and data[at + 2] == 0x6C and data[at + 3] == 0x6C:
        return at + 4
    if at + 5 <= end and data[at] == 0x66 and data[at + 1] == 0x61 and data[at + 2] == 0x6C and data[at + 3] == 0x73:
        return -at - 5 if data[at + 4] == 0x65 else 0
    return 0
