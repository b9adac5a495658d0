"""`penstock run` with two sinks: first one breaks, then the other; the query stops, and continues from there."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from postgres_server import execute, query, require_postgres
from waiting import PATIENCE, until

from penstock.local import services

pytestmark = pytest.mark.kill

FILE = Path(__file__).parent / "files" / "both.py"
FEW, MANY = 100, 50_000
ROOM = 64 << 10
"""Most bytes of a file: enough for Spark's own files, too few for a file of MANY numbers."""


def arrive(folder: Path, name: str, rows: int) -> list[int]:
    """New numbers for the stream to find, in a file that appears complete."""
    numbers = [random.getrandbits(62) for _ in range(rows)]
    pq.write_table(pa.table({"id": numbers}), folder / f".{name}")
    (folder / f".{name}").rename(folder / name)
    return numbers


@pytest.mark.slow
def test_each_sink_may_break_and_nothing_is_lost_or_twice(tmp_path: Path) -> None:
    root, arriving, folder, checkpoints = (tmp_path / name for name in ("services", "in", "out", "checkpoints"))
    arriving.mkdir()
    with require_postgres():
        running = services.up(root, only=["postgres"])
    url, said, commits = running.postgres, tmp_path / "said", checkpoints / "both" / "commits"

    def written() -> int:
        return int(query(url, "SELECT count(*) FROM numbers")[0][0])

    def await_that(reached: Callable[[], bool], what: str) -> None:
        until(lambda: process.poll() is not None or reached(), what, PATIENCE)
        assert process.poll() is None, said.read_text()

    def told(text: str) -> None:
        await_that(lambda: text in said.read_text(), text)

    execute(url, "CREATE TABLE numbers (id bigint)")
    environment = {"ARRIVING": str(arriving), "FOLDER": str(folder), "TABLE": "numbers", "POSTGRES": url}
    command = [sys.executable, "-m", "penstock", "run", f"{FILE}:both", "--checkpoints", str(checkpoints)]
    with said.open("w") as output:
        process = subprocess.Popen(command, env=os.environ | environment, stderr=output, start_new_session=True)
    try:
        sent = arrive(arriving, "0", FEW)
        await_that((commits / "0").exists, "end of the first batch")
        assert written() == FEW
        os.kill(running.pids["postgres"], signal.SIGKILL)
        sent += arrive(arriving, "1", FEW)
        told("PostgreSQL is unavailable")
        # The batch is in one sink, waits for the other, and is not done.
        assert ds.dataset(folder).count_rows() == 2 * FEW and not (commits / "1").exists()
        services.up(root, only=["postgres"])
        await_that(lambda: written() == 2 * FEW, "rows after PostgreSQL came back")
        jvm = int(json.loads((checkpoints / "both.lock").read_text())["jvm"])
        resource.prlimit(jvm, resource.RLIMIT_FSIZE, (ROOM, resource.RLIM_INFINITY))
        sent += arrive(arriving, "2", MANY)
        told("files cannot be written: File too large")
        assert ds.dataset(folder).count_rows() == 2 * FEW == written()
        resource.prlimit(jvm, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        await_that(lambda: written() == len(sent), "rows after the disk had room")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
        assert sorted(row[0] for row in query(url, "SELECT id FROM numbers")) == sorted(sent)
        assert sorted(ds.dataset(folder).to_table()["id"].to_pylist()) == sorted(sent)
        assert len(list(folder.glob("batch=*"))) == 3 and not list((folder / "_staging").iterdir())
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        services.down(root)
