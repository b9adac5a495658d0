"""Spark finds `format("penstock-kafka-topic")` here: it imports each package whose name begins with pyspark_."""

from penstock.kafka.kafka_source import KafkaTopic as DefaultSource

__all__ = ["DefaultSource"]
