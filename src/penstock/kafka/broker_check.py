"""Asks the brokers of a query whether they answer, and have the topics that it reads: its sources' and its sinks'."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from datetime import timedelta
from difflib import get_close_matches

from penstock.checkpoint.identity import OUR_KAFKA, SPARKS_KAFKA, streams
from penstock.errors import Missing, PenstockError
from penstock.kafka.kafka_sink import KafkaSink
from penstock.kafka.security import SAME, SETTINGS, Security
from penstock.query.query import AroundSink, Query, Sink
from penstock.wire import Reader
from penstock.wire.errors import KafkaError

SERVERS = ("servers", "kafka.bootstrap.servers")


def unmet(query: Query, patience: timedelta) -> list[PenstockError]:
    """Brokers that do not answer within `patience`, or refuse the user, and topics that are missing."""
    asked: dict[str, set[str] | None] = {}
    faults = []
    for servers, options, topics in (*_sources(query), *_sinks(query)):
        if servers not in asked:
            try:
                asked[servers] = asyncio.run(_topics(servers, security_of(options), patience))
            except PenstockError as error:
                asked[servers] = None
                faults.append(error)
        there = asked[servers]
        faults += [_no_topic(topic, servers, there) for topic in topics if there is not None and topic not in there]
    return faults


def _no_topic(topic: str, servers: str, there: set[str]) -> PenstockError:
    close = get_close_matches(topic, there, 1)
    hint = f"did you mean {close[0]}? Else create it" if close else "create it"
    next = f"{hint}: penstock topics create {topic} --servers {servers}"
    return Missing(f"there is no topic {topic}", where=f"Kafka at {servers}", next=next)


def _sources(query: Query) -> Iterator[tuple[str, Mapping[str, str], list[str]]]:
    for format, options in streams(query.frame):
        lower_case_options = {name.lower(): value for name, value in options.items()}
        servers = next((lower_case_options[name] for name in SERVERS if name in lower_case_options), "")
        if format in (OUR_KAFKA, SPARKS_KAFKA) and servers:
            named = lower_case_options.get("topic") or lower_case_options.get("subscribe") or ""
            yield servers, lower_case_options, [topic.strip() for topic in named.split(",") if topic.strip()]


def _sinks(query: Query) -> Iterator[tuple[str, Mapping[str, str], list[str]]]:
    """Without their topics, which are made at the first record where brokers allow that."""
    for sink in map(_inner, query.sinks):
        if isinstance(sink, KafkaSink):
            yield sink.servers, sink.options, []


def _inner(sink: Sink) -> Sink:
    while isinstance(sink, AroundSink):
        sink = sink.sink
    return sink


def security_of(options: Mapping[str, str]) -> Security:
    """How the connections are protected; Spark's client may have more options, which do not count here."""
    without_prefix = {name.lower().removeprefix("kafka."): value for name, value in options.items()}
    named = {SAME.get(name, name): value for name, value in without_prefix.items()}
    return Security.of({name: value for name, value in named.items() if name in SETTINGS})


async def _topics(servers: str, security: Security, patience: timedelta) -> set[str]:
    reader = Reader(
        servers,
        request_timeout=patience,
        patience=patience,
        tls=security.tls(),
        authenticate=security.authenticate(),
    )
    try:
        async with reader:
            return set(await reader.topics())
    except KafkaError as error:
        where = "" if servers in str(error) else f"Kafka at {servers}"
        raise PenstockError(str(error), where=where, next=error.next) from error
