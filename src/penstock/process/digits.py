"""Integers of many digits: a Python process converts at most 4300 of them at once, as its time grows as the square.

`sys.set_int_max_str_digits` would change that for all code of the process, so long numbers are converted in parts.
"""

from __future__ import annotations

MOST_DIGITS = 4000
"""Digits to convert to a number at once."""


def integer(digits: str) -> int:
    """The number of these decimal digits, however many, converted by halves."""
    if len(digits) <= MOST_DIGITS:
        return int(digits)
    half = len(digits) // 2
    power: int = 10**half
    return integer(digits[:-half]) * power + integer(digits[-half:])
