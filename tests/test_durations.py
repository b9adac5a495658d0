"""Durations as users write them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from penstock.durations import Duration, duration, duration_text
from penstock.errors import PenstockError


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("0 seconds", timedelta(0)),
        ("1.5 hours", timedelta(minutes=90)),
        (" 1 Day 2 hours ", timedelta(hours=26)),
        ("500 milliseconds", timedelta(milliseconds=500)),
        ("99999 weeks", timedelta(weeks=99_999)),
        ("5 ms", timedelta(milliseconds=5)),
        ("1 d 2 h 3 min 4 s 6 us", timedelta(days=1, hours=2, minutes=3, seconds=4, microseconds=6)),
        ("500ms", timedelta(milliseconds=500)),
    ],
)
def test_a_text_of_numbers_and_units_is_a_duration(text: str, found: timedelta) -> None:
    assert duration(text, name="every") == found == duration(duration_text(found), name="every")


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (5, timedelta(seconds=5)),
        (0.25, timedelta(milliseconds=250)),
        (0, timedelta(0)),
        (timedelta(days=2), timedelta(days=2)),
    ],
)
def test_a_number_is_in_seconds(value: Duration, found: timedelta) -> None:
    assert duration(value, name="every") == found


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, b"1 day", [5], 5j, float("nan"), float("inf"), 1e300, -1e300, 10**400),
        *("", "5", "500mss", "5 m", "5 minss", "5 hs", "often", "9999999999 days", "9" * 400 + " days"),
    ],
)
def test_anything_else_is_none(value: Any) -> None:
    with pytest.raises(PenstockError, match=r'every is not a duration: .*write it as "10 minutes", as sec') as error:
        duration(value, name="every")
    assert isinstance(error.value, ValueError)


@pytest.mark.parametrize("value", [timedelta(seconds=-1), -1, -0.5])
def test_a_duration_is_not_negative(value: Duration) -> None:
    with pytest.raises(PenstockError, match="every is negative"):
        duration(value, name="every")
