"""`penstock up`: starts the local services."""

from __future__ import annotations

import argparse
import time

from penstock.cli import place
from penstock.cli.arguments import port
from penstock.local import services


def add(parser: argparse.ArgumentParser) -> None:
    place.add(parser)
    parser.add_argument("--kafka-port", type=port, metavar="PORT", help="instead of a free one")
    parser.add_argument("--cql-port", type=port, metavar="PORT", help="instead of a free one")
    parser.add_argument("--registry-port", type=port, metavar="PORT", help="instead of a free one")
    parser.add_argument("--postgres-port", type=port, metavar="PORT", help="instead of a free one")
    parser.add_argument("--clean", action="store_true", help="stop running services and delete the old data first")
    names = [service.name for service in services.ALL]
    parser.add_argument("--only", choices=names, action="append", help="start only this service; may be repeated")
    extra = [service.name for service in services.EXTRA]
    parser.add_argument(
        "--with", choices=extra, action="append", default=[], dest="also", help="also start this service"
    )


def run(args: argparse.Namespace) -> int:
    began = time.monotonic()
    running = services.up(
        args.root,
        kafka_port=args.kafka_port,
        cql_port=args.cql_port,
        registry_port=args.registry_port,
        postgres_port=args.postgres_port,
        clean=args.clean,
        only=args.only,
        also=args.also,
        say=lambda line: print(line, flush=True),
    )
    serving = [status for status in services.status(args.root) if status.name in running.records]
    for status in serving:
        print(place.line(status))
    memory = sum(status.memory or 0 for status in serving)
    print(f"serving after {time.monotonic() - began:.1f} s, {memory >> 20} MiB resident")
    return 0
