"""Arguments of `cdc.read` that are checked without a database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock import cdc
from penstock.cdc import cdc_source as source
from penstock.cdc.cdc_options import KNOWN, CdcOptions, CdcSettings
from penstock.cdc.generations import micros
from penstock.durations import Duration
from penstock.errors import PenstockError


class Described(Exception):
    """The settings with which `cdc.read` would describe the table."""


@pytest.fixture
def read(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Any:
    def describe(settings: CdcSettings) -> None:
        raise Described(settings)

    monkeypatch.setattr(source, "describe", describe)
    return lambda **given: cdc.read(spark, "ks.t", hosts="127.0.0.1:1", name="t", **given)


@pytest.mark.parametrize("at", [datetime(2026, 1, 31, 12, 0, 0, 5, UTC), datetime.fromisoformat("2026-01-31")])
def test_a_read_starts_at_a_datetime(read: Any, at: datetime) -> None:
    with pytest.raises(Described) as raised:
        read(start=at)
    assert raised.value.args[0].start_micros() == micros(at)


@pytest.mark.parametrize(
    ("wrong", "meant"), [("max_row", "max_rows"), ("image", "images"), ("usr", "user"), ("patient", "patience")]
)
def test_a_wrong_name_is_answered_with_the_one_that_was_meant(read: Any, wrong: str, meant: str) -> None:
    with pytest.raises(PenstockError, match=rf"unknown argument '{wrong}' .cdc.read of ks.t.*did you mean '{meant}'"):
        read(**{wrong: 5})


def test_each_typed_option_is_one_of_the_source() -> None:
    assert set(CdcOptions.__annotations__) < set(KNOWN)


@pytest.mark.parametrize(
    ("start", "said"),
    [
        (5, "the argument start is an int .*give 'earliest', 'latest' or 'snapshot', a string or a datetime"),
        (None, "the argument start is None .*give 'earliest'"),
        (True, "the argument start is a bool .*give 'earliest'"),
        ("yesterday", r"start cannot be .*use .earliest."),
    ],
)
def test_what_is_no_start_is_refused(read: Any, start: object, said: str) -> None:
    with pytest.raises(PenstockError, match=said):
        read(start=start)


@pytest.mark.parametrize(
    ("images", "said"),
    [
        (None, "the argument images is None .*give 'none' or 'full' or a tuple of 2 elements"),
        (5, "the argument images is an int .*a tuple of 2 elements"),
        ("after", "images cannot be .*a pair of them"),
        (("full", "all"), "images cannot be .*a pair of them"),
        (("full",), "the argument images is a tuple of 1 element .*a tuple of 2 elements"),
        (("full", "none", "none"), "the argument images is a tuple of 3 elements .*a tuple of 2 elements"),
        ({"full"}, "the argument images is a set .*a tuple of 2 elements"),
    ],
)
def test_what_are_no_images_is_refused(read: Any, images: object, said: str) -> None:
    with pytest.raises(PenstockError, match=said):
        read(images=images)


@pytest.mark.parametrize("value", [5, 5.0, "5 seconds", timedelta(seconds=5)])
@pytest.mark.parametrize("name", ["confidence", "max_time", "patience"])
def test_a_duration_is_a_text_a_number_or_a_timedelta(read: Any, name: str, value: Duration) -> None:
    with pytest.raises(Described) as raised:
        read(**{name: value})
    assert getattr(raised.value.args[0], name) == timedelta(seconds=5)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"confidence": "5"}, "is not a duration"),
        ({"max_time": True}, "the argument max_time is a bool .*give a string, a number or a timedelta"),
        ({"patience": "9999999999 days"}, "is not a duration"),
    ],
)
def test_what_is_no_duration_is_refused(read: Any, given: dict[str, object], said: str) -> None:
    with pytest.raises(PenstockError, match=said):
        read(**given)
