"""How often a row of a stream arrives when batches are run again: the two promises of a sink."""

EXACTLY_ONCE, AT_LEAST_ONCE = "exactly-once", "at-least-once"
DELIVERIES = (EXACTLY_ONCE, AT_LEAST_ONCE)
