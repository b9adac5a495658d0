"""`penstock compile`: compiles ahead of the first use."""

from __future__ import annotations

import argparse
import time

from penstock.errors import PenstockError
from penstock.warm import PARTS


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)} (default: all of them)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if unknown := [part for part in args.parts if part not in PARTS]:
        raise PenstockError(f"there is nothing to compile for {', '.join(unknown)}", next=f"use {', '.join(PARTS)}")
    for part in args.parts or PARTS:
        began = time.monotonic()
        print(f"compiling {part} ...", flush=True)
        PARTS[part]()
        print(f"compiled {part} in {time.monotonic() - began:.1f} s", flush=True)
    return 0
