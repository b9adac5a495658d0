"""Keyspaces of a real node for the time of some tests."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def new_keyspace(cql: Any, prefix: str) -> Iterator[str]:
    """A new keyspace on one node; its name. It is dropped afterwards, unless the node ends with the tests."""
    name = f"{prefix}_{uuid.uuid4().hex[:8]}"
    cql.execute(f"CREATE KEYSPACE {name} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}")
    yield name
    if os.environ.get("PENSTOCK_TEST_SERVICES"):
        cql.execute(f"DROP KEYSPACE {name}")
