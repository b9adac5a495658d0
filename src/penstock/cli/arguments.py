"""Kinds of arguments that several commands take: what is none of the kind is told with the usage."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError
from pathlib import Path


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is not a number, 1 or more")
    return int(text)


def port(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise ArgumentTypeError(f"{text!r} is not a port")
    return int(text)


def port_or_any(text: str) -> int:
    """Where to listen: 0 is any port that is free."""
    return 0 if text == "0" else port(text)


def servers(text: str) -> str:
    """The addresses of Kafka's brokers."""
    # Here, since commands that know no Kafka take numbers from this module, too.
    from penstock.wire.net.cluster import addresses

    try:
        addresses(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None
    return text


def add_allow_host(parser: ArgumentParser) -> None:
    """The names by which callers may address a server, beside those that are always taken."""
    parser.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a name that callers use for this server, *.NAME for all below it; may be repeated. "
        "Taken anyway: localhost, this machine's name, --host, and IP addresses",
    )


def add_checkpoints(parser: ArgumentParser) -> None:
    """The folder in which `penstock run` keeps a folder for each pipeline."""
    parser.add_argument(
        "--checkpoints",
        type=Path,
        default=Path(".penstock/checkpoints"),
        metavar="DIR",
        help="where pipelines keep their positions, each in a folder of its name (default: %(default)s)",
    )
