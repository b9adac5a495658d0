"""The loop that reads the members of JSON objects, in one pass and without making Python objects.

It reads an object only if a full parser would certainly find the same: known members of the right types, each at most
once, and other members that are well formed. It leaves rare things (names with escapes, numbers of many digits, nesting
deeper than `DEPTH`) to that parser.
"""

from __future__ import annotations

import numpy as np

from penstock.native import Array
from penstock.native.jit import compiled, copy, uncounted
from penstock.native.json_tokens import DAYS, decimal, digits, equal, is_time, literal, number, pair, space, string

TEXT, TRUTH, DATE, TIME, WHOLE, DECIMAL, FLOAT = range(7)
"""The kinds of members. TIME and WHOLE accept whole numbers within their bounds; DECIMAL and FLOAT all numbers."""
NONE = -1
"""The length of a member that is null or missing; other lengths are not negative."""
ESCAPED = 1 << 62
"""The bit in the length of a string with escapes."""
DEPTH = 60
_UNSURE = -(1 << 63)
_MICROS = 1_000_000


@uncounted
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

    `cells` is members x 2 x rows, `decimals` members x rows. `bounds` has for each member its least and largest number
    and by what a number is multiplied, `names` the start and length of its name in `text`.
    """
    members, following = len(kinds), 0
    for row in range(len(good)):
        for member in range(members):
            cells[member, 1, row] = NONE
        if not usable[row]:
            continue
        end = offsets[row + 1]
        at = space(data, offsets[row], end, False)
        if at >= end or data[at] != 0x7B:
            continue
        at, seen, whole = space(data, at + 1, end, False), 0, False
        if at < end and data[at] == 0x7D:
            at, whole = at + 1, True
        while not whole:
            if at >= end or data[at] != 0x22:
                break
            # Members mostly come in the same order as in the previous object.
            member, stop = following, at + 1 + names[following, 1]
            if stop < end and data[stop] == 0x22 and equal(data, at + 1, end, text, names[member, 0], names[member, 1]):
                stop += 1
            else:
                stop = string(data, at + 1, end)
                if stop <= 0:
                    break
                member = _member(data, at + 1, stop - 1, names, text)
            at = _value(data, stop, end)
            if at == 0:
                break
            if member == NONE:
                stop = skip(data, at, end)
            elif seen >> member & 1:
                break
            else:
                seen |= 1 << member
                following = member + 1 if member + 1 < members else 0
                stop = _cell(data, at, end, kinds[member], bounds[member], cells[member, :, row], decimals[member], row)
            if stop <= 0:
                break
            at = space(data, stop, end, False)
            if at >= end or (data[at] != 0x2C and data[at] != 0x7D):
                break
            if data[at] == 0x7D:
                whole = True
            at = at + 1 if whole else space(data, at + 1, end, False)
        good[row] = whole and space(data, at, end, False) == end


@uncounted
def _member(data: Array, at: int, end: int, names: Array, text: Array) -> int:
    """The member of this name; `NONE` if it is not wanted."""
    for member in range(len(names)):
        if names[member, 1] == end - at and equal(data, at, end, text, names[member, 0], end - at):
            return member
    return NONE


@uncounted
def _cell(data: Array, at: int, end: int, kind: int, bounds: Array, cell: Array, decimals: Array, row: int) -> int:
    """Set a member's cell to the value at `at`; returns where it ends, 0 if unsure."""
    here = data[at]
    if here == 0x22:
        stop = string(data, at + 1, end)
        if kind == TEXT:
            cell[0], cell[1] = at + 1, (abs(stop) - at - 2) | (ESCAPED if stop < 0 else 0)
            return abs(stop)
        if not (DATE <= kind <= TIME and stop > 0):
            return 0
        instant = _micros(data, at + 1, stop - 1) if kind == TIME else _date(data, at + 1, stop - 1)
        cell[0], cell[1] = instant, 0
        return 0 if instant == _UNSURE else stop
    if here == 0x2D or 0x30 <= here <= 0x39:
        stop = number(data, at, end)
        if kind >= DECIMAL:
            stop = abs(stop)
            amount = decimal(data, at, stop)
            # Whether minus zero keeps its sign depends on how it is written.
            if not (amount > 0 or amount < 0 or (amount == 0 and here != 0x2D)):
                return 0
            # Rounding twice may give another number than rounding once.
            if kind == FLOAT and np.float32(amount) != amount:
                return 0
            decimals[row], cell[1] = amount, 0
            return stop
        if stop <= 0 or bounds[1] <= 0:
            return 0
        count = _count(data, at, stop)
        if count < bounds[0] or count > bounds[1]:
            return 0
        cell[0], cell[1] = count * bounds[2], 0
        return stop
    stop = literal(data, at, end)
    if stop >= 0:
        return stop
    if kind != TRUTH:
        return 0
    cell[0], cell[1] = here == 0x74, 0
    return -stop


@compiled
def plain_rows(data: Array, offsets: Array, plain: Array) -> None:
    """Set whether each row is only ASCII."""
    for row in range(len(plain)):
        plain[row] = True
        for i in range(offsets[row], offsets[row + 1]):
            if data[i] >= 0x80:
                plain[row] = False
                break


@uncounted
def skip(data: Array, at: int, end: int) -> int:
    """Where the value at `at` ends, of any type; 0 if unsure."""
    depth, lists = 0, 0
    while at < end:
        here = data[at]
        if here == 0x22:
            at = abs(string(data, at + 1, end))
        elif here == 0x2D or 0x30 <= here <= 0x39:
            at = abs(number(data, at, end))
        elif here == 0x7B or here == 0x5B:
            inner = space(data, at + 1, end, False)
            if inner >= end or depth == DEPTH:
                return 0
            if data[inner] == here + 2:
                at = inner + 1
            else:
                depth, lists = depth + 1, lists << 1 | (here == 0x5B)
                at = inner if here == 0x5B else _named(data, inner, end)
                if at == 0:
                    return 0
                continue
        else:
            at = abs(literal(data, at, end))
        if at == 0:
            return 0
        while depth > 0:
            at = space(data, at, end, False)
            if at >= end:
                return 0
            if data[at] == 0x2C:
                at = space(data, at + 1, end, False)
                at = at if lists & 1 else _named(data, at, end)
                if at == 0:
                    return 0
                break
            if data[at] != (0x5D if lists & 1 else 0x7D):
                return 0
            at, depth, lists = at + 1, depth - 1, lists >> 1
        if depth == 0:
            return at
    return 0


@uncounted
def _named(data: Array, at: int, end: int) -> int:
    """Where the value after the name at `at` starts; 0 if unsure."""
    if at >= end or data[at] != 0x22:
        return 0
    stop = abs(string(data, at + 1, end))
    return _value(data, stop, end) if stop > 0 else 0


@uncounted
def _value(data: Array, at: int, end: int) -> int:
    """Where the value after a name that ends at `at` starts; 0 if there is none."""
    at = space(data, at, end, False)
    if at >= end or data[at] != 0x3A:
        return 0
    at = space(data, at + 1, end, False)
    return at if at < end else 0


@uncounted
def _count(data: Array, at: int, end: int) -> int:
    """The whole number of at most 18 digits."""
    count, first = 0, at + 1 if data[at] == 0x2D else at
    for i in range(first, end):
        count = count * 10 + data[i] - 0x30
    return -count if first > at else count


@uncounted
def _date(data: Array, at: int, end: int) -> int:
    """Days since 1970 of an ISO 8601 date; _UNSURE for anything else, and for a 29th of February."""
    if end - at != 10 or data[at + 4] != 0x2D or data[at + 7] != 0x2D or pair(data, at) < 0 or pair(data, at + 2) < 0:
        return _UNSURE
    year, month, day = pair(data, at) * 100 + pair(data, at + 2), pair(data, at + 5), pair(data, at + 8)
    if year < 1 or month < 1 or month > 12 or day < 1 or day > DAYS[month]:
        return _UNSURE
    return _days(year, month, day)


@uncounted
def _micros(data: Array, at: int, end: int) -> int:
    """Microseconds since 1970 of an RFC 3339 date-time; _UNSURE if it is not certainly one."""
    if not is_time(data, at, end):
        return _UNSURE
    behind = digits(data, at + 20, end) if data[at + 19] == 0x2E else at + 19
    year = pair(data, at) * 100 + pair(data, at + 2)
    if year < 1 or behind > at + 26:
        return _UNSURE
    fraction = 0
    for i in range(at + 20, at + 26):
        fraction = fraction * 10 + (data[i] - 0x30 if i < behind else 0)
    minutes = pair(data, at + 11) * 60 + pair(data, at + 14)
    if data[behind] != 0x5A:
        ahead = pair(data, behind + 1) * 60 + pair(data, behind + 4)
        if ahead > 18 * 60:
            return _UNSURE
        minutes += ahead if data[behind] == 0x2D else -ahead
    seconds = (_days(year, pair(data, at + 5), pair(data, at + 8)) * 1440 + minutes) * 60 + pair(data, at + 17)
    return seconds * _MICROS + fraction


@uncounted
def _days(year: int, month: int, day: int) -> int:
    """Days since 1970 in the Gregorian calendar; the computation starts years in March."""
    if month <= 2:
        year, month = year - 1, month + 12
    leap = year // 4 - year // 100 + year // 400
    return year * 365 + leap + (153 * (month - 3) + 2) // 5 + day - 1 - 719_468


@compiled
def texts(data: Array, starts: Array, lengths: Array, ends: Array, out: Array) -> None:
    """Write a member's strings to `out` end to end, unescaped, while there is room; `ends` has one more entry."""
    at = 0
    for row in range(len(starts)):
        length = lengths[row]
        if length & (ESCAPED - 1) > len(out) - at and length > 0:
            return
        if length >= ESCAPED:
            at = _plain(data, starts[row], starts[row] + length - ESCAPED, out, at)
        elif length > 0:
            copy(out, at, data, starts[row], length)
            at += length
        ends[row + 1] = at


@uncounted
def _plain(data: Array, i: int, end: int, out: Array, at: int) -> int:
    """Write a valid string unescaped; returns where it ends in `out`."""
    while i < end:
        here = data[i]
        i += 1
        if here == 0x5C:
            here = data[i]
            i += 1
            if here == 0x75:
                here, i = _unit(data, i), i + 4
                if 0xD800 <= here < 0xDC00:
                    here = 0x10000 + ((here - 0xD800) << 10) + _unit(data, i + 2) - 0xDC00
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


@uncounted
def _unit(data: Array, i: int) -> int:
    """The number of four hexadecimal digits."""
    unit = 0
    for k in range(i, i + 4):
        digit = data[k]
        unit = unit << 4 | (digit - 0x30 if digit <= 0x39 else (digit | 0x20) - 0x57)
    return unit


@uncounted
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
