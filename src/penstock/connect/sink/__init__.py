"""Sink connectors: records of topics become rows of tables, with Kafka Connect's configuration."""
