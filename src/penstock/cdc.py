"""Changes out of ScyllaDB and Apache Cassandra: `read` them as a frame, make `events` of them."""

from penstock.codec.debezium import events
from penstock.source.cdc import read

__all__ = ["events", "read"]
