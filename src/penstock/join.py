"""Joins: `enrich`, `tables`, `foreign_key`, `stream_table`, `streams`."""

from penstock.stream.join import enrich, foreign_key, stream_table, streams, tables

__all__ = ["enrich", "foreign_key", "stream_table", "streams", "tables"]
