"""Where a query continues in a change log, and how lost rows are reported; without a database."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import pytest
from cassandra.util import uuid_from_time

from penstock.cdc import cdc_resume
from penstock.cdc.cdc_options import settings
from penstock.cdc.cdc_resume import CdcResume, sought
from penstock.cdc.generations import Position, now_micros
from penstock.cdc.planner import Planner
from penstock.database.cql_types import CqlTable
from penstock.errors import DataLost

SECOND, DAY = 1_000_000, 86_400
NOW = now_micros()
OLD_LOG, NEW_LOG = (str(uuid_from_time(NOW / SECOND - ago)) for ago in (900, 100))
GIVEN = {"table": "shop.orders", "hosts": "nowhere:1", "name": "orders"}


@dataclass
class Planned:
    """A planner of a log that holds rows for `ttl` seconds."""

    ttl: int = DAY
    log: str = OLD_LOG
    altered: int = NOW - 1000 * SECOND
    lossy: bool = False

    @property
    def settings(self) -> Any:
        return settings(GIVEN | {"failOnDataLoss": str(not self.lossy)})

    @property
    def table(self) -> CqlTable:
        return CqlTable("shop", "orders", (), (("ttl", str(self.ttl)),), self.log, self.altered)

    def held_from(self) -> int:
        return NOW - self.ttl * SECOND

    def begin(self, chosen: int | None) -> Position:
        return Position(7, (self.held_from() if chosen is None else chosen) - 1)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is NOW in all tests, even if they run long after this module was loaded."""
    monkeypatch.setattr(cdc_resume, "now_micros", lambda: NOW)


def resume(**about: Any) -> CdcResume:
    return CdcResume(cast(Planner, Planned(**about)))


def offset(ago: int, *, ttl: int | None = DAY, log: str | None = OLD_LOG, planned: int = 1) -> dict[str, Any]:
    """An offset that was planned `planned` seconds after the time up to which it read."""
    at = NOW - ago * SECOND
    about = {"log": log, "ttl": ttl} if log else {}
    return {"generation": 7, "time": at, "planned": at + planned * SECOND} | about


def test_a_query_goes_on_where_it_was() -> None:
    found = resume()
    assert found.moved(offset(600)) is None and found.check(offset(600), offset(500))
    told = {"generation": 7, "time": 5, "planned": 6, "tasks": 2, "log": OLD_LOG, "ttl": DAY}
    assert found.offset(Position(7, 5, 6)) == told


def test_an_offset_of_before_gets_the_log_that_it_is_of() -> None:
    old = offset(600, log=None)
    assert resume().moved(old) == old | {"tasks": 2, "log": OLD_LOG, "ttl": DAY, "moved": True}
    assert not resume().check(old, old | {"log": OLD_LOG, "moved": True})
    snapshot = old | {"snapshot": 5}
    assert resume().moved(snapshot) == snapshot | {"tasks": 2, "log": OLD_LOG, "ttl": DAY, "moved": True}
    # A query that has not begun stores the log with its first batch.
    assert resume().moved(old | {"planned": 0}) is None


def test_a_log_made_again_is_told_with_the_span_and_read_from_its_beginning_if_chosen(
    caplog: pytest.LogCaptureFixture,
) -> None:
    said = (
        r"dropped and created again: .* not read: changes from 2.*Z to 2.*Z \(orders of shop.orders\). Next: read the"
    )
    with pytest.raises(DataLost, match=said):
        resume(log=NEW_LOG).moved(offset(600))
    with pytest.raises(DataLost, match=said):
        resume(log=NEW_LOG).check(offset(600), offset(500))
    going = resume(log=NEW_LOG, lossy=True).moved(offset(600))
    assert going is not None
    assert (going["log"], going["ttl"], going["moved"]) == (NEW_LOG, DAY, True) and going["planned"] == NOW
    assert abs(going["time"] - (NOW - DAY * SECOND)) < 60 * SECOND
    assert "orders of shop.orders: continues although the table or its change log was dropped" in caplog.text
    assert not resume(log=NEW_LOG, lossy=True).check(offset(600), offset(500))


def test_rows_that_expired_are_told_with_the_span() -> None:
    late = offset(600, ttl=300)
    with pytest.raises(DataLost, match=r"expired before they were read: its ttl is 300 s; not read: changes from 2"):
        resume(ttl=300).moved(late)
    with pytest.raises(DataLost, match="expired before they were read"):
        resume(ttl=300).check(late, late)
    going = resume(ttl=300, lossy=True)
    assert going.moved(late) is None and going.check(late, late)
    assert resume(ttl=300).moved(late | {"snapshot": 5, "log": OLD_LOG}) is None
    assert resume(ttl=0).moved(offset(600, ttl=0)) is None


def test_a_ttl_that_was_short_when_the_query_was_left_is_not_forgotten() -> None:
    """The table was altered while the query was stopped, so that its log now holds a day."""
    with pytest.raises(DataLost, match="its ttl is 300 s"):
        resume(altered=NOW - 100 * SECOND).moved(offset(600, ttl=300))
    found = resume(altered=NOW - 100 * SECOND)
    assert found.moved(offset(200, ttl=300)) is None
    assert found.offset(Position(7, NOW - 150 * SECOND, 1))["ttl"] == 300
    assert found.offset(Position(7, NOW - 50 * SECOND, 1))["ttl"] == DAY
    # Rows after the ALTER have the new ttl.
    assert resume(altered=NOW - 700 * SECOND).moved(offset(600, ttl=300)) is None


def test_an_alter_while_a_query_was_away_is_told(caplog: pytest.LogCaptureFixture) -> None:
    found = resume(altered=NOW - 100 * SECOND)
    for _ in range(2):
        assert found.moved(offset(600)) is None
    assert caplog.text.count("while this query did not run: if its cdc ttl was shortened, changes since 2") == 1
    caplog.clear()
    assert resume(altered=NOW - 590 * SECOND).moved(offset(600)) is None
    assert not caplog.text


@pytest.mark.parametrize(("seek", "ago"), [("time", 600), ("earliest", DAY)])
def test_a_position_that_was_set_is_looked_up(seek: str, ago: int) -> None:
    going = resume().moved({"generation": 0, "time": NOW - 600 * SECOND, "planned": 0, "seek": seek})
    assert going is not None and going["planned"] == NOW and going["moved"] and going["log"] == OLD_LOG
    assert abs(going["time"] + 1 - (NOW - ago * SECOND)) < (60 * SECOND if seek == "earliest" else 1)


def test_a_time_that_was_set_and_that_the_log_does_not_hold_is_told() -> None:
    before = {"generation": 0, "time": NOW - 600 * SECOND, "planned": 0, "seek": "time"}
    with pytest.raises(
        DataLost, match=r"does not go back to 2.*, the position that was set: its ttl is 300 s; not read"
    ):
        resume(ttl=300).moved(before)
    assert resume(ttl=300, lossy=True).moved(before) is not None
    # What is only begun with does not have to be there; what is required does.
    assert resume(ttl=300).moved(sought(NOW - 600 * SECOND, required=NOW - 200 * SECOND)) is not None
    with pytest.raises(DataLost, match="does not go back to 2"):
        resume(ttl=300).moved(sought(None, required=NOW - 400 * SECOND))


def test_two_logs_are_told_apart_only_if_their_ids_are_known() -> None:
    assert resume(log="").moved(offset(600)) is None
    assert "log" not in resume(log="").offset(Position(7, 5, 6))
    assert replace(Position(7, 5, 6), planned=7).offset() == {"generation": 7, "time": 5, "planned": 7}
