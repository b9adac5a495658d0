"""Asks the brokers of a query whether they answer: those of the topics that it reads, and those of its sinks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from datetime import timedelta

from penstock.checkpoint.identity import OUR_KAFKA, SPARKS_KAFKA, streams
from penstock.errors import PenstockError
from penstock.kafka.kafka_sink import KafkaSink
from penstock.kafka.security import SAME, SETTINGS, Security
from penstock.query import AroundSink, Query, Sink
from penstock.wire import Reader
from penstock.wire.errors import KafkaError

SERVERS = ("servers", "kafka.bootstrap.servers")


def require_brokers(query: Query, patience: timedelta) -> None:
    """Raise PenstockError if the brokers of a topic do not answer within `patience`, or refuse the user."""
    asked = set()
    for servers, options in (*_sources(query), *_sinks(query)):
        if servers not in asked:
            asked.add(servers)
            asyncio.run(_ask(servers, security_of(options), patience))


def _sources(query: Query) -> Iterator[tuple[str, Mapping[str, str]]]:
    for format, options in streams(query.frame):
        given = {name.lower(): value for name, value in options.items()}
        servers = next((given[name] for name in SERVERS if name in given), "")
        if format in (OUR_KAFKA, SPARKS_KAFKA) and servers:
            yield servers, given


def _sinks(query: Query) -> Iterator[tuple[str, Mapping[str, str]]]:
    for sink in map(_inner, query.sinks):
        if isinstance(sink, KafkaSink):
            yield sink.servers, sink.options


def _inner(sink: Sink) -> Sink:
    while isinstance(sink, AroundSink):
        sink = sink.sink
    return sink


def security_of(options: Mapping[str, str]) -> Security:
    """How the connections are protected; Spark's client may have more options, which do not count here."""
    given = {name.lower().removeprefix("kafka."): value for name, value in options.items()}
    named = {SAME.get(name, name): value for name, value in given.items()}
    return Security.of({name: value for name, value in named.items() if name in SETTINGS})


async def _ask(servers: str, security: Security, patience: timedelta) -> None:
    reader = Reader(
        servers,
        request_timeout=patience,
        patience=patience,
        tls=security.tls(),
        authenticate=security.authenticate(),
    )
    try:
        async with reader:
            await reader.topics()
    except KafkaError as error:
        where = "" if servers in str(error) else f"Kafka at {servers}"
        raise PenstockError(str(error), where=where, next=error.next) from error
