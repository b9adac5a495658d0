"""The names that all parts of the demo share: topics, tables, kinds of identities."""

from __future__ import annotations

EVENTS, CHECKED, VISITS, DELIVERED = "tracking", "checked", "visits", "dsp"
"""Topics: the events from HTTP, the good ones, the events with their persons, and the records for the destination."""
CHANGES = ("to-ads", "to-mail")
"""The topics to which the rules send their membership events."""
PARTITIONS = 2

KEYSPACE = "adtech"
"""The keyspace of the tables of matching and segments, and the schema of the counts in PostgreSQL."""
COUNTS = "adtech.minutes"
COUNTS_SQL = (
    f"CREATE SCHEMA {KEYSPACE}",
    f"CREATE TABLE {COUNTS} (campaign text, minute timestamptz, events bigint, clicks bigint, revenue bigint,"
    " PRIMARY KEY (campaign, minute))",
)

KINDS = ("cookie", "device", "email_hash")
SIGN_IN = "identify"
"""The event that links identities; rules and counts do not use it."""
ACTIONS = ("view", "click", "cart", "buy", "optout")
CAMPAIGNS = ("spring", "summer", "shoes", "hats", "brand", "win-back")

AT_ONCE = ("enter", "prolong")
"""Changes that follow an event at once ..."""
BY_TIME = "abandoned"
"""... except those of this segment, which come when a time is over."""

LATE = 8_000
"""Milliseconds that the rules wait for an event, from its time until Kafka has it."""
FRESH = 2_000
"""Milliseconds for which matching trusts what it has read."""

SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "required": ["id", "tracker", "event", "ts"],
    "properties": {
        "id": {"type": "string", "minLength": 1},
        "tracker": {"type": "string", "minLength": 1},
        "event": {"enum": [SIGN_IN, *ACTIONS]},
        "ts": {"type": "integer", "minimum": 1},
        "campaign": {"enum": list(CAMPAIGNS)},
        "price": {"type": "integer", "minimum": 0},
        **{kind: {"type": "string", "minLength": 1} for kind in KINDS},
    },
    "additionalProperties": False,
}
"""The events that ingest accepts."""
