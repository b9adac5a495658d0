"""Durations as users write them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from penstock.config import duration, duration_text
from penstock.errors import PenstockError


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("0 seconds", timedelta(0)),
        ("1.5 hours", timedelta(minutes=90)),
        (" 1 Day 2 hours ", timedelta(hours=26)),
        ("500 milliseconds", timedelta(milliseconds=500)),
        ("99999 weeks", timedelta(weeks=99_999)),
    ],
)
def test_a_text_of_numbers_and_units_is_a_duration(text: str, found: timedelta) -> None:
    assert duration(text, name="every") == found == duration(duration_text(found), name="every")


@pytest.mark.parametrize(
    "value", [5, 5.0, None, True, b"1 day", "", "5", "500ms", "often", "9999999999 days", "9" * 400 + " days"]
)
def test_anything_else_is_none(value: Any) -> None:
    with pytest.raises(PenstockError, match=r'every is not a duration: .*write it as "10 minutes" or as a datetime'):
        duration(value, name="every")


def test_a_duration_is_not_negative() -> None:
    with pytest.raises(PenstockError, match="every is negative"):
        duration(timedelta(seconds=-1), name="every")
