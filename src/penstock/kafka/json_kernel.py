"""The loop that reads the members of JSON objects, in one pass and without making Python objects.

It reads an object only if a full parser would certainly find the same: known members of the right types, each at most
once, and other members that are well formed. It leaves rare things (names with escapes, numbers of many digits, nesting
deeper than `DEPTH`) to that parser.
"""

from __future__ import annotations

import numpy as np

from penstock.native import Array
from penstock.native.byte_loads import address, byte
from penstock.native.jit import compiled, copy
from penstock.native.json_tokens import DAYS, decimal, digits, equal, is_time, literal, number, pair, space, string

TEXT, TRUTH, DATE, TIME, WHOLE, DECIMAL, FLOAT = range(7)
"""The kinds of members. TIME and WHOLE accept whole numbers within their bounds; DECIMAL and FLOAT all numbers."""
NONE = -1
"""The length of a member that is null or missing; other lengths are not negative."""
ESCAPED = 1 << 62
"""The bit in the length of a string with escapes."""
DEPTH = 60
MOST_SECONDS = 1 << 40
"""Most seconds from 1970 of a time that is a number."""
_UNSURE = -(1 << 63)
_MICROS = 1_000_000


@compiled
def take(
    data: Array,
    offsets: Array,
    usable: Array,
    kinds: Array,
    bounds: Array,
    names: Array,
    text: Array,
    cells: Array,
    decimals: Array,
    good: Array,
) -> None:
    """For each `usable` row, set whether it is `good`, and its members' cells: start or value, and length.

    `cells` is members x 2 x rows, `decimals` members x rows. `names` has the start and length of each member's name in
    `text`, which ends with `WIDE` extra bytes.
    """
    base, known, members, following = address(data), address(text), len(kinds), 0
    for row in range(len(good)):
        for member in range(members):
            cells[member, 1, row] = NONE
        if not usable[row]:
            continue
        at, end = base + offsets[row], base + offsets[row + 1]
        at = space(at, end, False)
        if at >= end or byte(at) != 0x7B:
            continue
        at, seen, whole = space(at + 1, end, False), 0, False
        if at < end and byte(at) == 0x7D:
            at, whole = at + 1, True
        while not whole:
            if at >= end or byte(at) != 0x22:
                break
            # Members mostly come in the same order as in the previous object.
            member, size = following, names[following, 1]
            behind = at + 1 + size
            if behind < end and byte(behind) == 0x22 and equal(at + 1, end, known + names[member, 0], size):
                stop = behind + 1
            else:
                stop, member = string(at + 1, end), NONE
                if stop <= 0:
                    break
                for other in range(members):
                    if names[other, 1] == stop - at - 2 and equal(at + 1, end, known + names[other, 0], stop - at - 2):
                        member = other
            at = _value(stop, end)
            if at == 0:
                break
            here = byte(at)
            if member == NONE:
                stop = skip(at, end)
            elif seen >> member & 1:
                break
            else:
                seen |= 1 << member
                following = member + 1 if member + 1 < members else 0
                kind = kinds[member]
                if here == 0x22:
                    stop = string(at + 1, end)
                    if kind == TEXT:
                        cells[member, 0, row] = at + 1 - base
                        cells[member, 1, row] = (abs(stop) - at - 2) | (ESCAPED if stop < 0 else 0)
                        stop = abs(stop)
                    elif DATE <= kind <= TIME and stop > 0:
                        found = _micros(at + 1, stop - 1) if kind == TIME else _date(at + 1, stop - 1)
                        if found == _UNSURE:
                            break
                        cells[member, 0, row], cells[member, 1, row] = found, 0
                    else:
                        break
                elif here == 0x2D or 0x30 <= here <= 0x39:
                    stop = number(at, end)
                    if kind >= DECIMAL:
                        stop = abs(stop)
                        amount = decimal(at, stop)
                        # Whether minus zero keeps its sign depends on how it is written.
                        if not (amount > 0 or amount < 0 or (amount == 0 and here != 0x2D)):
                            break
                        # Rounding twice may give another number than rounding once.
                        if kind == FLOAT and np.float32(amount) != amount:
                            break
                        decimals[member, row], cells[member, 1, row] = amount, 0
                    elif stop > 0 and bounds[member, 1] > 0:
                        count = _count(at, stop)
                        if count < bounds[member, 0] or count > bounds[member, 1]:
                            break
                        cells[member, 0, row], cells[member, 1, row] = count * (_MICROS if kind == TIME else 1), 0
                    else:
                        break
                else:
                    stop = literal(at, end)
                    if stop < 0:
                        if kind != TRUTH:
                            break
                        stop = -stop
                        cells[member, 0, row], cells[member, 1, row] = here == 0x74, 0
            if stop <= 0:
                break
            at = space(stop, end, False)
            if at >= end or (byte(at) != 0x2C and byte(at) != 0x7D):
                break
            if byte(at) == 0x7D:
                whole = True
            at = at + 1 if whole else space(at + 1, end, False)
        good[row] = whole and space(at, end, False) == end


@compiled
def plain_rows(data: Array, offsets: Array, plain: Array) -> None:
    """Set whether each row is only ASCII."""
    for row in range(len(plain)):
        plain[row] = True
        for i in range(offsets[row], offsets[row + 1]):
            if data[i] >= 0x80:
                plain[row] = False
                break


@compiled
def skip(at: int, end: int) -> int:
    """Where the value at `at` ends, of any type; 0 if unsure."""
    depth, lists = 0, 0
    while at < end:
        here = byte(at)
        if here == 0x22:
            at = abs(string(at + 1, end))
        elif here == 0x2D or 0x30 <= here <= 0x39:
            at = abs(number(at, end))
        elif here == 0x7B or here == 0x5B:
            inner = space(at + 1, end, False)
            if inner >= end or depth == DEPTH:
                return 0
            if byte(inner) == here + 2:
                at = inner + 1
            else:
                depth, lists = depth + 1, lists << 1 | (here == 0x5B)
                at = inner if here == 0x5B else _named(inner, end)
                if at == 0:
                    return 0
                continue
        else:
            at = abs(literal(at, end))
        if at == 0:
            return 0
        while depth > 0:
            at = space(at, end, False)
            if at >= end:
                return 0
            if byte(at) == 0x2C:
                at = space(at + 1, end, False)
                at = at if lists & 1 else _named(at, end)
                if at == 0:
                    return 0
                break
            if byte(at) != (0x5D if lists & 1 else 0x7D):
                return 0
            at, depth, lists = at + 1, depth - 1, lists >> 1
        if depth == 0:
            return at
    return 0


@compiled
def _named(at: int, end: int) -> int:
    """Where the value after the name at `at` starts; 0 if unsure."""
    if at >= end or byte(at) != 0x22:
        return 0
    stop = abs(string(at + 1, end))
    return _value(stop, end) if stop > 0 else 0


@compiled
def _value(at: int, end: int) -> int:
    """Where the value after a name that ends at `at` starts; 0 if there is none."""
    at = space(at, end, False)
    if at >= end or byte(at) != 0x3A:
        return 0
    at = space(at + 1, end, False)
    return at if at < end else 0


@compiled
def _count(at: int, end: int) -> int:
    """The whole number of at most 18 digits."""
    found, first = 0, at + 1 if byte(at) == 0x2D else at
    for i in range(first, end):
        found = found * 10 + byte(i) - 0x30
    return -found if first > at else found


@compiled
def _date(at: int, end: int) -> int:
    """Days since 1970 of an ISO 8601 date; _UNSURE for anything else, and for a 29th of February."""
    if end - at != 10 or byte(at + 4) != 0x2D or byte(at + 7) != 0x2D or pair(at) < 0 or pair(at + 2) < 0:
        return _UNSURE
    year, month, day = pair(at) * 100 + pair(at + 2), pair(at + 5), pair(at + 8)
    if year < 1 or month < 1 or month > 12 or day < 1 or day > DAYS[month]:
        return _UNSURE
    return _days(year, month, day)


@compiled
def _micros(at: int, end: int) -> int:
    """Microseconds since 1970 of an RFC 3339 date-time; _UNSURE if it is not certainly one."""
    if not is_time(at, end):
        return _UNSURE
    behind = digits(at + 20, end) if byte(at + 19) == 0x2E else at + 19
    year = pair(at) * 100 + pair(at + 2)
    if year < 1 or behind > at + 26:
        return _UNSURE
    fraction = 0
    for i in range(at + 20, at + 26):
        fraction = fraction * 10 + (byte(i) - 0x30 if i < behind else 0)
    minutes = pair(at + 11) * 60 + pair(at + 14)
    if byte(behind) != 0x5A:
        ahead = pair(behind + 1) * 60 + pair(behind + 4)
        if ahead > 18 * 60:
            return _UNSURE
        minutes += ahead if byte(behind) == 0x2D else -ahead
    seconds = (_days(year, pair(at + 5), pair(at + 8)) * 1440 + minutes) * 60 + pair(at + 17)
    return seconds * _MICROS + fraction


@compiled
def _days(year: int, month: int, day: int) -> int:
    """Days since 1970 in the Gregorian calendar; the computation starts years in March."""
    if month <= 2:
        year, month = year - 1, month + 12
    leap = year // 4 - year // 100 + year // 400
    return year * 365 + leap + (153 * (month - 3) + 2) // 5 + day - 1 - 719_468


@compiled
def texts(data: Array, starts: Array, lengths: Array, ends: Array, out: Array) -> None:
    """Write a member's strings to `out` end to end, unescaped, while there is room; `ends` has one more entry."""
    base, at = address(data), 0
    for row in range(len(starts)):
        length = lengths[row]
        if length & (ESCAPED - 1) > len(out) - at and length > 0:
            return
        if length >= ESCAPED:
            at = _plain(base + starts[row], base + starts[row] + length - ESCAPED, out, at)
        elif length > 0:
            copy(out, at, data, starts[row], length)
            at += length
        ends[row + 1] = at


@compiled
def _plain(i: int, end: int, out: Array, at: int) -> int:
    """Write a valid string unescaped; returns where it ends in `out`."""
    while i < end:
        here = byte(i)
        i += 1
        if here == 0x5C:
            here = byte(i)
            i += 1
            if here == 0x75:
                here, i = _unit(i), i + 4
                if 0xD800 <= here < 0xDC00:
                    here = 0x10000 + ((here - 0xD800) << 10) + _unit(i + 2) - 0xDC00
                    i += 6
                at = _utf8(here, out, at)
                continue
            if here == 0x62:
                here = 0x08
            elif here == 0x66:
                here = 0x0C
            elif here == 0x6E:
                here = 0x0A
            elif here == 0x72:
                here = 0x0D
            elif here == 0x74:
                here = 0x09
        out[at] = here
        at += 1
    return at


@compiled
def _unit(i: int) -> int:
    """The number of four hexadecimal digits."""
    found = 0
    for k in range(i, i + 4):
        digit = byte(k)
        found = found << 4 | (digit - 0x30 if digit <= 0x39 else (digit | 0x20) - 0x57)
    return found


@compiled
def _utf8(point: int, out: Array, at: int) -> int:
    if point < 0x80:
        out[at] = point
        return at + 1
    if point < 0x800:
        out[at], out[at + 1] = 0xC0 | point >> 6, 0x80 | point & 0x3F
        return at + 2
    if point < 0x10000:
        out[at], out[at + 1], out[at + 2] = 0xE0 | point >> 12, 0x80 | point >> 6 & 0x3F, 0x80 | point & 0x3F
        return at + 3
    out[at], out[at + 1] = 0xF0 | point >> 18, 0x80 | point >> 12 & 0x3F
    out[at + 2], out[at + 3] = 0x80 | point >> 6 & 0x3F, 0x80 | point & 0x3F
    return at + 4
