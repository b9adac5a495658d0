"""`penstock down`: stops the local services."""

from __future__ import annotations

import argparse

from penstock.cli import place
from penstock.local import services


def add(parser: argparse.ArgumentParser) -> None:
    place.add(parser)


def run(args: argparse.Namespace) -> int:
    stopped = services.down(args.root)
    print(f"stopped {' and '.join(stopped)}" if stopped else "nothing was running")
    return 0
