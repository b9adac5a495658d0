"""What a new user has and does: an environment with the wheel, the documents' commands, and the usual mistakes."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from terminal import INTERRUPT, PATIENCE, Terminal
from wheels import UV, run

OWN = ("penstock", "_penstock", "__editable__", "__pycache__", "pyspark_penstock")
"""Beginnings of names in site-packages that come with the wheel instead."""
LEFT_OUT = ("PYTHONPATH", "JDK_JAVA_OPTIONS", "VIRTUAL_ENV", "PENSTOCK_LOG", "PENSTOCK_TEST_SERVICES", "COLUMNS")
"""Variables of the tests that a user does not have."""


def borrowing(folder: Path, wheel: Path, without: tuple[str, ...] = ()) -> Path:
    """The programs of an environment with the wheel, which uses the packages of this one, except those `without`.

    A full installation is the same for the commands, and takes a minute.
    """
    packages = folder / "packages"
    packages.mkdir(parents=True)
    for one in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if not one.name.startswith((*OWN, *without)) and one.suffix != ".pth":
            (packages / one.name).symlink_to(one)
    run(*UV, "venv", "--python", sys.executable, folder / "venv")
    python = folder / "venv/bin/python"
    run(*UV, "pip", "install", "--no-deps", "--python", python, wheel)
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])").strip()
    (Path(site) / "packages.pth").write_text(f"{packages}\n")
    return python.parent


def installing(folder: Path, wheel: Path, extras: str) -> Path:
    """The programs of an environment into which the wheel was installed with its extras."""
    run(*UV, "venv", "--python", sys.executable, folder / "venv")
    python = folder / "venv/bin/python"
    run(*UV, "pip", "install", "--python", python, f"{wheel}[{extras}]")
    return python.parent


def environment(programs: Path) -> dict[str, str]:
    """The variables of a user who has activated the environment."""
    kept = {name: value for name, value in os.environ.items() if name not in LEFT_OUT}
    return kept | {"PATH": f"{programs}{os.pathsep}{kept['PATH']}", "TERM": "xterm"}


@contextmanager
def closed_port() -> Iterator[int]:
    """A port that refuses connections: it is bound, so that no other test's server gets it, and does not listen."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield int(bound.getsockname()[1])


@contextmanager
def full_disk(folder: Path) -> Iterator[Path | None]:
    """A folder on a full disk; None where this user may not mount one."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], capture_output=True, check=False
    )
    if mounted.returncode:
        yield None
        return
    try:
        with (folder / "filler").open("wb", buffering=0) as filler:
            for size in (4096, 1):
                while True:
                    try:
                        filler.write(b"x" * size)
                    except OSError:
                        break
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@dataclass(frozen=True)
class User:
    """A user in a folder; `places` are the values of names in braces in commands and messages."""

    programs: Path
    folder: Path
    places: Mapping[str, str]

    def begins(self, words: str, variables: Mapping[str, str] | None = None) -> Terminal:
        """A command without `penstock`; a word in quotes is one argument."""
        parts = re.findall(r'"([^"]*)"|(\S+)', words)
        filled = [(quoted or word).format(**self.places) for quoted, word in parts]
        more = {name: value.format(**self.places) for name, value in (variables or {}).items()}
        return Terminal([self.programs / "penstock", *filled], self.folder, environment(self.programs) | more)

    def runs(self, words: str) -> tuple[int, list[str]]:
        """The exit code and the lines of a command that ends by itself."""
        with self.begins(words) as terminal:
            return terminal.end(), terminal.lines


KEYSPACE = (
    "CREATE KEYSPACE IF NOT EXISTS {shop} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}"
)
ORDERS = (
    "CREATE TABLE IF NOT EXISTS {shop}.orders (customer text, id int, total decimal, paid boolean, "
    "PRIMARY KEY (customer, id)) WITH cdc = {{'enabled': true, 'preimage': 'full', 'postimage': true}}"
)
PLAIN = "CREATE TABLE IF NOT EXISTS {shop}.plain (id int PRIMARY KEY)"
REFUNDS = "CREATE TABLE IF NOT EXISTS {shop}.refunds (id int PRIMARY KEY) WITH cdc = {{'enabled': true}}"
INSERT = "INSERT INTO {shop}.orders (customer, id, total, paid) VALUES ('ann', 1, 9.99, false)"

PIPELINE = """
import os

import penstock as ps
from penstock import cdc, kafka


@ps.pipeline(every="1 second")
def orders(spark):
    changes = cdc.read(spark, "{shop}.{table}", hosts=os.environ.get("CQL", "{cql}"), name="orders"{more})
    return ps.write(changes, kafka.sink(prefix="shop", servers=os.environ.get("KAFKA", "{kafka}")))
"""
OPEN = "import penstock as ps\n\n\n@ps.pipeline(\ndef orders(spark):\n    return None\n"


def prepare(user: User) -> None:
    """The tables and files of the mistakes."""
    for statement in (KEYSPACE, ORDERS, PLAIN, REFUNDS, INSERT):
        code, lines = user.runs(f'cql "{statement}"')
        assert code == 0, lines
    code, lines = user.runs("segment tables --keyspace {shop}")
    assert code == 0, lines
    files = {"shop.py": ("orders", ""), "plain.py": ("plain", ""), "near.py": ("order", "")}
    files |= {"refunds.py": ("refunds", ""), "option.py": ("orders", ', imagse="full"')}
    for name, (table, more) in files.items():
        (user.folder / name).write_text(PIPELINE.format(table=table, more=more, **user.places))
    (user.folder / "open.py").write_text(OPEN)


@dataclass(frozen=True)
class Mistake:
    """A command with a mistake; `where` is what the message names, `near` the right name that it offers.

    A command that waits gets Ctrl-C, `interrupts` times, when it has said so: when a line matches `waits`. With
    `answer`, that is typed when a line asks. `spark` tells whether it starts Spark.
    """

    name: str
    words: str
    where: str
    near: str = ""
    code: int = 1
    variables: Mapping[str, str] = field(default_factory=dict)
    waits: str = ""
    interrupts: int = 1
    answer: bytes = b""
    spark: bool = False
    lacks: bool = False


ORDERS_READ = 'cql "SELECT * FROM {shop}.orders"'
MISTAKES = (
    Mistake("wrong host of the database", f"{ORDERS_READ} --hosts no-such-host.invalid:9042", "no-such-host.invalid"),
    Mistake("wrong port of the database", f"{ORDERS_READ} --hosts 127.0.0.1:{{closed}}", "127.0.0.1:{closed}"),
    Mistake("Kafka's port as the database's", f"{ORDERS_READ} --hosts {{kafka}}", "{kafka}"),
    Mistake("wrong host of Kafka", "topics list --servers no-such-host.invalid:9092", "no-such-host.invalid:9092"),
    Mistake("wrong port of Kafka", "topics tail orders --servers 127.0.0.1:{closed}", "127.0.0.1:{closed}"),
    Mistake("the database's port as Kafka's", "topics list --servers {cql}", "{cql}"),
    Mistake("no local servers", "topics list --root nowhere", "nowhere"),
    Mistake("wrong table in a statement", 'cql "SELECT * FROM {shop}.ordres"', "{shop}.ordres", near="{shop}.orders"),
    Mistake("wrong table for a new pipeline", "new {shop}.order", "{shop}.order", near="{shop}.orders"),
    Mistake("table without change log", "new {shop}.plain", "{shop}.plain", answer=b"no\n"),
    Mistake("wrong topic", "topics count {topic}s", "{topic}s", near="{topic}"),
    Mistake("missing extra", ORDERS_READ, "penstock cql", lacks=True),
    Mistake("wrong pipeline name", "run shop.py:order", "shop.py", near="orders"),
    Mistake("wrong file name", "run shops.py:orders", "shops.py", near="shop.py"),
    Mistake("file with a syntax error", "run open.py:orders", "open.py, line 4"),
    Mistake("no disk for the servers", "up --root {full}/up --only kafka", "{full}"),
    Mistake("port taken", "up --root other --only kafka --kafka-port {taken}", "127.0.0.1:{taken}"),
    Mistake("no such segment", "segment count nosuch --keyspace {shop} --since 2026-01-01", "nosuch", code=0),
    Mistake("no such segment to deliver", "segment sync nosuch --to partner --full --keyspace {shop}", "nosuch"),
    Mistake("no such checkpoint", "checkpoints show order --checkpoints {kept}", "order", near="orders"),
    Mistake("unknown option", "run shop.py:orders --chekpoints x", "--chekpoints", near="--checkpoints", code=2),
    Mistake("unknown command", "topcs list", "topcs", near="topics", code=2),
    Mistake("unknown action", "topics tial orders", "tial", near="tail", code=2),
    Mistake("wrong table in a pipeline", "run near.py:orders", "near.py, line 10", near="orders", spark=True),
    Mistake("no change log in a pipeline", "check plain.py:orders", "plain.py, line 10", spark=True),
    Mistake("unknown argument", "check option.py:orders", "option.py, line 10", near="images", spark=True),
    Mistake("checkpoint of another query", "check refunds.py:orders --checkpoints {kept}", "{kept}", spark=True),
    Mistake("no disk for a checkpoint", "run shop.py:orders --checkpoints {full}/c", "{full}"),
    Mistake(
        "wrong Kafka, checked",
        "check shop.py:orders --wait 3",
        "127.0.0.1:{closed}",
        variables={"KAFKA": "127.0.0.1:{closed}"},
        spark=True,
    ),
    Mistake(
        "wrong host of the database in a run",
        "run shop.py:orders --checkpoints wrong",
        "no-such-host.invalid:9042",
        code=0,
        variables={"CQL": "no-such-host.invalid:9042"},
        waits="waiting for the database",
        spark=True,
    ),
    Mistake(
        "wrong host of Kafka in a run",
        "run shop.py:orders --checkpoints wrong",
        "no-such-host.invalid:9092",
        code=0,
        variables={"KAFKA": "no-such-host.invalid:9092"},
        waits="waiting for Kafka",
        interrupts=2,
        spark=True,
    ),
)


class Told(NamedTuple):
    """What a mistake's message is, and what it has."""

    first: float
    seconds: float
    code: int
    message: str
    lacks: tuple[str, ...]


def make(mistake: Mistake, user: User) -> Told:
    """Make the mistake, and judge the message."""
    with user.begins(mistake.words, mistake.variables) as terminal:
        if mistake.answer:
            terminal.until("yes")
            terminal.type(mistake.answer)
        if mistake.waits:
            terminal.until(mistake.waits)
            for number in range(mistake.interrupts):
                terminal.until("waiting" if not number else "stopping")
                terminal.type(INTERRUPT)
        code = terminal.end(PATIENCE)
        pattern = mistake.waits or r"^penstock.*: "
        message = next((line for line in reversed(terminal.lines) if re.search(pattern, line)), "")
        if mistake.waits:
            message = terminal.until(pattern)
        lacks = _lacks(mistake, message, "\n".join(terminal.lines), user.places)
        return Told(terminal.first, terminal.seconds, code, message, (*lacks, *_code(mistake, code)))


def _code(mistake: Mistake, code: int) -> list[str]:
    return [] if code == mistake.code else [f"exit code {mistake.code}"]


def _lacks(mistake: Mistake, message: str, text: str, places: Mapping[str, str]) -> list[str]:
    """What the message does not have."""
    _, _, step = message.partition("Next: ")
    what = re.split(r"\(|Next: ", message.partition(": ")[2])[0]
    lacks = []
    if len(re.findall(r"[a-z]{2,}", what)) < 2 or re.search(r"\[Errno|\b[A-Z]+_[A-Z]+: |''|:\s*$", what):
        lacks.append("what")
    if mistake.where.format(**places) not in message:
        lacks.append("where")
    near = mistake.near.format(**places)
    if not (step or (mistake.code == 2 and near)) or near not in message.partition(": ")[2]:
        lacks.append("next")
    return [*lacks, *(["no Traceback"] if "Traceback" in text else [])]
