"""What commands with a source and a target share: how to reach both clusters."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace

from penstock.database.access import Access


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
    given = {"user": f"{side}_user", "tls": f"{side}_tls", "ca": f"{side}_ca", "local_dc": f"{side}_dc"}
    options = {name: getattr(args, argument) for name, argument in given.items()}
    if options["user"]:
        options["password"] = os.environ.get(password, "")
    return Access.of(getattr(args, f"{side}_hosts"), options, where=f"penstock, the {side}")
