"""Avro records in the reader that shows them to people, compared with fastavro.

An input is the record's bytes, without the frame of a schema registry. If both read it, the values must be equal.
Whatever the reader returns must be JSON. fastavro reads some records that the reader refuses: booleans above 1, and
more values than a person reads.
"""

from __future__ import annotations

import json
from typing import Any

from penstock.codec.avro_value import AvroSchema, NotAvro

from .avro import LEAST, SCHEMA, _draw, _read_by_fastavro
from .runner import Decoder, Difference

READER = AvroSchema.of(json.dumps(SCHEMA))


def _shown(event: dict[str, Any]) -> dict[str, Any]:
    """What fastavro read, with bytes and numbers as the reader shows them."""
    bytes_of = {name: f"0x{event[name].hex()}" for name in ("raw", "fixed")}
    numbers = {name: event[name] if event[name] - event[name] == 0 else str(event[name]) for name in ("price", "share")}
    return event | bytes_of | numbers


def _check(data: bytes) -> bool:
    try:
        found = READER.value(data)
    except NotAvro:
        return False
    json.dumps(found)
    peer = _read_by_fastavro(data)
    # For a block of -2^63 items neither can be said to be right.
    if peer is not None and data.count(LEAST) <= (peer["n"] == -(2**63)) and found != _shown(peer):
        raise Difference(f"{found} and {peer}")
    return True


DECODER = Decoder(name="avro_value", draw=_draw, check=_check)
