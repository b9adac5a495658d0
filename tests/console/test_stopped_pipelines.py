"""Pipelines that do not run, as the console shows them from their checkpoints."""

from __future__ import annotations

import asyncio
from pathlib import Path

from penstock.checkpoint.checkpoint_folder import Local
from penstock.checkpoint.identity import CDC, CheckpointIdentity, SinkTarget, SourceIdentity, keep
from penstock.console.reading.stopped_pipelines import StoppedPipelines


async def no_topic(topic: str) -> tuple[dict[int, int], dict[int, int]]:
    raise AssertionError(topic)


def test_a_table_and_its_copy_of_the_same_name_are_two_nodes(tmp_path: Path) -> None:
    read, written = SourceIdentity("cdc", {"table": "shop.orders"}, CDC), SinkTarget("cql", "shop.orders")
    keep(Local(tmp_path / "copy"), CheckpointIdentity((read,), (written,)))
    stopped = StoppedPipelines(no_topic)
    asyncio.run(stopped.refresh([tmp_path]))
    (found,) = stopped.pipelines
    assert found["graph"]["edges"] == [
        {"source": "table:shop.orders", "target": "query:copy"},
        {"source": "query:copy", "target": "table:shop.orders@target"},
    ]
    known = {node["id"] for node in found["graph"]["nodes"]}
    assert known == {"table:shop.orders", "query:copy", "table:shop.orders@target"}
