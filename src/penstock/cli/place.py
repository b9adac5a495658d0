"""Shared by the commands for local services: the option for their folder, and a service's status line."""

from __future__ import annotations

import argparse
from pathlib import Path

from penstock.errors import PenstockError
from penstock.local import services
from penstock.local.kafka_broker import SERVICE
from penstock.local.services import ROOT, Status


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--root", type=Path, default=ROOT, help="folder for data, logs and pids (default: %(default)s)")


def line(status: Status) -> str:
    memory = f"{status.memory >> 20} MiB" if status.memory else ""
    process = f"pid {status.pid}" if status.pid else ""
    return f"{status.name:<10} {status.state:<8} {status.address or '':<16} {process:<12} {memory}".rstrip()


def kafka(root: Path) -> str:
    """The address of the Kafka that `penstock up` started; raises PenstockError if it does not run."""
    for status in services.status(root):
        if status.name == SERVICE.name and status.state == "running" and status.address:
            return status.address
    raise PenstockError("No Kafka runs here", where=str(root), next="run: penstock up, or give --servers HOST:PORT")
