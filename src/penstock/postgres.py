"""PostgreSQL for pipelines: `postgres.sink(...)`."""

from penstock.sink.postgres import PostgresSink, sink

__all__ = ["PostgresSink", "sink"]
