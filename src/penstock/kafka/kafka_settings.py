"""The settings of the source that reads topics with our own client; checked when they are given."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple, cast

from pyspark.sql import types as st

from penstock.codec.decode_json import EPOCHS, Epoch
from penstock.durations import whole
from penstock.errors import PenstockError
from penstock.kafka.security import SETTINGS, Security, by_name, require_servers
from penstock.wire import Reader
from penstock.wire.topic_records import MAX_BYTES, MORE_DECOMPRESSED

SUBJECT = "kafka.read"
EARLIEST, LATEST = "earliest", "latest"
CHUNK, WAIT = "chunk", "chunk.wait.ms"
OWN = ("servers", "topic", "start", "batch", "tasks", "members", "epoch", "good", "group", "packed", CHUNK, WAIT)
RACK = "client.rack"
RACK_VARIABLE = "PENSTOCK_RACK"
"""The environment variable with the rack of a machine, where the option does not say it."""
DECOMPRESSED = "fetch.max.decompressed.bytes"
KAFKAS = (
    *("isolation.level", "request.timeout.ms", "fetch.max.bytes", DECOMPRESSED, RACK, "ssl.truststore.location"),
    *SETTINGS,
)
KNOWN = (*OWN, "failondataloss", "failonunreadablebatch", *KAFKAS)
COMMITTED = "read_committed"
ISOLATIONS = (COMMITTED, "read_uncommitted")
AT_END, AT_START = -1, -2
"""Offsets in Spark's JSON that mean the end and the beginning of a partition."""


class Good(NamedTuple):
    """Which records are good: those with all NOT NULL members and, if they have a time, one that is not too late.

    time: the number of the member that is the time; -1 for no time. micros: its unit in microseconds. ahead: how many
    microseconds it may be after the record's arrival.
    """

    time: int = -1
    micros: int = 1
    ahead: int = 0


@dataclass(frozen=True)
class KafkaSettings:
    """What to read, from where and how.

    start: "earliest", "latest", or an offset for each partition. batch: the most records of a batch, None for all.
    tasks: the most tasks that read at the same time. members: the members to read from JSON values, None for none;
    epoch: what their numbers for times count.
    good: which records come without value and headers, because nobody reads those of a good one; None for none.
    lossy: if the next records are gone, continue with the remaining data instead of failing. max_decompressed: bytes to
    which a record batch may decompress. tolerant: a record batch that cannot be read becomes a row with a problem
    instead of failing. group: the consumer group that is told the position, "" for none. patience: how long brokers may
    be unavailable before the query fails. rack: where the readers are, "" for where each one's machine says it is.
    packed: the records are in one column (`packed_rows`).
    chunk: batches consist of whole chunks of so many offsets of a partition, 0 for whatever there is; chunk_wait: how
    long the rest waits for its chunk, None for ever.
    """

    servers: str
    topic: str
    start: str | tuple[tuple[int, int], ...]
    batch: int | None
    tasks: int
    members: st.StructType | None
    epoch: Epoch
    good: Good | None
    committed: bool
    lossy: bool
    request_timeout: timedelta
    max_bytes: int
    max_decompressed: int
    tolerant: bool
    security: Security
    group: str = ""
    rack: str = ""
    packed: bool = False
    patience: timedelta = timedelta(minutes=5)
    chunk: int = 0
    chunk_wait: timedelta | None = None

    @classmethod
    def of(cls, raw_options: Mapping[str, str]) -> KafkaSettings:
        """Raises `PenstockError` for an unknown or invalid option."""
        options = by_name(raw_options, KNOWN, SUBJECT)
        members = options.get("members")
        require_servers(options["servers"], f"{SUBJECT} of {options['topic']}")
        isolation = _one_of(options, "isolation.level", *ISOLATIONS)
        max_bytes = _count(options, "fetch.max.bytes", MAX_BYTES)
        return cls(
            servers=options["servers"],
            topic=options["topic"],
            start=start_of(options.get("start", EARLIEST), options["topic"]),
            batch=_count(options, "batch", 0) or None,
            tasks=_count(options, "tasks", 1),
            members=st.StructType.fromJson(json.loads(members)) if members else None,
            epoch=cast(Epoch, _one_of(options, "epoch", *EPOCHS)),
            good=Good(*json.loads(options["good"])) if "good" in options else None,
            committed=isolation == COMMITTED,
            lossy=_one_of(options, "failondataloss", "true", "false") == "false",
            request_timeout=timedelta(milliseconds=_count(options, "request.timeout.ms", 30_000)),
            max_bytes=max_bytes,
            max_decompressed=_count(options, DECOMPRESSED, max_bytes + MORE_DECOMPRESSED),
            tolerant=_one_of(options, "failonunreadablebatch", "true", "false") == "false",
            security=Security.of({name: options[name] for name in SETTINGS if name in options}),
            group=options.get("group", ""),
            rack=options.get(RACK, ""),
            packed=_one_of(options, "packed", "false", "true") == "true",
            chunk=_count(options, CHUNK, 0),
            chunk_wait=timedelta(milliseconds=_count(options, WAIT, 0)) if WAIT in options else None,
        )

    def reader(self) -> Reader:
        """Call it in the event loop that uses the reader."""
        return Reader(
            self.servers,
            committed=self.committed,
            client_id="penstock-spark",
            request_timeout=self.request_timeout,
            patience=self.patience,
            tls=self.security.tls(),
            authenticate=self.security.authenticate(),
            rack=self.rack or os.environ.get(RACK_VARIABLE, ""),
        )


def start_of(text: str, topic: str) -> str | tuple[tuple[int, int], ...]:
    """A start in Spark's form: a word, or JSON such as {"clicks": {"0": 12, "1": -2}}, where -2 is the beginning."""
    if text in (EARLIEST, LATEST):
        return text
    try:
        offsets = json.loads(text)[topic]
        return tuple(sorted((int(partition), _offset(at)) for partition, at in offsets.items()))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise PenstockError(
            f"start {text!r} is not valid",
            where=f"{SUBJECT} of {topic}",
            next=f"use 'earliest', 'latest', or an offset of each partition: {json.dumps({topic: {'0': 12}})}",
        ) from None


def _offset(at: Any) -> int:
    if not isinstance(at, int) or at < AT_START:
        raise ValueError(at)
    return at


def _one_of(options: Mapping[str, str], name: str, *values: str) -> str:
    """The option's value; by default the first of `values`."""
    value = options.get(name, values[0])
    if value not in values:
        raise PenstockError(f"{SUBJECT} has the unknown {name} {value!r}", next=f"use {' or '.join(values)}")
    return value


def _count(options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name)
    number = default if text is None else whole(text, 1)
    if number is None:
        raise PenstockError(f"{SUBJECT} has the invalid {name} {text!r}", next="give an integer above zero")
    return number
