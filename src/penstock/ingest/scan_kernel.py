"""The loop that finds the events in a body and checks them, in one pass and without making an object of any.

It accepts a body only if it is sure: JSON (RFC 8259) in its usual forms, with events that satisfy the plan. If anything
is wrong or rare (numbers of many digits, names with escapes, deep nesting), it gives up; then the body is decoded and
validated in the usual way, which also says what is wrong. So it has to be right only about what it accepts.

Only the tokens are in another file: `json_tokens` says what to do when that changes.
"""

from __future__ import annotations

import numpy as np

from penstock.ingest import schema_plan as of
from penstock.ingest.schema_plan import SchemaPlan
from penstock.native import Array
from penstock.native.byte_loads import address, byte
from penstock.native.jit import compiled
from penstock.native.json_tokens import decimal, equal, is_time, literal, number, space, string
from penstock.native.text_slices import Texts

DEPTH = 64
"""The deepest nesting of values."""
_VALUE, _NAME, _AFTER, _CLOSE = range(4)
_STRIPPED = np.zeros(256, np.bool_)
_STRIPPED[list(b" \t\r\n\x0b\x0c")] = True


def room(most: int) -> Array:
    """The buffer that `cut` needs to find at most `most` events; it may be reused."""
    return np.empty((4, most), np.int64)


def cut(body: bytes, plan: SchemaPlan, *, lines: bool, largest: int, room: Array) -> tuple[Texts, Texts | None] | None:
    """The events of a body and their keys if all are surely good; else None, and the body has to be decoded.

    `lines`: an event on each line, else one event or an array. An event has at most `largest` bytes.
    """
    ascii_only = body.isascii()
    if not ascii_only and not _is_text(body):
        return None
    count = _scan(np.frombuffer(body, np.uint8), lines, ascii_only, largest, *plan[:-1], room)
    if count < 1:
        return None
    starts, lengths, key_starts, key_lengths = room[:, :count].copy()
    return Texts(body, starts, lengths), Texts(body, key_starts, key_lengths) if plan.keyed else None


def _is_text(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


@compiled
def elements(data: Array, most: int) -> int:
    """The number of elements in a JSON array, or `most` + 1 if there are more.

    If the bytes are not JSON, it counts at least the elements before the first error.
    """
    depth, count, at, in_string = 0, 1, 0, False
    while at < len(data):
        here = data[at]
        if in_string:
            if here == 0x5C:
                at += 1
            in_string = here != 0x22
        elif here == 0x22:
            in_string = True
        elif here == 0x5B or here == 0x7B:
            depth += 1
        elif here == 0x5D or here == 0x7D:
            depth -= 1
        elif here == 0x2C and depth == 1:
            count += 1
            if count > most:
                return count
        at += 1
    return count


@compiled
def _stripped(at: int, end: int) -> int:
    """The address behind the white space around a line; bytes.strip knows more kinds of it than JSON."""
    while at < end and _STRIPPED[byte(at)] and byte(at) != 0x0A:
        at += 1
    return at


@compiled
def _fits(size: int, shortest: int, longest: int, exact: bool) -> bool:
    """Whether a string of `size` bytes surely has a permitted number of characters; if `exact`, these are the bytes.

    A character takes at most twelve bytes, as a pair of escapes.
    """
    return size <= longest and size >= (shortest if exact or shortest <= 1 else 12 * shortest)


@compiled
def _between(amount: float, low: float, high: float, ends: int) -> bool:
    above = amount > low if ends & of.LOW_OPEN else amount >= low
    return above and (amount < high if ends & of.HIGH_OPEN else amount <= high)


@compiled
def _scan(
    data: Array,
    lines: bool,
    ascii_only: bool,
    largest: int,
    root: int,
    nodes: Array,
    bounds: Array,
    properties: Array,
    words: Array,
    text: Array,
    out: Array,
) -> int:
    """The number of events, -1 if unsure; `out` has rows for their starts, lengths, and those of their keys.

    One function, because each call that passes arrays on counts references, which costs more than the work itself.
    """
    base, names, count, listed = address(data), address(text), 0, False
    at, end = base, base + len(data)
    held, seen, in_list = np.empty(DEPTH, np.int64), np.empty(DEPTH, np.int64), np.empty(DEPTH, np.bool_)
    following = 0
    if not lines:
        at = space(at, end, False)
        if at < end and byte(at) == 0x5B:
            at, listed = space(at + 1, end, False), True
    while True:
        if lines:
            while at < end and _STRIPPED[byte(at)]:
                at += 1
            if at == end:
                return count
        if at >= end or byte(at) != 0x7B or count == out.shape[1]:
            return -1
        start, node, depth, mode = at, root, 0, _VALUE
        key_start, key_length = base, -1
        while mode != _AFTER or depth > 0:
            if at >= end:
                return -1
            here = byte(at)
            if mode == _VALUE:
                kind, stop = 0, 0
                if here == 0x22:
                    kind, stop = of.TEXT, string(at + 1, end)
                    if stop == 0:
                        return -1
                    if node >= 0:
                        escaped, stop = stop < 0, abs(stop)
                        first, last = at + 1, stop - 1
                        shortest, longest = nodes[node, of.SHORTEST], nodes[node, of.LONGEST]
                        if not _fits(last - first, shortest, longest, ascii_only and not escaped):
                            return -1
                        if nodes[node, of.WORDS] >= 0 or nodes[node, of.TIME] or nodes[node, of.KEY]:
                            if escaped:
                                return -1
                            word = nodes[node, of.WORD]
                            behind = word + nodes[node, of.WORDS]
                            while word < behind and not (
                                words[word, 1] == last - first
                                and equal(first, end, names + words[word, 0], last - first)
                            ):
                                word += 1
                            if word == behind:
                                return -1
                            if nodes[node, of.TIME] and not is_time(first, last):
                                return -1
                            if nodes[node, of.KEY]:
                                key_start, key_length = first, last - first
                    stop = abs(stop)
                elif here == 0x7B or here == 0x5B:
                    kind = of.OBJECT if here == 0x7B else of.ARRAY
                    if depth == DEPTH or (node >= 0 and nodes[node, of.KEY]):
                        return -1
                    held[depth], seen[depth], in_list[depth] = node, 0, here == 0x5B
                    depth += 1
                elif here == 0x2D or 0x30 <= here <= 0x39:
                    stop = number(at, end)
                    if stop == 0:
                        return -1
                    kind, stop = of.WHOLE if stop > 0 else of.BROKEN, abs(stop)
                    if node >= 0 and nodes[node, of.RANGE]:
                        amount = decimal(at, stop)
                        if not _between(amount, bounds[node, 0], bounds[node, 1], nodes[node, of.RANGE]):
                            return -1
                    if node >= 0 and nodes[node, of.KEY]:
                        if kind == of.BROKEN or (here == 0x2D and byte(at + 1) == 0x30):
                            return -1
                        key_start, key_length = at, stop - at
                else:
                    stop = literal(at, end)
                    if stop == 0:
                        return -1
                    kind, stop = of.TRUTH if stop < 0 else of.NULL, abs(stop)
                    if kind == of.TRUTH and node >= 0 and nodes[node, of.KEY]:
                        return -1
                if node >= 0 and not nodes[node, of.TYPES] & kind:
                    return -1
                if stop > 0:
                    at, mode = stop, _AFTER
                else:
                    at = space(at + 1, end, lines)
                    if at < end and byte(at) == (0x5D if kind == of.ARRAY else 0x7D):
                        mode = _CLOSE
                    elif kind == of.ARRAY:
                        seen[depth - 1] = 1
                        node = nodes[node, of.ITEMS] if node >= 0 else of.ANY
                    else:
                        mode = _NAME
            elif mode == _NAME:
                node, stop = held[depth - 1], 0
                first, many, guess = 0, 0, 0
                if here == 0x22 and node >= 0:
                    # Properties mostly come in the order of the previous event.
                    first, many = nodes[node, of.FIRST], nodes[node, of.COUNT]
                    guess = following if first <= following < first + many else first
                    if many > 0:
                        size = properties[guess, 1]
                        behind = at + 1 + size
                        if (
                            behind < end
                            and byte(behind) == 0x22
                            and equal(at + 1, end, names + properties[guess, 0], size)
                        ):
                            stop = behind + 1
                if stop == 0:
                    stop = string(at + 1, end) if here == 0x22 else 0
                    if stop == 0 or (node >= 0 and stop < 0):
                        return -1
                    size = stop - at - 2
                    for _ in range(many):
                        guess = guess + 1 if guess + 1 < first + many else first
                        if properties[guess, 1] == size and equal(at + 1, end, names + properties[guess, 0], size):
                            break
                    else:
                        many = 0
                if many > 0:
                    bit = guess - first
                    if seen[depth - 1] >> bit & 1:
                        return -1
                    seen[depth - 1] |= 1 << bit
                    node, following = properties[guess, 2], guess + 1
                elif node >= 0:
                    node = nodes[node, of.EXTRA]
                    if node == of.FORBIDDEN:
                        return -1
                at = space(abs(stop), end, lines)
                if at >= end or byte(at) != 0x3A:
                    return -1
                at, mode = space(at + 1, end, lines), _VALUE
            elif mode == _AFTER:
                at = space(at, end, lines)
                if at >= end:
                    return -1
                if byte(at) == 0x2C:
                    at, mode = space(at + 1, end, lines), _NAME
                    if in_list[depth - 1]:
                        seen[depth - 1] += 1
                        node, mode = held[depth - 1], _VALUE
                        if node >= 0:
                            node = nodes[node, of.ITEMS]
                elif byte(at) == (0x5D if in_list[depth - 1] else 0x7D):
                    mode = _CLOSE
                else:
                    return -1
            else:
                depth -= 1
                node = held[depth]
                if node >= 0 and in_list[depth]:
                    if seen[depth] < nodes[node, of.LEAST] or seen[depth] > nodes[node, of.LARGEST]:
                        return -1
                elif node >= 0 and nodes[node, of.REQUIRED] & ~seen[depth]:
                    return -1
                at, mode = at + 1, _AFTER
        if at - start > largest:
            return -1
        out[0, count], out[1, count], out[2, count], out[3, count] = (
            start - base,
            at - start,
            key_start - base,
            key_length,
        )
        count += 1
        if lines:
            at = _stripped(at, end)
            if at < end and byte(at) != 0x0A:
                return -1
            continue
        at = space(at, end, False)
        if not listed:
            return count if at == end else -1
        if at >= end:
            return -1
        if byte(at) == 0x5D:
            return count if space(at + 1, end, False) == end else -1
        if byte(at) != 0x2C:
            return -1
        at = space(at + 1, end, False)
