"""Argument types of several commands; argparse reports a wrong value with the usage."""

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
    """A port to listen on; 0 is any free port."""
    return 0 if text == "0" else port(text)


def servers(text: str) -> str:
    """The addresses of Kafka's brokers."""
    # Imported here: commands without Kafka use this module, too.
    from penstock.wire.cluster import addresses

    try:
        addresses(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None
    return text


def add_allow_host(parser: ArgumentParser) -> None:
    """Add `--allow-host`: names by which callers may address a server, besides the default ones."""
    parser.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a host name that callers use for this server, *.NAME for all names below it; may be repeated. "
        "Always allowed: localhost, this machine's name, --host, and IP addresses",
    )


def add_checkpoints(parser: ArgumentParser) -> None:
    """Add `--checkpoints`: the folder in which `penstock run` keeps a folder per pipeline."""
    parser.add_argument(
        "--checkpoints",
        type=Path,
        default=Path(".penstock/checkpoints"),
        metavar="DIR",
        help="folder of the pipelines' checkpoints, one subfolder per pipeline (default: %(default)s)",
    )
