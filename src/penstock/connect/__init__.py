"""Kafka Connect's REST API and configuration, on Penstock's sources and sinks."""
