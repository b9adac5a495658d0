"""Kafka Connect's REST API and configuration over Penstock's sources and sinks; what a Connect user sees."""
