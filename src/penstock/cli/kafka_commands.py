"""What the commands about Kafka share: the brokers, errors with the next step, near names, and questions."""

from __future__ import annotations

import argparse
import sys
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from datetime import timedelta
from difflib import get_close_matches
from typing import Any

from penstock.cli import services
from penstock.cli.arguments import add_command, add_command_config, add_kafkas_names, servers
from penstock.cli.command_config import security
from penstock.cli.output import to_pipe
from penstock.errors import PenstockError
from penstock.kafka.brokers import Brokers
from penstock.process.signals import run_until_interrupt
from penstock.wire.admin import Admin
from penstock.wire.errors import (
    AuthenticationFailed,
    IllegalSaslState,
    KafkaError,
    NotABroker,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanism,
)
from penstock.wire.fetcher import RecordsTooLarge
from penstock.wire.topic_records import MAX_BYTES, MORE_DECOMPRESSED, Reader

PATIENCE = timedelta(seconds=10)
"""How long offsets of a partition without a leader are waited for."""
MOST_DECOMPRESSED = MAX_BYTES + MORE_DECOMPRESSED
"""Bytes that a record batch may decompress to, unless the command says another number."""
REFUSED = (AuthenticationFailed, IllegalSaslState, NotABroker, SaslAuthenticationFailed, UnsupportedSaslMechanism)
"""What a client gets whose security differs from that of the broker's port."""


def add_brokers(parser: argparse.ArgumentParser) -> None:
    """Add which Kafka to ask, and `--json`; `brokers` reads it."""
    parser.add_argument("--servers", type=servers, metavar="HOST:PORT,...", help="Kafka; replaces the Kafka of --root")
    add_kafkas_names(parser, "--servers", "--bootstrap-server")
    add_command_config(parser)
    services.add_root(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")


def add_action(
    actions: Any, examples: dict[str, tuple[str, ...]], name: str, line: str, act: Any
) -> argparse.ArgumentParser:
    """Add an action of a command about Kafka, which `run_action` runs; `examples` has those of each action."""
    parser = add_command(actions, name, line, *examples[name])
    add_brokers(parser)
    parser.set_defaults(act=act)
    return parser


def brokers(args: argparse.Namespace) -> Brokers:
    """How to reach Kafka; raises PenstockError if no address is given and none runs here."""
    protected = security(args)
    return Brokers(args.servers or services.kafka(args.root), protected)


def run_action(args: argparse.Namespace) -> int:
    """Run `args.act(args, brokers)`; an error of Kafka becomes one line with the next step."""
    asked = brokers(args)
    work: Coroutine[Any, Any, None] = args.act(args, asked)
    try:
        with to_pipe():
            run_until_interrupt(work)
    except KafkaError as problem:
        where = "" if asked.servers in str(problem) else f"Kafka at {asked}"
        raise PenstockError(str(problem), where=where, next=_next(problem, args)) from problem
    return 0


def _next(problem: KafkaError, args: argparse.Namespace) -> str:
    if isinstance(problem, RecordsTooLarge):
        more = 4 * (getattr(args, "max_decompressed_bytes", None) or MOST_DECOMPRESSED)
        return f"give --max-decompressed-bytes {more}"
    if isinstance(problem, REFUSED):
        if args.command_config is not None:
            return f"correct security.protocol and sasl.* in {args.command_config}"
        return "if this Kafka needs TLS or a login, give --servers and --command-config FILE"
    return problem.next


@asynccontextmanager
async def opened(brokers: Brokers) -> AsyncIterator[tuple[Admin, Reader]]:
    """Clients of this Kafka; an address without Kafka is an error at once."""
    servers, client = brokers.servers, brokers.client()
    async with (
        Admin(servers, **client) as admin,
        Reader(servers, committed=False, patience=PATIENCE, **client) as reader,
    ):
        await reader.topics()
        yield admin, reader


def near(name: str, names: Iterable[str]) -> str:
    """A question with the names that are near; "" if there are none."""
    close = get_close_matches(name, names, 3)
    return f"did you mean {', '.join(close)}?" if close else ""


def unknown(kind: str, name: str, names: Iterable[str]) -> PenstockError:
    """The error for a topic or a group that does not exist; `kind` is its word."""
    return PenstockError(
        f"there is no {kind} {name}", next=near(name, names) or f"see the names: penstock {kind}s list"
    )


def confirm(question: str, *, where: str, command: str) -> None:
    """Ask whether to go on; raises PenstockError if the answer is not yes. `command` does it without a question."""
    if not sys.stdin.isatty():
        raise PenstockError(
            "this command needs a confirmation, and standard input is not a terminal",
            where=where,
            next=f"run: penstock {command} --yes",
        )
    if input(f"{question} Type yes: ").strip().lower() != "yes":
        raise PenstockError("nothing was changed", where=where)
