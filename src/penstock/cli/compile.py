"""`penstock compile`: compiles ahead of the first use."""

from __future__ import annotations

import argparse
import time
from importlib import import_module

from penstock.errors import PenstockError

PARTS = {
    "kafka-client": "penstock.wire.wire_warm",
    "json": "penstock.kafka.json_columns",
    "ingest": "penstock.ingest.events",
    "change-logs": "penstock.cdc.cdc_warm",
    "tables": "penstock.keyed_state.byte_index",
    "segments": "penstock.segment.segment_warm",
    "spark-classes": "penstock.session_warm",
}
"""What is slow on its first use, and the module whose function `warm` prepares it."""


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)} (default: all of them)")


def run(args: argparse.Namespace) -> int:
    if unknown := [part for part in args.parts if part not in PARTS]:
        raise PenstockError(f"there is nothing to compile for {', '.join(unknown)}", next=f"use {', '.join(PARTS)}")
    for part in args.parts or PARTS:
        began = time.monotonic()
        print(f"compiling {part} ...", flush=True)
        import_module(PARTS[part]).warm()
        print(f"compiled {part} in {time.monotonic() - began:.1f} s", flush=True)
    return 0
