"""Pipelines that do not run, from their checkpoints: where they stopped, and how far behind that is by now."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.checkpoint.checkpoint_folder import Local
from penstock.durations import EPOCH
from penstock.errors import PenstockError
from penstock.watch import graph
from penstock.wire.errors import KafkaError

if TYPE_CHECKING:
    from penstock.run.positions import CheckpointPosition, SourcePosition

Ends = Callable[[str], Awaitable[tuple[dict[int, int], dict[int, int]]]]
"""The first offsets and the ends of a topic's partitions."""
Json = dict[str, Any]

log = logging.getLogger(__name__)

FRESH = 5.0
"""Seconds for which what was read is not read again."""
MOST = 200
"""The most checkpoints that are read."""


class StoppedPipelines:
    """The pipelines of folders of checkpoints that no process runs; `ends` asks Kafka."""

    def __init__(self, ends: Ends) -> None:
        self._ends = ends
        self._read = 0.0
        self._busy = asyncio.Lock()
        self.pipelines: list[Json] = []
        self.problem = ""

    async def refresh(self, folders: Iterable[Path]) -> None:
        """Read the checkpoints again, unless that was done a moment ago; never raises."""
        async with self._busy:
            if time.monotonic() - self._read < FRESH:
                return
            roots = list(dict.fromkeys(folder.resolve() for folder in folders))
            try:
                shown = await asyncio.to_thread(_shown, roots)
                self.pipelines = [await self._pipeline(name, root, parts) for name, root, parts in shown]
                self.problem = ""
            except (PenstockError, OSError) as error:
                self.problem = str(error)
            except Exception as error:
                log.exception("the checkpoints cannot be read")
                self.problem = f"{type(error).__name__}: {error}"
            self._read = time.monotonic()

    async def _pipeline(self, name: str, root: Path, parts: list[CheckpointPosition]) -> Json:
        queries = [await self._query(name, part) for part in parts]
        nodes, edges = _graph(queries, parts)
        errors = [
            {"query": part.name, "what": part.problem, "where": str(part.folder)} for part in parts if part.problem
        ]
        for query in queries:
            query.pop("_sinks")
        return {
            "id": name,
            "name": name,
            "kind": "run",
            "state": "stopped",
            "reachable": False,
            "problem": "",
            "url": None,
            "checkpoint": str(root / name),
            "queries": queries,
            "errors": errors,
            "graph": {"nodes": nodes, "edges": edges},
        }

    async def _query(self, pipeline: str, part: CheckpointPosition) -> Json:
        full = part.name.replace("/", ".")
        sources = [await self._source(reading) for reading in part.readings]
        read = {source["node"] for source in sources}
        sinks = [_apart(node, read) for sink in part.sinks or () for node in _target_nodes(sink)]
        return {
            "name": full,
            "pipeline": pipeline,
            "node": f"query:{full}",
            "state": "stopped",
            "batch": part.batch,
            "last_commit": part.at.isoformat() if part.at else None,
            "problem": part.problem or "",
            "sources": sources,
            "sinks": [{"name": node["kind"] + " " + node["name"], "node": node["id"]} for node in sinks],
            "_sinks": sinks,
        }

    async def _source(self, reading: SourcePosition) -> Json:
        # Imported here, as it loads Spark's types: a console without checkpoints needs none.
        from penstock.watch.source_lag import places

        node = _source_node(reading)
        source: Json = {"name": f"{node['kind']} {node['name']}", "node": node["id"], "_node": node}
        source["position"] = reading.position
        if reading.lag is not None:
            source["lag_seconds"] = round(reading.lag.total_seconds(), 1)
        at = places(reading.offset)
        if at is not None and at:
            source |= await self._lag(at)
        return source

    async def _lag(self, at: Mapping[tuple[str, int], int]) -> Json:
        """The records behind, 0 if it read to the end; nothing if Kafka does not tell."""
        from penstock.watch.source_lag import records_between

        records = 0
        for topic in {topic for topic, _ in at}:
            try:
                starts, ends = await self._ends(topic)
            except (PenstockError, KafkaError):
                return {}
            # Records that are gone from the topic are no longer to be read.
            here = {(topic, p): max(at.get((topic, p), 0), start) for p, start in starts.items()}
            records += records_between(here, {(topic, p): end for p, end in ends.items()})
        return {"lag_records": records} | ({"lag_seconds": 0.0} if not records else {})


def _part(root: Path, name: str) -> CheckpointPosition:
    from penstock.run import positions

    try:
        return positions.show(Local(root), name)
    except PenstockError:
        raise
    except Exception as error:
        # One checkpoint with damaged files must not hide the others.
        folder, problem = str(root / name), f"its files are damaged: {type(error).__name__}: {error}"
        return positions.CheckpointPosition(name, folder, None, EPOCH, None, None, None, (), None, False, None, problem)


def _shown(roots: Iterable[Path]) -> list[tuple[str, Path, list[CheckpointPosition]]]:
    """The checkpoints that no process holds, by pipeline."""
    from penstock.run import positions

    pipelines = []
    for root in roots:
        if not root.is_dir():
            continue
        names = positions.checkpoints(Local(root))[:MOST]
        for pipeline, some in groupby(names, key=lambda name: name.split("/")[0]):
            parts = [_part(root, name) for name in some]
            if all(part.running is None for part in parts):
                pipelines.append((pipeline, root, parts))
    return pipelines


def _graph(queries: Iterable[Json], parts: Iterable[CheckpointPosition]) -> tuple[list[Json], list[Json]]:
    nodes: dict[str, Json] = {}
    edges: list[Json] = []
    for query in queries:
        id = query["node"]
        nodes[id] = {"id": id, "kind": graph.QUERY, "name": query["name"], "system": "penstock", "address": None}
        for source in query["sources"]:
            node = source.pop("_node")
            nodes.setdefault(node["id"], node)
            edges.append({"source": node["id"], "target": id})
        for node in query["_sinks"]:
            nodes.setdefault(node["id"], node)
            edges.append({"source": id, "target": node["id"]})
    return list(nodes.values()), edges


def _source_node(reading: SourcePosition) -> Json:
    from penstock.watch.source_lag import places

    source = reading.source
    kind, of = (source.kind, source.of) if source else ("source", {})
    at = places(reading.offset)
    topic = of.get("topic") or next((topic for topic, _ in at or ()), None)
    if topic:
        return _told(graph.topic(topic))
    if "table" in of:
        return _told(graph.table(of["table"]))
    name = " ".join(str(value) for value in of.values()) or kind
    return {"id": f"source:{kind} {name}", "kind": graph.TABLE, "name": name, "system": kind, "address": None}


def _target_nodes(sink: str) -> list[Json]:
    """The nodes of a sink as a checkpoint identifies it: `kafka topic orders`, or `cql shop.a, shop.b`."""
    kind, _, of = sink.partition(" ")
    if kind == "kafka":
        name = of.removeprefix("topic ").removeprefix("topics ") if of != graph.OF_ROWS else of
        return [_told(graph.topic(name))]
    if kind == "cql":
        return [_told(graph.table(name)) for name in of.split(", ")]
    if kind == "segments":
        return [_told(graph.table(f"{of}.{name}")) for name in graph.MEMBERS]
    return [{"id": f"{kind}:{of}", "kind": graph.SINK, "name": of, "system": kind, "address": None}]


def _apart(node: Json, read: Container[str]) -> Json:
    """The node of a sink; a checkpoint has no addresses, but a table is not replicated to itself."""
    return node | {"id": f"{node['id']}@target"} if node["id"] in read else node


def _told(node: graph.Node) -> Json:
    return {"id": node.id, "kind": node.kind, "name": node.name, "system": node.system, "address": node.address}
