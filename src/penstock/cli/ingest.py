"""`penstock ingest`: a server that takes events by HTTP and writes them to Kafka's topics, until it is stopped."""

from __future__ import annotations

import asyncio
import json
import logging
from argparse import ArgumentParser, Namespace
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from penstock.cli import services
from penstock.cli.arguments import add_allow_host
from penstock.cli.warm import PARTS
from penstock.errors import PenstockError
from penstock.ingest import ingest_server
from penstock.ingest.ingest_settings import Given, IngestSettings, NoServers, read
from penstock.kafka.client_options import Options
from penstock.serve.access.callers import new_key
from penstock.serve.access.hosts import is_loopback, warn_if_open
from penstock.watch.graph import HTTP, Graph, Node, topic
from penstock.watch.program import Program, address, head, nearest
from penstock.watch.run_files import written
from penstock.wire import Producer, Reader
from penstock.wire.admin import Admin
from penstock.wire.errors import KafkaError

FOREVER = timedelta(days=3650)
"""Kafka's delivery timeout with a spool, which has its own retries."""
PUBLISHABLE = "pk_"
"""Prefix of publishable keys, which shows readers that the key is not a secret."""
GREETING = timedelta(seconds=5)
"""How long the start waits for Kafka before it continues without it."""


def add(parser: ArgumentParser) -> None:
    parser.add_argument(
        "file", nargs="?", type=Path, metavar="CONFIG.toml", help="topics, keys, limits; see docs/ingest.md"
    )
    parser.add_argument("--servers", metavar="HOST:PORT,...", help="Kafka; replaces servers of the file")
    parser.add_argument("--listen", metavar="HOST:PORT", help="where to listen (default: 127.0.0.1:8080)")
    parser.add_argument(
        "--topics", default="", metavar="A,B", help="topics that take events, added to those of the file"
    )
    parser.add_argument("--schemas", type=Path, metavar="DIR", help="folder of the JSON schemas, TOPIC.json")
    parser.add_argument("--spool", type=Path, metavar="DIR", help="acknowledge events when they are on this disk")
    parser.add_argument("--workers", type=int, metavar="N", help="processes that share the port (default: 1)")
    parser.add_argument(
        "--allow-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help='origin of web pages that may send events, for example "https://shop.example", or * for all; may be '
        "repeated",
    )
    add_allow_host(parser)
    parser.add_argument("--new-key", metavar="NAME", help="print a new API key and its lines for the file, then exit")
    parser.add_argument(
        "--publishable",
        action="store_true",
        help="with --new-key: make a key that web pages may contain, for --topics and pages of --allow-origin",
    )
    parser.add_argument("--verbose", action="store_true", help="log what the server does")
    services.add_root(parser)
    parser.set_defaults(run=run)


def run(args: Namespace) -> int:
    if args.new_key:
        print(_publishable_lines(args) if args.publishable else _key_lines(args.new_key))
        return 0
    if args.publishable:
        raise PenstockError("--publishable works only with --new-key", next="add --new-key NAME")
    logging.basicConfig(level=logging.INFO if args.verbose else logging.WARNING, format="%(asctime)s %(message)s")
    settings = _settings(args)
    options = _options(settings)
    readings, tls = ingest_server.readings(settings), ingest_server.tls(settings.tls) if settings.tls else None
    with ingest_server.bind(settings.host, settings.port) as bound:
        PARTS["kafka-client"]()
        PARTS["ingest"]()
        asyncio.run(_greet(settings, options))
        host, port = bound.getsockname()[:2]
        scheme, listens = "https" if tls else "http", address(host, port)
        program = Program("ingest", "ingest")
        site = ingest_server.Site(settings, readings, bound, tls, _about(program, settings, listens))
        if not settings.keys and not (settings.tls and settings.tls.clients):
            warn_if_open(settings.host, "write to its topics")
        file = program.run_file(f"{scheme}://{address(nearest(host), port)}", servers=settings.servers)
        with written(file):
            ingest_server.run(
                site,
                lambda: _clients(settings, options),
                lambda: print(f"taking events at {scheme}://{listens}", flush=True),
            )
    return 0


def _about(program: Program, settings: IngestSettings, listens: str) -> dict[str, Any]:
    """The status without what changes; without the command and addresses where other machines may read it."""
    known = is_loopback(settings.host)
    http = Node(f"http:{listens}", HTTP, listens, "penstock", listens)
    topics = [topic(name, settings.servers if known else None) for name in settings.topics]
    graph = Graph.of([http, *topics], [(http, node) for node in topics])
    about = head(program if known else replace(program, command=""), program.started)
    return {**about, "graph": graph.to_dict()}


def _topics(args: Namespace) -> list[str]:
    return [name.strip() for name in args.topics.split(",") if name.strip()]


def _settings(args: Namespace) -> IngestSettings:
    command_line = Given(
        args.servers,
        args.listen,
        _topics(args),
        args.schemas,
        args.spool,
        args.workers,
        args.allow_host,
        args.allow_origin,
    )
    try:
        return read(args.file, command_line)
    except NoServers:
        return read(args.file, replace(command_line, servers=services.kafka(args.root)))


def _options(settings: IngestSettings) -> Options:
    taken = {"servers", "topic", "delivery", "delivery.timeout.ms"} & {
        name.removeprefix("kafka.") for name in settings.kafka
    }
    if taken:
        raise PenstockError(
            f"{', '.join(sorted(taken))} cannot be set here",
            where="[kafka]",
            next="set servers, or kafka in [timeouts]",
        )
    return Options.of({**settings.kafka, "servers": settings.servers})


def _clients(settings: IngestSettings, options: Options) -> ingest_server.Clients:
    patience = FOREVER if settings.spool else settings.times.kafka
    reader = Reader(settings.servers, request_timeout=GREETING, **_security(options))
    return ingest_server.Clients(options.producer(Producer, delivery_timeout=patience), reader)


def _security(options: Options) -> dict[str, Any]:
    return {"tls": options.security.tls(), "authenticate": options.security.authenticate()}


async def _greet(settings: IngestSettings, options: Options) -> None:
    """Create missing topics; only logs a warning if Kafka does not answer."""
    client = _security(options)
    try:
        async with Reader(settings.servers, request_timeout=GREETING, **client) as reader:
            missing = [topic for topic in settings.topics if topic not in await reader.topics()]
        async with Admin(settings.servers, patience=GREETING, **client) as admin:
            for topic in missing:
                await admin.create_topic(topic)
                print(f"created the missing topic {topic} with the cluster's defaults", flush=True)
    except KafkaError as error:
        if not error.retriable:
            raise PenstockError(str(error), where=f"Kafka at {settings.servers}", next=error.next) from error
        logging.warning("Kafka at %s does not answer yet: %s. Next: %s", settings.servers, error, error.next or "wait")


def _key_lines(name: str) -> str:
    key, digest = new_key()
    lines = f'[[keys]]\nname = {_quoted(name)}\nsha256 = "{digest}"\ntopics = ["*"]'
    return f"The key, shown only this once: {key}\n\nFor the file:\n{lines}"


def _publishable_lines(args: Namespace) -> str:
    key, digest = new_key(PUBLISHABLE)
    topics, origins = _topics(args) or ["TOPIC"], args.allow_origin or ["https://YOUR.SITE"]
    lines = [
        "[[keys]]",
        f"name = {_quoted(args.new_key)}",
        f'sha256 = "{digest}"',
        "publishable = true",
        f"topics = [{', '.join(map(_quoted, topics))}]",
        f"origins = [{', '.join(map(_quoted, origins))}]",
    ]
    url = f"/events/{topics[0]}?api_key={key}"
    return f"The key for your pages: {key}\nPages send to {url}\n\nFor the file:\n" + "\n".join(lines)


def _quoted(text: str) -> str:
    """A TOML string; TOML has the escapes of JSON, and wants one for DEL, too."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
