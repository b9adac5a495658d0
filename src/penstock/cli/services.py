"""`penstock up` and `down`: the local services; and what other commands need of them."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

from penstock.cli.arguments import port
from penstock.database.access import Access
from penstock.errors import PenstockError
from penstock.local import cql_node, kafka_broker, services
from penstock.local.service import Service
from penstock.local.services import ROOT, Status


def up(parser: argparse.ArgumentParser) -> None:
    add_root(parser)
    for name in ("kafka", "cql", "registry", "postgres"):
        parser.add_argument(f"--{name}-port", type=port, metavar="PORT", help="instead of a free one")
    parser.add_argument("--clean", action="store_true", help="stop running services and delete the old data first")
    names = [service.name for service in services.ALL]
    parser.add_argument("--only", choices=names, action="append", help="start only this service; may be repeated")
    extra = [service.name for service in services.EXTRA]
    parser.add_argument(
        "--with", choices=extra, action="append", default=[], dest="also", help="also start this service"
    )
    parser.set_defaults(run=_up)


def down(parser: argparse.ArgumentParser) -> None:
    add_root(parser)
    parser.set_defaults(run=_down)


def add_root(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--root", type=Path, default=ROOT, help="folder for data, logs and pids (default: %(default)s)")


def kafka(root: Path) -> str:
    """The address of the Kafka that `penstock up` started; raises PenstockError if it does not run."""
    return _address(root, kafka_broker.SERVICE, "Kafka", "--servers")


def cql(root: Path) -> str:
    """The address of the database that `penstock up` started; raises PenstockError if it does not run."""
    return _address(root, cql_node.SERVICE, "database", "--hosts")


def add_database(parser: argparse.ArgumentParser) -> None:
    """Add how to reach the database; `access` reads it."""
    parser.add_argument("--hosts", metavar="HOST:PORT,...", help="the database; replaces the database of --root")
    parser.add_argument("--user", default="", help="the database's user; the password is read from CQL_PASSWORD")
    parser.add_argument("--ca", default="", metavar="FILE.pem", help="use TLS, and trust this authority")
    parser.add_argument("--tls", action="store_true", help="use TLS, and trust the system's authorities")
    add_root(parser)


def access(args: argparse.Namespace, command: str) -> Access:
    """How to reach the database; raises PenstockError if none is given and none runs here."""
    options = {"user": args.user, "tls": args.tls, "ca": args.ca}
    if args.user:
        options["password"] = os.environ.get("CQL_PASSWORD", "")
    return Access.of(args.hosts or cql(args.root), options, where=command)


def _address(root: Path, service: Service, what: str, option: str) -> str:
    for status in services.status(root):
        if status.name == service.name and status.state == "running" and status.address:
            return status.address
    raise PenstockError(f"No {what} runs here", where=str(root), next=f"run: penstock up, or give {option} HOST:PORT")


def _up(args: argparse.Namespace) -> int:
    began = time.monotonic()
    running = services.up(
        args.root,
        kafka_port=args.kafka_port,
        cql_port=args.cql_port,
        registry_port=args.registry_port,
        postgres_port=args.postgres_port,
        clean=args.clean,
        only=args.only,
        also=args.also,
        say=lambda line: print(line, flush=True),
    )
    serving = [status for status in services.status(args.root) if status.name in running.records]
    for status in serving:
        print(_line(status))
    memory = sum(status.memory or 0 for status in serving)
    print(f"serving after {time.monotonic() - began:.1f} s, {memory >> 20} MiB resident")
    return 0


def _down(args: argparse.Namespace) -> int:
    stopped = services.down(args.root)
    print(f"stopped {' and '.join(stopped)}" if stopped else "nothing was running")
    return 0


def lines(status: Status) -> list[str]:
    """A service as `penstock status` shows it."""
    died = [f"           ended without `penstock down`; log: {status.log}"] if status.state == "died" else []
    return [_line(status), *died]


def _line(status: Status) -> str:
    memory = f"{status.memory >> 20} MiB" if status.memory else ""
    process = f"pid {status.pid}" if status.pid else ""
    return f"{status.name:<10} {status.state:<8} {status.address or '':<16} {process:<12} {memory}".rstrip()
