"""A trial goes on behind a fault, and tells those that do not depend on each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.border.public import public
from penstock.border.trial import Unknown, on_trial
from penstock.errors import Missing, PenstockError


@public("read")
def read(table: str) -> Any:
    if table.startswith("no"):
        raise Missing(f"there is no table {table}", where="the database", next="create it")
    if table == "away":
        raise Away("the database is away")
    return [table]


@public("joined")
def joined(frame: list[str], table: str) -> list[str]:
    return frame + list(read(table))


class Away(PenstockError):
    retriable = True


def faults(code: Callable[[], object]) -> list[str]:
    with pytest.raises(PenstockError) as caught, on_trial(lambda error: error.what == "final"):
        code()
    return str(caught.value).splitlines()


def test_without_a_trial_the_first_fault_ends_the_code() -> None:
    with pytest.raises(Missing, match="there is no table no1"):
        read("no1")


def test_without_faults_the_result_is_that_of_the_code() -> None:
    with on_trial(lambda error: False):
        assert joined(read("a"), "b") == ["a", "b"]


def test_faults_that_do_not_depend_on_each_other_are_told_with_their_lines() -> None:
    def code() -> None:
        changes = read("no1")
        joined(
            changes.select("id").where(changes["id"] > 1),
            "no2",
        )
        read(3)  # type: ignore[arg-type]
        for row in joined(changes, "b"):
            raise AssertionError(row)

    first, *lines = faults(code)
    assert first == "there are 3 faults:"
    assert [line.split(" (")[0].strip() for line in lines] == [
        "1. there is no table no1",
        "2. there is no table no2",
        "3. the argument table is an int",
    ]
    assert 'test_trial.py, line 51: changes = read("no1"), the database). Next: create it' in lines[0]
    assert ': joined( changes.select("id").where(changes["id"] > 1), "no2", ), the database)' in lines[1]


def test_what_fails_because_of_an_unknown_part_is_not_told() -> None:
    def code() -> None:
        unknown = read("no1")
        assert isinstance(unknown.select(F="x"), Unknown)
        joined(unknown, "b")
        raise TypeError(f"{unknown} is no frame")

    (told,) = faults(code)
    assert told.startswith("there is no table no1")


def test_a_server_that_is_away_ends_the_trial() -> None:
    def code() -> None:
        read("no1")
        read("away")
        read("no2")

    assert [line.split(" (")[0] for line in faults(code)][1:] == [
        "  1. there is no table no1",
        "  2. the database is away",
    ]


def test_an_error_without_faults_is_raised_as_it_is() -> None:
    with pytest.raises(ZeroDivisionError), on_trial(lambda error: False):
        raise ZeroDivisionError
