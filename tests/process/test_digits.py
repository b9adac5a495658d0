"""Integers of more digits than Python converts at once."""

from __future__ import annotations

import pytest

from penstock.process.digits import MOST_DIGITS, integer


@pytest.mark.parametrize("digits", [1, MOST_DIGITS, MOST_DIGITS + 1, 5 * MOST_DIGITS + 7])
def test_a_number_has_all_its_digits(digits: int) -> None:
    assert integer("7" * digits) == 7 * (10**digits - 1) // 9
    assert integer("0" * digits) == 0
