"""A new user's mistakes: each message says what is wrong, where, and what to do next."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from checkpoints import write_batches
from kafka_topics import new_topic
from new_user import MISTAKES, Mistake, User, borrowing, closed_port, full_disk, make, prepare

from penstock.checkpoint import identity
from penstock.local.services import Services

LONGEST = 60.0
"""Seconds until the first line, on any machine: a user who sees nothing gives up."""


@pytest.fixture(scope="module")
def user(services: Services, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[User]:
    """A user with the wheel, whose `.penstock` are the running servers."""
    home = tmp_path_factory.mktemp("user")
    work, kept = home / "work", home / "kept"
    work.mkdir()
    (work / ".penstock").symlink_to(services.root)
    write_batches(kept / "orders", ["{}"], committed=0)
    orders = identity.SourceIdentity("cdc", {"table": "shop.earlier", "rows": "changes"}, identity.CDC)
    (kept / "orders" / identity.FILE).write_text(identity.CheckpointIdentity((orders,), ()).text())
    with (
        new_topic(services.kafka, "mistakes", 1) as topic,
        full_disk(home / "full") as full,
        closed_port() as closed,
    ):
        places = {"cql": services.cql, "kafka": services.kafka, "taken": services.kafka.rpartition(":")[2]}
        places |= {"shop": "mistakes", "topic": topic, "closed": str(closed)}
        places |= {"kept": str(kept), "full": str(full or "")}
        made = User(borrowing(home / "user", wheel), work, places)
        prepare(made)
        yield made
    shutil.rmtree(work)


@pytest.fixture(scope="module")
def lacking(user: User, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> User:
    """The same user without the database's driver."""
    programs = borrowing(tmp_path_factory.mktemp("lacking"), wheel, without=("cassandra",))
    return User(programs, user.folder, user.places)


def _case(mistake: Mistake) -> Any:
    return pytest.param(mistake, id=mistake.name, marks=[pytest.mark.kill, pytest.mark.slow] if mistake.spark else ())


@pytest.mark.slow_after(4)
@pytest.mark.parametrize("mistake", [*map(_case, MISTAKES)])
def test_a_mistake_says_what_where_and_next(mistake: Mistake, user: User, request: pytest.FixtureRequest) -> None:
    if "{full}" in mistake.words and not user.places["full"]:
        pytest.skip("no full disk can be mounted here")
    told = make(mistake, request.getfixturevalue("lacking") if mistake.lacks else user)
    assert told.lacks == (), told
    assert told.first < LONGEST
