"""The options of `format("penstock-kafka")`: its own, and Kafka's by name, with or without the prefix "kafka."."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from penstock.durations import whole
from penstock.errors import PenstockError
from penstock.kafka.security import SAME, SETTINGS, Security, by_name
from penstock.query.delivery import DELIVERIES, EXACTLY_ONCE
from penstock.wire.records.batch_header import HEADER_SIZE
from penstock.wire.records.compression import CODECS, MAX_SIZE

P = TypeVar("P")

SINK = "the sink penstock-kafka"
CREATE = "allow.auto.create.topics"
OWN = ("servers", "topic", "delivery", "compression", "query", "batch", CREATE)
LEAST = {
    "linger.ms": 0,
    "batch.size": HEADER_SIZE + 1,
    "delivery.timeout.ms": 1,
    "request.timeout.ms": 1,
    "transaction.timeout.ms": 1,
}
"""The least value of each numeric setting."""
KNOWN = tuple(dict.fromkeys((*OWN, *LEAST, *SAME.values(), *SAME, *SETTINGS)))


@dataclass(frozen=True)
class Options:
    """Where and how to write; `topic` is "" if each row names its topic, `tuning` are arguments of `Producer`.

    `batch` is the number of the frame's batch in `query`; a stream has its own numbers.
    """

    servers: str
    topic: str
    delivery: str
    tuning: Mapping[str, Any]
    security: Security
    query: str = ""
    batch: int = 0

    @classmethod
    def of(cls, raw_options: Mapping[str, str]) -> Options:
        """Raises `PenstockError` for a missing, unknown or invalid option."""
        options = by_name(raw_options, KNOWN, SINK)
        if not options.get("servers"):
            raise wrong("no servers", '.option("servers", "host:9092")')
        delivery, compression = options.get("delivery", EXACTLY_ONCE), options.get("compression.type", "none")
        if delivery not in DELIVERIES:
            raise wrong(f"the unknown delivery {delivery!r}", f"use {' or '.join(map(repr, DELIVERIES))}")
        if compression not in CODECS:
            raise wrong(f"the unknown compression {compression!r}", f"use one of {', '.join(CODECS)}")
        tuning = {"compression": compression} | dict(_number(name, options[name]) for name in LEAST if name in options)
        if (create := options.get(CREATE, "true").lower()) not in ("true", "false"):
            raise wrong(f"the invalid {CREATE} {create!r}", "give true or false")
        if CREATE in options:
            tuning["create_topics"] = create == "true"
        security = Security.of({name: options[name] for name in SETTINGS if name in options})
        query, batch = options.get("query", ""), options.get("batch", "")
        if bool(query) != batch.isdecimal():
            raise wrong(f"the query {query!r} and the batch {batch!r}", "give both, the batch as a number")
        return cls(options["servers"], options.get("topic", ""), delivery, tuning, security, query, int(batch or 0))

    def producer(self, make: Callable[..., P], **more: Any) -> P:
        """Call it in the process that uses the producer: a producer cannot be sent to another process."""
        return make(
            self.servers,
            client_id="penstock-spark",
            tls=self.security.tls(),
            authenticate=self.security.authenticate(),
            **self.tuning,
            **more,
        )


def has_all(options: Mapping[str, str]) -> bool:
    """Whether our client has these options, and their way to protect connections."""
    try:
        by_name(options, KNOWN, SINK)
        require_security(options)
    except PenstockError:
        return False
    return True


def require_security(raw_options: Mapping[str, str]) -> None:
    """Raise PenstockError if our client cannot protect connections as these options say; others are passed over."""
    known = {name: text for name, text in raw_options.items() if name.lower().removeprefix("kafka.") in KNOWN}
    options = by_name(known, KNOWN, SINK)
    Security.of({name: options[name] for name in SETTINGS if name in options})


def wrong(what: str, next: str) -> PenstockError:
    return PenstockError(f"{SINK} has {what}", next=next)


def _number(name: str, text: str) -> tuple[str, timedelta | int]:
    """Kafka's setting as the producer's argument: "linger.ms" is `linger`, a timedelta."""
    number = whole(text, LEAST[name], MAX_SIZE)
    if number is None:
        unit = "milliseconds" if name.endswith(".ms") else "bytes"
        raise wrong(f"the invalid {name} {text!r}", f"give {unit}, {LEAST[name]} to {MAX_SIZE}")
    argument = name.removesuffix(".ms").replace(".", "_")
    return argument, timedelta(milliseconds=number) if name.endswith(".ms") else number
