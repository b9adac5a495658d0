"""Valid identities: strings that CQL accepts as a key."""

from __future__ import annotations

from pyspark.sql import Column, functions as F

LONGEST = 4096
"""Maximum bytes, as for a cookie (RFC 6265)."""


def identity(text: Column) -> Column:
    """The string, or null if it is too long or not UTF-8: one event that no table can hold must not stop all others."""
    return F.when((F.octet_length(text) <= LONGEST) & F.is_valid_utf8(text), text)
