"""Lets every Spark session know `format("scylla-cdc")`: PySpark looks for data sources in packages named pyspark_*."""

from penstock.cdc.cdc_source import ScyllaCdc as DefaultSource

__all__ = ["DefaultSource"]
