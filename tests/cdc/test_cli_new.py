"""`penstock new` on a real database: the file that it writes is a pipeline that runs."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cassandra.cluster import Session
from waiting import PATIENCE, patience

from penstock.cli.main import main
from penstock.local.services import Services

LOGGED = "WITH cdc = {'enabled': true, 'preimage': 'full', 'postimage': true}"


@pytest.fixture(scope="module")
def tables(cql: Session, keyspace: str) -> Iterator[str]:
    columns = "(customer text, id int, total decimal, PRIMARY KEY (customer, id))"
    cql.execute(f"CREATE TABLE {keyspace}.orders {columns} {LOGGED}")
    cql.execute(f"CREATE TABLE {keyspace}.quiet (id int PRIMARY KEY, note text)")
    cql.execute(f'CREATE TABLE {keyspace}."Class" (id int PRIMARY KEY, "my note" text)')
    yield keyspace


def new(folder: Path, services: Services, *words: str) -> subprocess.CompletedProcess[str]:
    addresses = ["--hosts", services.cql, "--servers", services.kafka]
    command = [sys.executable, "-m", "penstock", "new", *words, *addresses]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE, check=False, stdin=subprocess.DEVNULL
    )


@pytest.mark.slow
def test_the_file_is_a_pipeline_that_runs(tmp_path: Path, services: Services, cql: Session, tables: str) -> None:
    ran = new(tmp_path, services, f"{tables}.orders", "--prefix", "shop")
    assert (ran.returncode, ran.stderr) == (0, "")
    topic = f"shop.{tables}.orders"
    assert ran.stdout.splitlines() == [
        f"wrote orders.py: the changes of {tables}.orders become events in the topic {topic}",
        "next: penstock check orders.py:orders, then penstock run orders.py:orders",
    ]
    text = (tmp_path / "orders.py").read_text()
    assert "# Key: customer text, id int; columns: total decimal" in text and 'images="full"' in text
    cql.execute(f"INSERT INTO {tables}.orders (customer, id, total) VALUES ('ann', 1, 9.99)")
    program = [sys.executable, "-m", "penstock"]
    with subprocess.Popen(
        [*program, "run", "orders.py:orders"], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    ) as running:
        tail = [*program, "topics", "tail", topic, "--from", "earliest", "--limit", "1", "--servers", services.kafka]
        event = subprocess.run(tail, timeout=patience(300), capture_output=True, text=True, check=True).stdout
        running.terminate()
        running.communicate(timeout=patience(300))
    assert '"customer":"ann"' in event.replace(" ", "") and running.returncode == 0
    again = new(tmp_path, services, f"{tables}.orders")
    assert again.returncode == 1 and "there is a file orders.py" in again.stderr
    assert (tmp_path / "orders.py").read_text() == text


@pytest.mark.slow
def test_a_table_without_a_log_is_changed_only_on_request(
    tmp_path: Path, services: Services, cql: Session, tables: str
) -> None:
    refused = new(tmp_path, services, f"{tables}.quiet")
    assert refused.returncode == 1 and not list(tmp_path.iterdir())
    statement = refused.stderr.split('penstock cql "')[1].rstrip().removesuffix('"').replace('\\"', '"')
    assert statement == f'ALTER TABLE "{tables}"."quiet" {LOGGED}'
    answer, others = pty.openpty()
    os.write(answer, b"yes\n")
    words = [f"{tables}.quiet", "--hosts", services.cql, "--servers", services.kafka]
    process = subprocess.run(
        [sys.executable, "-m", "penstock", "new", *words],
        cwd=tmp_path,
        stdin=others,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    os.close(answer)
    os.close(others)
    assert process.returncode == 0, process.stderr
    assert f"enabled the change log of {tables}.quiet" in process.stdout
    assert 'images="full"' in (tmp_path / "quiet.py").read_text()


@pytest.mark.parametrize(
    ("preimage", "postimage", "images"),
    [
        ("'full'", "true", 'images="full"'),
        ("true", "true", 'images="full"'),
        ("true", "false", 'images=("full", "none")'),
        ("false", "true", 'images=("none", "full")'),
        ("false", "false", "name='imaged')"),
    ],
)
def test_the_file_has_the_images_of_the_log(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    services: Services,
    cql: Session,
    tables: str,
    preimage: str,
    postimage: str,
    images: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    options = f"{{'enabled': true, 'preimage': {preimage}, 'postimage': {postimage}}}"
    cql.execute(f"CREATE TABLE IF NOT EXISTS {tables}.imaged (id int PRIMARY KEY)")
    cql.execute(f"ALTER TABLE {tables}.imaged WITH cdc = {options}")
    assert main(["new", f"{tables}.imaged", "--hosts", services.cql, "--servers", services.kafka]) == 0
    assert images in (tmp_path / "imaged.py").read_text()


def test_names_of_cql_become_names_of_python(tmp_path: Path, services: Services, tables: str) -> None:
    ran = new(tmp_path, services, f'{tables}."Class"', "--alter")
    assert ran.returncode == 0, ran.stderr
    text = (tmp_path / "class_.py").read_text()
    compile(text, "class_.py", "exec")
    assert "def class_(spark):" in text and f"'{tables}.\"Class\"'" in text


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("{}.orderz", "there is no table .*orders"),
        ("orders", "is not the name of a table"),
        ("nowhere.orders", "check the name"),
    ],
)
def test_a_wrong_table_is_told(tmp_path: Path, services: Services, tables: str, table: str, said: str) -> None:
    ran = new(tmp_path, services, table.format(tables))
    assert ran.returncode == 1 and not list(tmp_path.iterdir())
    assert re.search(said, ran.stderr), ran.stderr
