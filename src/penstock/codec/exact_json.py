"""JSON of records, whose numbers keep all their digits.

A number with a fraction or an exponent is a float where the shortest digits of a float are those that are written, else
a `Decimal`: money of 20 digits, `0.10`, `1e400`. Kafka's JsonConverter reads numbers with `USE_BIG_DECIMAL_FOR_FLOATS`
for the same reason.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from json import JSONEncoder
from typing import Any, NamedTuple

ALWAYS_HELD = 16
"""Characters of a number without an exponent that a float has with certainty: 15 digits and a point."""
LARGEST_EXPONENT = 1 << 31
"""Java's BigDecimal, and the decimal of CQL, have an exponent of 32 bits."""


def loads(text: str | bytes, *, constants: bool = False) -> Any:
    """The value; raises ValueError if it is not JSON, or RecursionError. `constants`: also NaN and infinities."""
    return json.loads(text, parse_float=number, parse_constant=None if constants else _no_constant)


def number(text: str) -> float | Decimal:
    """A number that is not an integer; raises ValueError for an exponent that no decimal has."""
    if len(text) <= ALWAYS_HELD and text[-1] != "0" and "e" not in text and "E" not in text:
        return float(text)
    written, double = decimal(text), float(text)
    return double if math.isfinite(double) and written.compare_total(Decimal(repr(double))) == 0 else written


def decimal(text: str) -> Decimal:
    """A number with all digits as they are written; raises ValueError for an exponent that no decimal has."""
    try:
        parsed = Decimal(text)
    except InvalidOperation:
        raise ValueError(f"the exponent of {text[:80]} is too large") from None
    exponent = parsed.as_tuple().exponent
    if not isinstance(exponent, int) or abs(exponent) >= LARGEST_EXPONENT:
        raise ValueError(f"the exponent of {text[:80]} is too large")
    return parsed


def as_double(value: Decimal) -> float | Decimal:
    """The double that shows this number, whatever zeros are at its end; the decimal if no double does."""
    double = float(value)
    return double if math.isfinite(double) and Decimal(repr(double)) == value else value


def dumps(value: Any, *, compact: bool = False, ascii: bool = False, other: Callable[[Any], str] | None = None) -> str:
    """The JSON of a value, with all digits of its numbers; names of members that are not strings are JSON, too.

    `compact` is without spaces, `ascii` with escapes for all other characters. `other` makes JSON of what JSON does not
    have: values of other types, infinities and NaN. Without it they are a ValueError.
    """
    marks = (",", ":") if compact else (", ", ": ")
    if other is None:
        try:
            return json.dumps(value, ensure_ascii=ascii, allow_nan=False, separators=marks)
        except TypeError:
            pass  # It has decimals, which the library refuses.
    return _Writer(marks, JSONEncoder(ensure_ascii=ascii).encode, other or _refused).text(value)


class _Writer(NamedTuple):
    marks: tuple[str, str]
    string: Callable[[str], str]
    other: Callable[[Any], str]

    def text(self, value: Any) -> str:
        kind = type(value)
        if kind is str:
            return self.string(value)
        if kind in _WORDS:
            return _WORDS[kind](value)
        if (kind is float and math.isfinite(value)) or (kind is Decimal and value.is_finite()):
            return str(value)
        between, after_name = self.marks
        if kind is dict:
            pairs = (
                f"{self.string(self._name(name))}{after_name}{self.text(member)}" for name, member in value.items()
            )
            return f"{{{between.join(pairs)}}}"
        if kind in (list, tuple):
            return f"[{between.join(map(self.text, value))}]"
        return self.other(value)

    def _name(self, name: Any) -> str:
        return name if type(name) is str else self.text(name)


_WORDS: dict[type, Callable[[Any], str]] = {
    type(None): lambda _: "null",
    bool: lambda value: "true" if value else "false",
    int: str,
}


def _refused(value: Any) -> str:
    if isinstance(value, int):
        return str(int(value))
    raise ValueError(f"JSON has no {value if isinstance(value, float | Decimal) else type(value).__name__}")


def _no_constant(text: str) -> None:
    raise ValueError(f"JSON has no {text}")
