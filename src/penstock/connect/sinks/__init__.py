"""Sink connectors: records of topics become rows of tables, or files, with Kafka Connect's configuration."""
