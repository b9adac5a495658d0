"""`penstock compile`: compiles ahead of the first use."""

from __future__ import annotations

import argparse

from penstock.cli import warm
from penstock.errors import PenstockError


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(warm.PARTS)} (default: all of them)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if unknown := [part for part in args.parts if part not in warm.PARTS]:
        raise PenstockError(
            f"there is nothing to compile for {', '.join(unknown)}", next=f"use {', '.join(warm.PARTS)}"
        )
    for line in warm.compiled(args.parts or warm.PARTS, whole=bool(args.parts)):
        print(line, flush=True)
    return 0
