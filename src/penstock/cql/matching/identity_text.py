"""What may stand for a person, or for something seen of him: text that CQL takes as a key."""

from __future__ import annotations

from pyspark.sql import Column, functions as F

LONGEST = 4096
"""Bytes at most, as of a cookie (RFC 6265)."""


def identity(text: Column) -> Column:
    """The text, or null if it is too long or no UTF-8.

    One event must not stop all others because no table can hold it.
    """
    return F.when((F.octet_length(text) <= LONGEST) & F.is_valid_utf8(text), text)
