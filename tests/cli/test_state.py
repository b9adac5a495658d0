"""`penstock state` on folders without Spark, and on a PostgreSQL that is away."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., Any]
AWAY = "postgresql://nobody@127.0.0.1:1/none"
ACTIONS = [["list"], ["get", "orders", "a"], ["scan", "orders"]]


@pytest.fixture(autouse=True)
def _no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **settings: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr("penstock.spark_runtime.session.spark", refuse)


@pytest.mark.parametrize("words", ACTIONS, ids=lambda words: words[0])
def test_a_folder_that_is_missing_is_told_before_spark_starts(
    tmp_path: Path, penstock: Command, words: list[str]
) -> None:
    ran = penstock("state", *words, "--checkpoints", tmp_path / "nowhere")
    assert (ran.code, ran.out) == (1, "") and ran.err.count("\n") == 1
    assert str(tmp_path / "nowhere") in ran.err and ". Next: " in ran.err


@pytest.mark.parametrize("words", ACTIONS, ids=lambda words: words[0])
def test_a_database_that_is_away_is_one_line_without_its_password(penstock: Command, words: list[str]) -> None:
    ran = penstock("state", *words, "--postgres", AWAY.replace("nobody", "nobody:hidden"))
    assert (ran.code, ran.out) == (1, "") and ran.err.startswith("penstock: ")
    assert "127.0.0.1" in ran.err and "hidden" not in ran.err and "Traceback" not in ran.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["get", "orders"], "the following arguments are required: KEY"),
        (["get"], "the following arguments are required: NAME, KEY"),
        (["scan"], "the following arguments are required: NAME"),
        (["scan", "orders", "--limit", "0"], "argument --limit: '0' is not a number, 1 or more"),
        (["get", "orders", "a", "--limit=-5"], "argument --limit: '-5' is not a number, 1 or more"),
        (["list", "--limit", "5"], "unrecognized arguments: --limit 5"),
    ],
    ids=str,
)
def test_wrong_usage_is_told_with_the_argument(penstock: Command, words: list[str], said: str) -> None:
    ran = penstock("state", *words)
    assert ran.code == 2 and said in ran.err
