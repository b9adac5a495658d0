"""Which numbers a column holds without loss: one rule for the columns of all sinks.

An integer is held exactly or not at all. A column of floats or doubles has the nearest value of a fraction, as long as
the number is small enough for all of its whole digits (2^24 and 2^53); beyond these it holds what it shows with the
same digits, such as 1e23. Nothing becomes infinite, and nothing but zero becomes zero.
"""

from __future__ import annotations

import math
import re
import struct
from decimal import Decimal

import numpy as np

from penstock.codec import exact_json
from penstock.process.digits import MOST_DIGITS

FLOAT, DOUBLE = 24, 53
"""Bits of the whole numbers that a float and a double hold."""
NUMBERS = (int, float, Decimal)
NOT_FINITE = ("NaN", "Infinity", "-Infinity")


_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,9})?")


class LostDigits(ValueError):
    """A number that a column does not hold without loss; the message says why."""


def number_of(text: str) -> int | Decimal | None:
    """The number that a text is, with all its digits; None if it is not one, or too long."""
    if len(text) > MOST_DIGITS or not _NUMBER.fullmatch(text):
        return None
    return int(text) if text.lstrip("+-").isdecimal() else exact_json.decimal(text)


def whole(value: float | Decimal) -> int:
    """The integer that a number is; raises LostDigits."""
    if isinstance(value, int):
        return int(value)
    if not is_finite(value):
        raise LostDigits("which is not finite")
    if isinstance(value, Decimal) and abs(value.adjusted()) >= MOST_DIGITS:
        raise LostDigits(f"which has more than {MOST_DIGITS} digits")
    if int(value) != value:
        raise LostDigits("which has a fraction")
    return int(value)


def binary(value: float | Decimal, bits: int) -> float:
    """The number that a column of floats (`bits` is FLOAT) or doubles (DOUBLE) holds; raises LostDigits."""
    if not is_finite(value):
        return float(value)
    nearest = _single(value) if bits == FLOAT else _double(value)
    if math.isinf(nearest):
        raise LostDigits("which would make it infinite")
    if nearest == 0 and value != 0:
        raise LostDigits("which would make it 0")
    is_large = not -(1 << bits) <= value <= 1 << bits
    if is_large and nearest != value and (isinstance(value, int) or _shown(nearest, bits) != exact(value)):
        raise LostDigits("which would round it")
    return nearest


def scaled(value: Decimal, scale: int) -> Decimal:
    """The number, if it has no more than so many decimal places, zeros at its end aside; raises LostDigits."""
    _, digits, exponent = value.as_tuple()
    if isinstance(exponent, int) and any(digits[max(len(digits) + exponent + scale, 0) :]) and exponent < -scale:
        raise LostDigits("which would round it")
    return value


def is_finite(value: float | Decimal) -> bool:
    """Whether it is neither infinite nor NaN; `math` takes a decimal beyond the doubles for infinite."""
    return value.is_finite() if isinstance(value, Decimal) else math.isfinite(value)


def exact(value: float | Decimal) -> Decimal:
    """The number with the digits that it shows: of a double the shortest, as Java's BigDecimal.valueOf has them."""
    return Decimal(repr(value)) if isinstance(value, float) else Decimal(value)


def _double(value: float | Decimal) -> float:
    try:
        return float(value)
    except OverflowError:  # of an integer
        return math.inf


def _single(value: float | Decimal) -> float:
    """The nearest float, as a double."""
    nearest = _double(value)
    if math.isfinite(nearest) and (rounded := Decimal(nearest)) != (decimal := Decimal(value)):
        # Rounded twice, to a double and to a float, it might be wrong: all that was cut off becomes the last bit.
        towards_zero = nearest if abs(rounded) < abs(decimal) else math.nextafter(nearest, 0)
        (pattern,) = struct.unpack("<Q", struct.pack("<d", towards_zero))
        (nearest,) = struct.unpack("<d", struct.pack("<Q", pattern | 1))
    try:
        single: float = struct.unpack("<f", struct.pack("<f", nearest))[0]
    except OverflowError:
        return math.inf
    return single


def _shown(value: float, bits: int) -> Decimal:
    return Decimal(str(np.float32(value))) if bits == FLOAT else exact(value)
