"""Entry point: loads only the chosen command, and turns errors into one line and an exit code."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module

from penstock import __version__, extras
from penstock.errors import PenstockError

COMMANDS = {
    "up": ("services.up", "start a Kafka broker and a CQL database on this machine"),
    "down": ("services.down", "stop the services that `up` started"),
    "status": ("services.status", "show the services, their addresses and memory"),
    "run": ("run.add", "run a pipeline from a Python file"),
    "checkpoints": ("checkpoints.add", "show the positions of pipelines, reset them or set them to a time"),
    "connect": ("connect.add", "serve Kafka Connect's REST API and run the CDC connector"),
    "state": ("state.add", "show the state of queries: windows, tables, counts"),
    "ingest": ("ingest.add", "take events by HTTP, validate them and write them to Kafka"),
    "topics": ("topics.add", "list Kafka's topics, count or show their records"),
    "erase": ("erase.add", "delete a person from the tables of matching, and verify that nothing is left"),
    "segment": ("segment.add", "count the members of segments, and deliver them to a topic"),
    "compile": ("compile.add", "compile ahead of the first use, for example for an image"),
    "demo": ("demo.add", "show changes becoming Kafka events, and prove that none was lost"),
}
"""The function of `penstock.cli` that adds the command's options, and the command's line in the help."""

EXTRAS = {
    "connect": "connect",
    "demo": "demo",
    "erase": "cql",
    "ingest": "ingest",
    "segment": "segments",
    "state": "state",
}
"""The extra with all that a command needs."""

INTERRUPTED = 130  # what shells report for a program ended by Ctrl-C


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
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
    parser = argparse.ArgumentParser(prog="penstock", description="Event streaming for CQL databases, Kafka and Spark.")
    parser.add_argument("--version", action="version", version=f"penstock {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, (function, line) in COMMANDS.items():
        command = commands.add_parser(name, help=line, description=f"{line[0].upper()}{line[1:]}.")
        if name == chosen:
            module, _, add = function.partition(".")
            getattr(import_module(f"penstock.cli.{module}"), add)(command)
    return parser
