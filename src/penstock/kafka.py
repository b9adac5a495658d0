"""Kafka for pipelines: `kafka.sink(...)`."""

from penstock.sink.kafka import KafkaSink, sink

__all__ = ["KafkaSink", "sink"]
