"""What tests of streams on a real node share: a keyspace for each module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from keyspaces import new_keyspace


@pytest.fixture(scope="module")
def keyspace(cql: Any) -> Iterator[str]:
    with new_keyspace(cql, "stream") as name:
        yield name
