"""`penstock status`: exit code 0 if all services run, else 1."""

from __future__ import annotations

import argparse

from penstock.cli import place
from penstock.local import services


def add(parser: argparse.ArgumentParser) -> None:
    place.add(parser)


def run(args: argparse.Namespace) -> int:
    statuses = services.status(args.root)
    for status in statuses:
        print(place.line(status))
        if status.state == "died":
            print(f"           ended without `penstock down`; log: {status.log}")
    return 0 if all(status.state == "running" for status in statuses) else 1
