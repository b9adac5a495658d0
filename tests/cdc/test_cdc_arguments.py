"""Arguments of `cdc.read` that are checked without a database."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock import cdc
from penstock.cdc import cdc_source as source
from penstock.cdc.cdc_options import CdcSettings
from penstock.cdc.generations import micros
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


@pytest.mark.parametrize("start", [5, None, True, "yesterday"])
def test_what_is_no_start_is_refused(read: Any, start: object) -> None:
    with pytest.raises(PenstockError, match=r"start cannot be .*use .earliest."):
        read(start=start)


@pytest.mark.parametrize("images", [None, 5, ("full",), ("full", "none", "none"), {"full"}])
def test_what_are_no_images_is_refused(read: Any, images: object) -> None:
    with pytest.raises(PenstockError, match=r"images cannot be .*a pair of them"):
        read(images=images)


@pytest.mark.parametrize("given", [{"confidence": 5}, {"max_time": 5}, {"patience": "9999999999 days"}])
def test_what_is_no_duration_is_refused(read: Any, given: dict[str, object]) -> None:
    with pytest.raises(PenstockError, match="is not a duration"):
        read(**given)
