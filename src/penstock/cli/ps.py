"""`penstock ps`: lists running commands of this machine: pipelines, ingest, connectors, demos and others."""

from __future__ import annotations

import json
import os
import shlex
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path

import psutil

from penstock.cli.output import aligned, in_largest_units, printable

GONE = (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess)
"""A process may end at any moment, and may be another user's."""


@dataclass(frozen=True)
class RunningCommand:
    """A running command; `processes` and `memory` (resident bytes) count those that it has started, too.

    `listens` are the addresses on which it takes requests; processes of Spark have others.
    """

    pid: int
    command: str
    age: float
    processes: int
    memory: int
    listens: list[str]
    folder: str


def add(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object per process")
    parser.set_defaults(run=run)


def run(args: Namespace) -> int:
    running = sorted(commands(), key=lambda command: command.age, reverse=True)
    if args.json:
        for command in running:
            print(json.dumps(asdict(command)))
    elif running:
        rows = [("PID", "COMMAND", "AGE", "PROCESSES", "MEMORY", "LISTENS", "FOLDER"), *map(_row, running)]
        print(*aligned(rows), sep="\n")
    else:
        print("no command of penstock runs here; penstock status shows the local services")
    return 0


def commands() -> Iterator[RunningCommand]:
    """The running commands of penstock that this user may see, but this process."""
    for process in psutil.process_iter():
        with suppress(*GONE):
            words = _words(process.cmdline())
            # Workers of a server that are forked have its command line.
            if not words or process.pid == os.getpid() or _is_worker(process):
                continue
            all_of_it = [process, *process.children(recursive=True)]
            yield RunningCommand(
                process.pid,
                shlex.join(words),
                round(time.time() - process.create_time(), 1),
                len(all_of_it),
                sum(map(_memory, all_of_it)),
                sorted({address for member in all_of_it if _is_python(member) for address in _listens(member)}),
                _folder(process),
            )


def _words(command: Sequence[str]) -> Sequence[str]:
    """What follows `penstock` in a command line; nothing if that is another program's."""
    if not command or "python" not in Path(command[0]).name.lower():
        return ()
    if len(command) > 3 and command[1:3] == ["-m", "penstock"]:
        return command[3:]
    if len(command) > 2 and Path(command[1]).name == "penstock":
        return command[2:]
    return ()


def _is_worker(process: psutil.Process) -> bool:
    parent = process.parent()
    return parent is not None and bool(_words(parent.cmdline()))


def _is_python(process: psutil.Process) -> bool:
    with suppress(*GONE):
        return "java" not in process.name()
    return False


def _memory(process: psutil.Process) -> int:
    with suppress(*GONE):
        return int(process.memory_info().rss)
    return 0


def _listens(process: psutil.Process) -> list[str]:
    with suppress(*GONE):
        connections = process.net_connections(kind="tcp")
        return [
            f"{connection.laddr.ip}:{connection.laddr.port}"
            for connection in connections
            if connection.status == psutil.CONN_LISTEN
        ]
    return []


def _folder(process: psutil.Process) -> str:
    with suppress(*GONE):
        return str(process.cwd())
    return ""


def _row(command: RunningCommand) -> tuple[str, ...]:
    age, memory = in_largest_units(timedelta(seconds=command.age)), f"{command.memory >> 20} MiB"
    listens = ", ".join(command.listens) or "-"
    return (
        str(command.pid),
        printable(command.command),
        age,
        str(command.processes),
        memory,
        listens,
        printable(command.folder),
    )
