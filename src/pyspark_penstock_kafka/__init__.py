"""Lets Spark sessions know `format("penstock-kafka")`: PySpark looks for data sources in packages named pyspark_*."""

from penstock.kafka.kafka_writer import PenstockKafka as DefaultSource

__all__ = ["DefaultSource"]
