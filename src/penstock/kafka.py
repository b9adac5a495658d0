"""Kafka for pipelines: `kafka.sink(...)`, and the formats of its records: `kafka.codec(...)`, `kafka.Registry(...)`."""

from penstock.codec.formats import codec
from penstock.codec.registry import Registry
from penstock.sink.kafka import KafkaSink, sink

__all__ = ["KafkaSink", "Registry", "codec", "sink"]
