"""Numbers as Java converts them: to narrower types, to text, and from text."""

from __future__ import annotations

import math
import re
import struct
from decimal import Decimal

from penstock.connect.records.record import INTEGERS, NoValue

_WHOLE = re.compile(r"[+-]?[0-9]+")
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,9})?")
_DOUBLE = re.compile(
    r"[\x00-\x20]*(?P<sign>[+-]?)"
    r"(?:(?P<named>NaN|Infinity)"
    r"|(?P<decimal>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?"
    r"|(?P<hex>0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?)[\x00-\x20]*"
)
INT, LONG = 32, 64


def narrowed(number: int, bits: int) -> int:
    """The lowest bits, as a signed number."""
    half = 1 << (bits - 1)
    return (number + half) % (2 * half) - half


def integer(value: float | Decimal, kind: str) -> int:
    """A number as an integer type has it: a fraction is cut off, then only the lowest bits remain.

    A double is limited to an int or a long before its lowest bits are taken.
    """
    bits = INTEGERS[kind]
    if isinstance(value, Decimal):
        return narrowed(_whole(value), bits)
    if isinstance(value, float):
        limit = 1 << (max(bits, INT) - 1)
        value = 0 if math.isnan(value) else int(max(min(value, float(limit)), -float(limit)))
        value = max(min(value, limit - 1), -limit)
    return narrowed(value, bits)


def _whole(value: Decimal) -> int:
    """The integer part; of numbers with more zeros at the end than a long has bits, only these bits: zeros."""
    exponent = value.as_tuple().exponent
    return 0 if not isinstance(exponent, int) or exponent >= LONG or value.adjusted() < 0 else int(value)


def double(value: float | Decimal) -> float:
    """Raises NoValue for an integer that is beyond all doubles."""
    try:
        return float(value)
    except OverflowError:
        raise NoValue(f"{str(value)[:80]} is no double") from None


def single(value: float | Decimal) -> float:
    """The nearest 32-bit float, as a double."""
    if isinstance(value, int) and (spare := value.bit_length() - 50) > 0:
        # Rounded twice, to a double and to a float, it would be wrong: the bits that are cut off become one.
        value = (value >> spare | bool(value & ((1 << spare) - 1))) << spare
    try:
        nearest: float = struct.unpack(">f", struct.pack(">f", double(value)))[0]
    except OverflowError:
        return math.copysign(math.inf, value)
    return nearest


def text(value: float, *, is_single: bool = False) -> str:
    """A double or a 32-bit float as Java writes it: 1.0, 1.0E10."""
    if math.isnan(value) or math.isinf(value):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
    if value == 0:
        return "-0.0" if math.copysign(1, value) < 0 else "0.0"
    sign, digits, power = _shortest(value, is_single)
    if -3 <= power < 7:
        whole, part = (digits[: power + 1], digits[power + 1 :]) if power >= 0 else ("", "0" * (-power - 1) + digits)
        return f"{sign}{(whole or '0').ljust(power + 1, '0')}.{part or '0'}"
    return f"{sign}{digits[0]}.{digits[1:] or '0'}E{power}"


def _shortest(value: float, is_single: bool) -> tuple[str, str, int]:
    """Sign, digits and power of ten of the shortest decimal of at least two digits that is read as this number."""
    for precision in range(1, 17):
        shown = f"{value:.{precision}e}"
        if (single(float(shown)) if is_single else float(shown)) == value:
            break
    mantissa, _, power = shown.partition("e")
    digits = mantissa.lstrip("-").replace(".", "")
    return "-" if value < 0 else "", digits.rstrip("0") or "0", int(power)


def parsed_integer(text: str, kind: str) -> int:
    """Raises NoValue if it is not the text of a number of this type."""
    bits = INTEGERS[kind]
    # More digits than any long has are not converted.
    number = int(text) if _WHOLE.fullmatch(text) and len(text.lstrip("+-0")) < 20 else None
    if number is None or narrowed(number, bits) != number:
        raise _out_of_range(text)
    return number


def parsed_double(text: str) -> float:
    """Raises NoValue if Java would not read it."""
    match = _DOUBLE.fullmatch(text)
    if match is None:
        raise _out_of_range(text)
    number = float.fromhex(match["hex"]) if match["hex"] else float(match["named"] or match["decimal"])
    return -number if match["sign"] == "-" else number


def parsed_decimal(text: str) -> Decimal:
    """Raises NoValue if Java's BigDecimal would not read it."""
    if not _DECIMAL.fullmatch(text):
        raise _out_of_range(text)
    return Decimal(text)


def _out_of_range(text: str) -> NoValue:
    return NoValue(f"the text {text[:80]!r} is no number of the wanted type")
