"""What commands with a source and a target share: the tables, and how to reach both clusters."""

from __future__ import annotations

import os
from argparse import ArgumentParser, ArgumentTypeError, Namespace

from penstock.database.access import Access
from penstock.replicate.replication import TablePair


def add_tables(parser: ArgumentParser) -> None:
    """Add which tables; `table_pairs` reads it."""
    parser.add_argument("table", metavar="TABLE", help="keyspace.table of the source")
    parser.add_argument("target", metavar="TARGET", nargs="?", help="the target's table (default: the same name)")
    parser.add_argument(
        "--also",
        type=_pair,
        action="append",
        default=[],
        metavar="TABLE[=TARGET]",
        help="another table and its target; may be repeated",
    )


def _pair(text: str) -> TablePair:
    table, _, target = text.partition("=")
    if not table:
        raise ArgumentTypeError(f"{text!r} is not TABLE or TABLE=TARGET")
    return TablePair(table, target or table)


def table_pairs(args: Namespace) -> tuple[TablePair, ...]:
    return TablePair(args.table, args.target or args.table), *args.also


def add_clusters(parser: ArgumentParser) -> None:
    """Add how to reach both clusters; `source_access` and `target_access` read it."""
    for side, word in (("from", "source"), ("to", "target")):
        group = parser.add_argument_group(f"the {word}")
        group.add_argument(f"--{side}", required=True, dest=f"{word}_hosts", metavar="HOST:PORT,...", help="its nodes")
        group.add_argument(
            f"--{side}-user",
            default="",
            dest=f"{word}_user",
            metavar="USER",
            help=f"its user; the password is read from CQL_{side.upper()}_PASSWORD",
        )
        group.add_argument(
            f"--{side}-ca", default="", dest=f"{word}_ca", metavar="FILE.pem", help="use TLS, and trust this authority"
        )
        group.add_argument(
            f"--{side}-tls", action="store_true", dest=f"{word}_tls", help="use TLS, and trust the system's authorities"
        )
        group.add_argument(
            f"--{side}-dc", default="", dest=f"{word}_dc", metavar="NAME", help="only ask nodes of this data centre"
        )


def source_access(args: Namespace) -> Access:
    return _access(args, "source", "CQL_FROM_PASSWORD")


def target_access(args: Namespace) -> Access:
    return _access(args, "target", "CQL_TO_PASSWORD")


def _access(args: Namespace, side: str, password: str) -> Access:
    argument_by_option = {"user": f"{side}_user", "tls": f"{side}_tls", "ca": f"{side}_ca", "local_dc": f"{side}_dc"}
    options = {name: getattr(args, argument) for name, argument in argument_by_option.items()}
    if options["user"]:
        options["password"] = os.environ.get(password, "")
    return Access.of(getattr(args, f"{side}_hosts"), options, where=f"penstock, the {side}")
