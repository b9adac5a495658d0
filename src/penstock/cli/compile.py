"""`penstock compile`: compiles ahead of the first use."""

from __future__ import annotations

import argparse
import time
from importlib import import_module

PARTS = {
    "the Kafka client": "penstock.wire.wire_warm",
    "JSON of topics": "penstock.kafka.json_columns",
    "bodies of HTTP ingest": "penstock.ingest.events",
    "change logs": "penstock.cdc.cdc_warm",
    "tables in memory": "penstock.keyed_state.byte_index",
    "segments": "penstock.segment.segment_warm",
    "classes of Spark": "penstock.session_warm",
}
"""What is slow on its first use, and the module whose function `warm` prepares it."""


def add(parser: argparse.ArgumentParser) -> None:
    """No options: it compiles all parts."""


def run(args: argparse.Namespace) -> int:
    for part, module in PARTS.items():
        began = time.monotonic()
        import_module(module).warm()
        print(f"{part}: {time.monotonic() - began:.1f} s", flush=True)
    return 0
