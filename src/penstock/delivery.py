"""The two delivery guarantees of a sink: how often a row arrives when its batch is run again; and Kafka's clients."""

EXACTLY_ONCE, AT_LEAST_ONCE = "exactly-once", "at-least-once"
DELIVERIES = (EXACTLY_ONCE, AT_LEAST_ONCE)
OURS, SPARKS = "penstock", "spark"
"""Clients that read and write topics."""
