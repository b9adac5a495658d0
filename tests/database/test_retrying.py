"""Which faults pass, how long they are waited for, and the errors for those that stay; the clock is the test's."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from cassandra import (
    AlreadyExists,
    InvalidRequest,
    OperationTimedOut,
    ReadFailure,
    ReadTimeout,
    Unauthorized,
    Unavailable,
    UnresolvableContactPoints,
    WriteFailure,
    WriteTimeout,
)
from cassandra.cluster import NoHostAvailable
from cassandra.connection import ConnectionException, ConnectionShutdown
from cassandra.protocol import OverloadedErrorMessage, ServerError, SyntaxException

from penstock.database import retrying as module
from penstock.database.retrying import DatabaseUnavailable, retrying, telling
from penstock.errors import PenstockError, SchemaChanged
from penstock.process import waits
from penstock.process.waits import Wait

PASSING = [
    ConnectionException("reset"),
    ConnectionShutdown("closed"),
    NoHostAvailable("no host", {"10.0.0.1:9042": ConnectionException("refused")}),
    OperationTimedOut(),
    OverloadedErrorMessage(0x1001, "busy", None),
    ReadFailure("tombstones"),
    ReadTimeout("slow"),
    ServerError(0, "broken", None),
    Unavailable("no quorum"),
    UnresolvableContactPoints({}),
    WriteFailure("full", write_type=0),
    WriteTimeout("slow", write_type=0),
]


class Clock:
    """A clock that only pauses move."""

    def __init__(self) -> None:
        self.now, self.pauses = 100.0, list[float]()

    def monotonic(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=made.monotonic))
    monkeypatch.setattr(module, "Wait", lambda what, patience: Wait(what, patience, made.now))
    monkeypatch.setattr(waits, "time", SimpleNamespace(monotonic=made.monotonic))
    monkeypatch.setattr(module, "pause", made.pause)
    return made


def failing(times: int, error: Exception) -> Callable[[], str]:
    """A call that fails so many times."""
    left = iter([error] * times)

    def call() -> str:
        for found in left:
            raise found
        return "done"

    return call


def attempt(call: Callable[[], Any], seconds: float = 60) -> Any:
    return retrying(call, what="reading rows", where="ks.t at db", patience=timedelta(seconds=seconds))


@pytest.mark.parametrize("error", PASSING, ids=lambda error: type(error).__name__)
def test_a_fault_that_passes_is_not_seen(clock: Clock, error: Exception) -> None:
    assert attempt(failing(3, error)) == "done"
    assert len(clock.pauses) == 3


def test_pauses_grow_to_two_seconds_and_differ_between_processes(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    bounds: list[tuple[float, float]] = []

    def longest(low: float, high: float) -> float:
        bounds.append((low, high))
        return high

    monkeypatch.setattr(module, "random", SimpleNamespace(uniform=longest))
    assert attempt(failing(8, ReadTimeout("slow"))) == "done"
    assert clock.pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    assert all(low == high / 2 for low, high in bounds)


def test_patience_ends_with_the_fault_of_each_node(clock: Clock) -> None:
    faults = {"10.0.0.1:9042": ConnectionException("refused"), "10.0.0.2:9042": OperationTimedOut()}
    began = clock.now
    with pytest.raises(DatabaseUnavailable) as raised:
        attempt(failing(10_000, NoHostAvailable("no host", faults)), seconds=30)
    assert 25 < clock.now - began <= 30
    assert raised.value.retriable and raised.value.where == "ks.t at db"
    assert str(raised.value).startswith("reading rows failed for 30 s: 10.0.0.1:9042: refused; 10.0.0.2:9042: ")
    assert "a restarted query continues where it stopped" in str(raised.value)


def test_a_refused_connection_is_told_without_the_drivers_list_of_attempts(clock: Clock) -> None:
    refused = OSError(111, "Tried connecting to [('10.0.0.1', 9042)]. Last error: Connection refused")
    with pytest.raises(DatabaseUnavailable, match=r"for 0 s: 10\.0\.0\.1:9042: Connection refused \(ks\.t at db\)"):
        attempt(failing(1, NoHostAvailable("no host", {"10.0.0.1:9042": refused})), seconds=0)


def test_without_patience_a_call_is_made_once(clock: Clock) -> None:
    with pytest.raises(DatabaseUnavailable, match=r"reading rows failed for 0 s: ReadTimeout: .*slow"):
        attempt(failing(1, ReadTimeout("slow")), seconds=0)
    assert not clock.pauses


def test_a_long_wait_is_told_at_doubling_times(
    clock: Clock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "random", SimpleNamespace(uniform=lambda low, high: high))
    database = "the database (reading rows, ks.t at db)"
    with caplog.at_level(logging.INFO, waits.__name__):
        attempt(failing(3, ConnectionException("reset")))
        assert not caplog.records
        attempt(failing(12, ConnectionException("reset")))
    said = f"waiting for {database} for {{}}, at most 1 min: ConnectionException: reset"
    waited = [f"{said.format('2 s')}. Next: {module.CHECK}", *(said.format(time) for time in ("3 s", "7 s"))]
    assert [record.getMessage() for record in caplog.records] == [*waited, f"{database}: there after 15 s"]


def test_a_name_without_an_address_is_told_in_words_and_tried_again(clock: Clock) -> None:
    with pytest.raises(DatabaseUnavailable, match="no address is known for the host; check its name"):
        attempt(failing(10_000, UnresolvableContactPoints({})), seconds=5)
    assert attempt(failing(3, UnresolvableContactPoints({}))) == "done"


@pytest.mark.parametrize("error", [InvalidRequest("no column"), ValueError("x"), SchemaChanged("changed")])
def test_other_errors_end_the_call_at_once(clock: Clock, error: Exception) -> None:
    with pytest.raises(type(error)) as raised:
        attempt(failing(1, error))
    assert raised.value is error and not clock.pauses


def test_a_missing_permission_ends_the_call_with_the_grant_to_make(clock: Clock) -> None:
    with pytest.raises(
        PenstockError, match=r"no permission: .*ann has no SELECT.*\(ks.t at db\).*GRANT SELECT"
    ) as raised:
        attempt(failing(1, Unauthorized("User ann has no SELECT permission")))
    assert not raised.value.retriable and not clock.pauses


def told(error: Exception) -> PenstockError:
    with pytest.raises(PenstockError) as raised, telling(where="ks at db", next="check the keyspace's name"):
        raise error
    return raised.value


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (InvalidRequest('Error from server: code=2200 [Invalid query] message="unknown column x"'), "unknown column x"),
        (SyntaxException(0x2000, 'line 1: no viable alternative at "("', None), 'line 1: no viable alternative at "("'),
        (AlreadyExists("ks", "t"), "Table 'ks.t' already exists"),
        (InvalidRequest("plain words"), "plain words"),
    ],
)
def test_a_refused_request_is_told_in_the_node_s_words(error: Exception, message: str) -> None:
    found = told(error)
    assert str(found) == f"the database refuses the request: {message} (ks at db). Next: check the keyspace's name"
    assert not found.retriable


@pytest.mark.parametrize("error", PASSING, ids=lambda error: type(error).__name__)
def test_a_database_that_does_not_answer_is_told_as_such(error: Exception) -> None:
    found = told(error)
    assert isinstance(found, DatabaseUnavailable) and found.retriable
    assert found.what.startswith("the database does not answer: ") and found.where == "ks at db"


def test_a_permission_is_told_there_too_and_our_own_errors_stay() -> None:
    assert told(Unauthorized("no MODIFY")).what == "no permission: no MODIFY"
    own = SchemaChanged("the table has changed")
    assert told(own) is own
