"""Entry point: loads only the chosen command, and turns errors into one line and an exit code."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from penstock import __version__
from penstock.errors import PenstockError

COMMANDS = {
    "up": ("penstock.cli.up", "start a Kafka broker and a CQL database on this machine"),
    "down": ("penstock.cli.down", "stop the services that `up` started"),
    "status": ("penstock.cli.status", "show the services, their addresses and memory"),
    "run": ("penstock.cli.run", "run a pipeline from a Python file"),
    "checkpoints": ("penstock.cli.checkpoints", "show the positions of pipelines, reset them or set them to a time"),
    "connect": ("penstock.cli.connect", "serve Kafka Connect's REST API and run the CDC connector"),
    "state": ("penstock.cli.state", "show the state of queries: windows, tables, counts"),
    "ingest": ("penstock.cli.ingest", "take events by HTTP, validate them and write them to Kafka"),
    "topics": ("penstock.cli.topics", "list Kafka's topics, count or show their records"),
    "erase": ("penstock.cli.erase", "delete a person from the tables of matching, and verify that nothing is left"),
    "segment": ("penstock.cli.segment", "count the members of segments, and deliver them to a topic"),
    "compile": ("penstock.cli.compile", "compile ahead of the first use, for example for an image"),
    "demo": ("penstock.cli.demo", "show changes becoming Kafka events, and prove that none was lost"),
}

INTERRUPTED = 130  # what shells report for a program ended by Ctrl-C


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    args = _parser(words[0] if words else "").parse_args(words)
    try:
        return int(args.run(args))
    except PenstockError as problem:
        print(f"penstock: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED


def _parser(chosen: str) -> argparse.ArgumentParser:
    """The parser of all commands, with the options of the chosen one: loading the others would take seconds."""
    parser = argparse.ArgumentParser(prog="penstock", description="Event streaming for CQL databases, Kafka and Spark.")
    parser.add_argument("--version", action="version", version=f"penstock {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, (module, line) in COMMANDS.items():
        command = commands.add_parser(name, help=line, description=f"{line[0].upper()}{line[1:]}.")
        if name == chosen:
            implementation = import_module(module)
            implementation.add(command)
            command.set_defaults(run=implementation.run)
    return parser
