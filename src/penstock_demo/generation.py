"""A new generation of CDC streams, published as by a node that joins: new streams for the ring's ranges."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime, timedelta
from typing import Any

AHEAD = timedelta(seconds=15)
"""A node looks for new generations every five seconds; it knows this one before it begins, even if a look fails."""
TIMES = "system_distributed.cdc_generation_timestamps"
STREAMS = "system_distributed.cdc_streams_descriptions_v2"


def publish(session: Any) -> datetime:
    """Publish a generation, and return its begin."""
    newest: datetime = session.execute(f"SELECT max(time) FROM {TIMES} WHERE key = 'timestamps'").one()[0]
    insert = f"INSERT INTO {STREAMS} (time, range_end, streams) VALUES (%s, %s, %s)"
    start = max(datetime.now(UTC).replace(tzinfo=None) + AHEAD, newest + timedelta(seconds=1))
    for end, streams in session.execute(f"SELECT range_end, streams FROM {STREAMS} WHERE time = %s", (newest,)):
        session.execute(insert, (start, end, set(map(_new, streams))))
    # The time goes last: readers trust streams only of a generation whose time is listed.
    session.execute(f"INSERT INTO {TIMES} (key, time) VALUES ('timestamps', %s)", (start,))
    return start


def _new(stream: bytes) -> bytes:
    """A new stream id with the same token and index: its second half begins with 38 random bits."""
    low = int.from_bytes(stream[8:], "big")
    return stream[:8] + (secrets.randbits(38) << 26 | low & 2**26 - 1).to_bytes(8, "big")
