"""Entry point: loads only the chosen command, and turns errors into one line and an exit code."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import NamedTuple

from penstock import __version__, extras
from penstock.cli.arguments import CommandParser, add_command, as_examples
from penstock.errors import PenstockError


class Command(NamedTuple):
    """`add`, below `penstock.cli`, adds the command's options; `line` is its line in the help."""

    add: str
    line: str
    examples: tuple[str, ...]


COMMANDS = {
    "up": Command(
        "services.up",
        "start a Kafka broker and a CQL database on this machine",
        ("up", "up --kafka-port 9092 --cql-port 9042", "up --with registry --with postgres"),
    ),
    "down": Command("services.down", "stop the services that `up` started", ("down",)),
    "status": Command(
        "status.add",
        "show the local services, and the state, lag and delay of pipelines and connectors",
        ("status", "status --checkpoints .penstock/checkpoints", "status --json"),
    ),
    "run": Command(
        "run.add",
        "run a pipeline from a Python file",
        ("run shop.py:orders", "run shop.py:orders --once", "run shop.py:orders --cores 8 --log json"),
    ),
    "new": Command(
        "new.add",
        "write a pipeline file for the changes of a table",
        (
            "new shop.orders",
            "new shop.orders --file orders.py --alter",
            "new shop.orders --hosts cql:9042 --servers k:9092",
        ),
    ),
    "check": Command(
        "check.add",
        "make the queries of a pipeline as a run would, and start none",
        ("check shop.py:orders", "check shop.py:orders --json"),
    ),
    "graph": Command(
        "graph.add",
        "show what the queries of a pipeline read, keep and write",
        ("graph shop.py:orders", "graph shop.py:orders --format mermaid", "graph shop.py:orders --format json"),
    ),
    "checkpoints": Command(
        "checkpoints.add",
        "show the positions of pipelines, reset them or set them to a time",
        ("checkpoints list", 'checkpoints set orders --to "-2 hours" --dry-run'),
    ),
    "ps": Command("ps.add", "list the running commands of this machine", ("ps", "ps --json")),
    "connect": Command(
        "connect.add",
        "serve Kafka Connect's REST API and run the CDC connector",
        ("connect", "connect worker.properties", "connect --servers kafka:9092 --listen http://127.0.0.1:8083"),
    ),
    "console": Command(
        "console.add",
        "serve a web page with pipelines, lag, topics, dead letters, connectors and state",
        (
            "console",
            "console --allow-actions",
            "console --target http://10.0.0.5:9400 --servers kafka:9092",
            "console --servers kafka:9093 --command-config client.properties",
        ),
    ),
    "state": Command(
        "state.add", "show the state of queries: windows, tables, counts", ("state list", "state get counts ann")
    ),
    "ingest": Command(
        "ingest.add",
        "take events by HTTP, validate them and write them to Kafka",
        ("ingest --topics clicks,orders", "ingest ingest.toml --workers 4", "ingest --new-key shop"),
    ),
    "topics": Command(
        "topics.add",
        "list and change Kafka's topics, count or show their records",
        (
            "topics list",
            "topics tail shop.orders --from earliest",
            "topics list --servers kafka:9093 --command-config client.properties",
        ),
    ),
    "groups": Command(
        "groups.add", "list Kafka's consumer groups with their lag", ("groups list", "groups describe shop")
    ),
    "cql": Command(
        "cql.add",
        "run CQL statements, or type them at a prompt",
        (
            'cql "SELECT * FROM shop.orders LIMIT 10"',
            "cql --file schema.cql --hosts 127.0.0.1:9042",
            "cql",
        ),
    ),
    "erase": Command(
        "erase.add",
        "delete a person from the tables of matching, and verify that nothing is left",
        ("erase email_hash 5d41402a --keyspace ids --hosts 127.0.0.1:9042",),
    ),
    "segment": Command(
        "segment.add",
        "count the members of segments, and deliver them to a topic",
        (
            "segment tables --keyspace seg",
            'segment count "buyers - returning" --keyspace seg --since 2026-11-01',
        ),
    ),
    "replicate": Command(
        "replicate.add",
        "keep tables of one cluster equal to tables of another",
        (
            "replicate shop.orders --from 10.0.0.1 --to 10.1.0.1 --name orders --create",
            "replicate shop.orders copy.orders --from 10.0.0.1 --to 10.0.0.1 --name shop --also shop.items=copy.items",
        ),
    ),
    "verify": Command(
        "verify.add",
        "compare a table of one cluster with a table of another, and show what differs",
        (
            "verify shop.orders --from 10.0.0.1 --to 10.1.0.1",
            'verify shop.orders copy.orders --from 10.0.0.1 --to 10.0.0.1 --settle "0 seconds" --json',
            "verify shop.orders --from 10.0.0.1 --to 10.1.0.1 --repair",
        ),
    ),
    "dashboards": Command(
        "dashboards.add",
        "write dashboards for Grafana and alerts for Prometheus",
        ("dashboards --out monitoring", "dashboards --out monitoring --runbooks https://docs.example/alerts.html"),
    ),
    "compile": Command(
        "compile.add", "compile ahead of the first use, for example for an image", ("compile", "compile segments json")
    ),
    "package": Command(
        "package.add",
        "pack this Python environment for executors on other machines",
        ("package environment.tar.gz",),
    ),
    "completion": Command(
        "completion.add",
        "print what a shell needs to complete commands",
        ("completion bash", "completion zsh", "completion fish"),
    ),
    "demo": Command(
        "demo.add",
        "show changes becoming Kafka events, and prove that none was lost",
        ("demo", "demo --seconds 10 --rate 500", "demo adtech", "demo --break kafka"),
    ),
}

FIRST = ("up", "demo", "run shop.py:orders", "topics tail shop.orders", "run --help")

EXTRAS = {
    "connect": "connect",
    "console": "console",
    "cql": "cql",
    "demo": "demo",
    "erase": "segments",
    "ingest": "ingest",
    "new": "cql",
    "replicate": "cql",
    "segment": "segments",
    "state": "state",
    "verify": "cql",
}
"""The extra with all that a command needs."""

INTERRUPTED = 130  # what shells report for a program ended by Ctrl-C


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    if "_ARGCOMPLETE" in os.environ:
        from penstock.cli import completion

        completion.answer(_parser)
    words = list(sys.argv[1:] if arguments is None else arguments)
    chosen = words[0] if words else ""
    try:
        with _extra_of(chosen):
            args = _parser(chosen).parse_args(words or ["--help"])
            return int(args.run(args))
    except PenstockError as problem:
        print(f"penstock: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED


@contextmanager
def _extra_of(command: str) -> Iterator[None]:
    """Name the extra of a package that is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise extras.missing(error, f"penstock {command}", EXTRAS.get(command)) from error


def _parser(chosen: str) -> argparse.ArgumentParser:
    """The parser of all commands, with the options of the chosen one: loading the others would take seconds."""
    parser = CommandParser(
        prog="penstock",
        description="Event streaming for CQL databases, Kafka and Spark.",
        epilog=as_examples(FIRST),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"penstock {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        added = add_command(commands, name, command.line, *command.examples)
        if name == chosen:
            module, _, add = command.add.partition(".")
            getattr(import_module(f"penstock.cli.{module}"), add)(added)
    return parser
