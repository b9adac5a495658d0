"""`penstock segment`: creates the tables of segments, counts members, and delivers them to a destination's topic."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.cli import services
from penstock.cli.arguments import add_allow_host, add_command, add_metrics, port_or_any, servers
from penstock.database.access import Access
from penstock.database.cql_connection import connection
from penstock.durations import duration
from penstock.errors import PenstockError
from penstock.process.signals import listen, run_until_interrupt
from penstock.segment.member_tables import delivery_sync, member_counts, member_erase, member_schema
from penstock.segment.member_tables.delivery_sync import Receipt, Sync
from penstock.segment.member_tables.member_schema import explained
from penstock.serve.access.hosts import Hosts, is_loopback
from penstock.watch.program import Program, head, reached_at
from penstock.watch.run_files import written
from penstock.wire.topic_records import Reader

if TYPE_CHECKING:
    from penstock.serve.access.callers import ApiKey
    from penstock.watch.delivery_meter import DeliveryMeter

PORT = 8085
READY = 5.0
"""Seconds in which the database answers whether the server is ready."""
EXAMPLES = {
    "tables": ("segment tables --keyspace seg",),
    "count": (
        'segment count "buyers & returning" --keyspace seg --since 2026-11-01',
        "segment count buyers --keyspace seg --since 2026-11-01 --until 2026-11-08",
    ),
    "sync": (
        "segment sync buyers --to partner --full --keyspace seg",
        'segment sync buyers --to partner --changes --every "1 hour" --keyspace seg',
        "segment sync --on deliveries --keyspace seg",
    ),
    "erase": ("segment erase ann bob --keyspace seg --servers kafka:9092",),
    "serve": ("segment serve --keyspace seg --port 8085",),
}


def add(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    _action(actions, "tables", "create the missing tables in a keyspace", _tables)
    of_time = _action(
        actions, "count", "count the distinct members of an expression of segments in a time range", _count
    )
    of_time.add_argument("expression", metavar="SEGMENTS", help='for example "a & b | c - d"')
    of_time.add_argument(
        "--since", type=_time, required=True, metavar="TIME", help="ISO time, UTC if it has no time zone"
    )
    of_time.add_argument("--until", type=_time, metavar="TIME", help="ISO time, exclusive (default: now)")
    delivery = _action(actions, "sync", "deliver a segment's members to a topic", _sync)
    delivery.add_argument("name", metavar="SEGMENT", nargs="?", help="omit it with --on")
    delivery.add_argument("--to", metavar="TOPIC", help="the destination's topic")
    mode = delivery.add_mutually_exclusive_group()
    mode.add_argument("--full", dest="mode", action="store_const", const="full", help="all members")
    mode.add_argument(
        "--changes", dest="mode", action="store_const", const="changes", help="changes since the last delivery"
    )
    delivery.add_argument("--every", metavar="DURATION", help='repeat the delivery, for example every "1 hour"')
    delivery.add_argument("--on", metavar="TOPIC", help='for each record of this topic: {"segment":, "to":, "mode":}')
    delivery.add_argument(
        "--servers", type=servers, metavar="HOST:PORT,...", help="Kafka; replaces the Kafka of --root"
    )
    add_metrics(delivery, "with --every or --on: ")
    erasing = _action(
        actions, "erase", "delete persons from all segments, and notify destinations that got them", _erase
    )
    erasing.add_argument("persons", metavar="PERSON", nargs="+")
    erasing.add_argument(
        "--servers", type=servers, metavar="HOST:PORT,...", help="Kafka, to notify destinations that got the persons"
    )
    serve = _action(actions, "serve", "deliver on request over HTTP, until Ctrl-C", _serve)
    serve.add_argument("--host", default="127.0.0.1", help="where to listen (default: %(default)s)")
    serve.add_argument("--port", type=port_or_any, default=PORT, help="0 is any free port (default: %(default)s)")
    add_allow_host(serve)
    serve.add_argument(
        "--key",
        action="append",
        default=[],
        metavar="SHA256",
        help="SHA-256 of a caller's key, made with: penstock ingest --new-key NAME; may be repeated",
    )
    serve.add_argument("--servers", type=servers, metavar="HOST:PORT,...", help="Kafka; replaces the Kafka of --root")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    args.hosts = args.hosts or services.cql(args.root)
    args.act(args)
    return 0


def _action(actions: Any, name: str, line: str, act: Any) -> argparse.ArgumentParser:
    parser = add_command(actions, name, line, *EXAMPLES[name])
    parser.add_argument("--keyspace", required=True)
    parser.add_argument("--hosts", metavar="HOST:PORT,...", help="the database; replaces the database of --root")
    services.add_root(parser)
    parser.set_defaults(act=act)
    return parser


def _tables(args: argparse.Namespace) -> None:
    with explained(args.keyspace, args.hosts):
        member_schema.create_tables(connection(Access(args.hosts)).rows, args.keyspace)


def _count(args: argparse.Namespace) -> None:
    counts = member_counts.counts(args.keyspace, hosts=args.hosts)
    counted = counts.count(args.expression, args.since, args.until or datetime.now(UTC) + timedelta(minutes=1))
    if not counted.members:
        _explain_zero(counts.uncounted(args.expression), args.keyspace)
    print(json.dumps(asdict(counted)))


def _explain_zero(uncounted: dict[str, list[str]], keyspace: str) -> None:
    """Zero is an answer, but also what a misspelt name gets."""
    for name, close in uncounted.items():
        step = f"did you mean {', '.join(close)}?" if close else "check the name, or run the pipeline that counts it"
        print(f"penstock: segment {name} has never been counted ({keyspace}.counts). Next: {step}", file=sys.stderr)


def _sync(args: argparse.Namespace) -> None:
    args.servers = args.servers or services.kafka(args.root)
    if args.on:
        with explained(args.keyspace, args.hosts, args.servers), _watched(args) as meter:
            run_until_interrupt(_listen(args, meter))
        return
    if not (args.name and args.to and args.mode):
        raise PenstockError(
            "the segment, the topic or the mode is missing",
            where="segment sync",
            next="give SEGMENT --to TOPIC and --full or --changes",
        )
    if not args.every:
        _deliver(args, args.name, args.to, args.mode)
        return
    pause = duration(args.every, name="--every")
    with _watched(args) as meter:
        while True:
            meter.done(_deliver(args, args.name, args.to, args.mode))
            time.sleep(pause.total_seconds())


@contextmanager
def _watched(args: argparse.Namespace) -> Iterator[DeliveryMeter]:
    """Serve the metrics of deliveries, and let other commands find them, while the code inside runs."""
    # Here, because deliveries on request count theirs in another way.
    from penstock.watch.delivery_meter import DeliveryMeter
    from penstock.watch.metrics_server import ListenAddress, pages, served

    meter = DeliveryMeter()
    if args.metrics is None:
        yield meter
        return
    program = Program("segment", args.keyspace)
    routes = pages([meter], lambda: {**head(program, time.time()), **meter.to_dict()}, lambda: [])
    with served(ListenAddress(*args.metrics), routes) as url, written(program.run_file(url, servers=args.servers)):
        print(f"metrics at {url}/metrics", file=sys.stderr, flush=True)
        yield meter


async def _listen(args: argparse.Namespace, meter: DeliveryMeter) -> None:
    """Deliver for each new record; a record that is not a valid request is reported and skipped."""
    async with Reader(args.servers) as reader:
        start = await reader.latest(args.on)
        print(f"waiting for records of {args.on}", flush=True)
        async with aclosing(reader.read(args.on, start=start)) as tables:
            async for _, table in tables:
                for value in table["value"].to_pylist():
                    await asyncio.to_thread(_asked, args, value, meter)


def _asked(args: argparse.Namespace, value: bytes | None, meter: DeliveryMeter) -> None:
    try:
        wanted = json.loads(value or b"")
        name, to, mode = (wanted[part] for part in ("segment", "to", "mode"))
        if not (isinstance(name, str) and isinstance(to, str)):
            raise TypeError("segment and to must be strings")
        meter.done(_deliver(args, name, to, mode))
    # JSON that is nested too deeply raises RecursionError.
    except (ValueError, TypeError, KeyError, RecursionError, PenstockError) as error:
        meter.refused(error)
        refusal = {"refused": (value or b"").decode(errors="replace"), "reason": str(error)}
        print(json.dumps(refusal), file=sys.stderr, flush=True)


def _erase(args: argparse.Namespace) -> None:
    erased = member_erase.erase(args.persons, keyspace=args.keyspace, hosts=args.hosts, servers=args.servers or "")
    print(*erased.lines(), sep="\n")


def _serve(args: argparse.Namespace) -> None:
    """Serve until a signal comes."""
    # The other actions do not need a web server, nor its packages.
    from penstock.segment.member_tables.delivery_server import Deliveries, app
    from penstock.serve.access.callers import ApiKeys
    from penstock.serve.rest_server import RestServer, bind
    from penstock.watch.served_app import observed

    args.servers = args.servers or services.kafka(args.root)
    ended = threading.Event()
    listen(ended)
    access = ApiKeys(_keys(args))
    reach = Access.of(args.hosts, {}, where="segment serve")
    deliveries = Deliveries(lambda name, to: Sync(name, to, args.keyspace, reach, args.servers))
    program = Program("segment", args.keyspace)
    with bind(args.host, args.port) as bound:
        unready = partial(_unready, args.keyspace, reach)
        watched = observed(app(deliveries, access), program, unready, is_open=not is_loopback(args.host))
        server = RestServer(watched, bound, Hosts((args.host, *args.allow_host)))
        with written(program.run_file(reached_at(bound), servers=args.servers)):
            print(f"taking requests for deliveries at {server.url}/segments/NAME/deliveries", flush=True)
            ended.wait()
            server.close()
            deliveries.close()


def _unready(keyspace: str, reach: Access) -> list[str]:
    """Why no delivery could begin now: the database does not answer, or lacks the tables."""
    try:
        with explained(keyspace, reach.hosts):
            connection(reach).rows.execute(f"SELECT run FROM {keyspace}.syncs LIMIT 1", timeout=READY)
    except PenstockError as error:
        return [str(error)]
    return []


def _keys(args: argparse.Namespace) -> list[ApiKey]:
    """The callers' keys; required if other machines can reach the server, as any caller could write to any topic."""
    from penstock.ingest.ingest_settings import DIGEST
    from penstock.serve.access.callers import ApiKey

    if wrong := [text for text in args.key if not DIGEST.fullmatch(text.lower())]:
        raise PenstockError(
            f"--key {wrong[0]} is not 64 hexadecimal digits",
            where="segment serve",
            next="make a key: penstock ingest --new-key NAME",
        )
    if not args.key and not is_loopback(args.host):
        raise PenstockError(
            f"without keys, everybody who reaches {args.host} could deliver to any topic",
            where="segment serve",
            next="give --key SHA256, made with: penstock ingest --new-key NAME",
        )
    return [ApiKey(text[:8], bytes.fromhex(text), None) for text in args.key]


def _deliver(args: argparse.Namespace, name: str, to: str, mode: delivery_sync.Mode) -> Receipt:
    receipt = delivery_sync.sync(name, to=to, mode=mode, keyspace=args.keyspace, hosts=args.hosts, servers=args.servers)
    print(receipt.as_json(), flush=True)
    return receipt


def _time(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 2026-05-31T12:00:00") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
