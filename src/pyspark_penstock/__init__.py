"""Lets every Spark session know `format("scylla-cdc")`: PySpark looks for data sources in packages named pyspark_*."""

from penstock.source.cdc_stream import ScyllaCdc as DefaultSource

__all__ = ["DefaultSource"]
