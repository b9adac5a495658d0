"""What tests of streams share: a keyspace for each module, and memory as the workers of an executor have it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from keyspaces import new_keyspace

from penstock.native import shared_memory


@pytest.fixture(scope="module")
def keyspace(cql: Any) -> Iterator[str]:
    with new_keyspace(cql, "stream") as name:
        yield name


@pytest.fixture
def sharing(monkeypatch: pytest.MonkeyPatch) -> shared_memory.SharedMemory:
    """This process has memory to share."""
    made = shared_memory.SharedMemory.make()
    if made is None:
        pytest.skip("this system gives no such memory")
    monkeypatch.setattr(shared_memory, "_MEMORY", made)
    monkeypatch.setattr(shared_memory, "_NUMBERS", {})
    return made


@pytest.fixture(params=["own", "shared"])
def memory(request: pytest.FixtureRequest) -> None:
    """Both with such memory and without."""
    if request.param == "shared":
        request.getfixturevalue("sharing")
