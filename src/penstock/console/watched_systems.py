"""What the console watches: runs, Kafkas, checkpoints and Connect clusters, and the tasks that follow them."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from penstock import __version__
from penstock.checkpoint.checkpoint_folder import location
from penstock.console.event_stream import OverviewEvents, Streams
from penstock.console.reading import overview
from penstock.console.reading.connect_clusters import ConnectClusters
from penstock.console.reading.kafka_clusters import KafkaClusters
from penstock.console.reading.masking import Mask
from penstock.console.reading.reader_process import ReaderProcess
from penstock.console.reading.run_polling import Run, Runs
from penstock.console.reading.stopped_pipelines import StoppedPipelines
from penstock.console.settings import ConsoleSettings
from penstock.serve.http_client import Address

Json = dict[str, Any]

log = logging.getLogger(__name__)

LOOK = 3.0
"""Seconds between two looks at the connectors."""
WAIT = 2.0
"""Seconds that an overview waits for the checkpoints, which may ask a Kafka that does not answer."""


class WatchedSystems:
    """Belongs to one event loop; `running` keeps it up to date."""

    def __init__(self, settings: ConsoleSettings) -> None:
        self.settings = settings
        self.mask = Mask(settings.mask)
        self.runs = Runs(settings.targets)
        self.kafkas = KafkaClusters(settings.kafka, settings.local, self._servers_of_runs)
        self.stopped = StoppedPipelines(self.kafkas.ends)
        self.clusters = ConnectClusters(lambda: settings.connect, self.mask)
        self.reader = ReaderProcess()
        self.streams = Streams()
        self.changes = OverviewEvents(self.overview)
        self.connectors: list[Json] = []
        """The connectors of all clusters a moment ago, while a page is open."""
        self._roots: dict[Path, None] = {settings.checkpoints.resolve(): None} if settings.checkpoints else {}

    @asynccontextmanager
    async def running(self, app: object) -> AsyncIterator[None]:
        """Follow the runs while the server runs."""
        following = (self.runs.follow, self._follow_checkpoints, self._follow_connectors, self.changes.follow)
        tasks = [asyncio.create_task(_without_end(follow)) for follow in following]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            for task in tasks:
                with suppress(asyncio.CancelledError):
                    await task
            await self.reader.close()
            await self.kafkas.close()

    def end(self) -> None:
        """End the streams of events, so that the server can end."""
        self.changes.end()
        self.reader.end()

    def _servers_of_runs(self) -> Iterator[str]:
        """The Kafkas of this user's runs; what a target says is not used, since anybody may answer there."""
        for run in self.runs.all():
            if run.file is None:
                continue
            if run.file.servers:
                yield run.file.servers
            nodes = run.status["graph"]["nodes"] if run.status is not None else ()
            yield from (node["address"] for node in nodes if overview.is_topic(node) and node.get("address"))

    def roots(self) -> list[Path]:
        """The folders of checkpoints: the given one, and those of all runs that were seen."""
        for run in self.runs.all():
            folder = location(run.file.checkpoint) if run.file is not None and run.file.checkpoint else None
            # Those on another file system are not read.
            if isinstance(folder, Path):
                self._roots.setdefault(folder.parent.resolve())
        return list(self._roots)

    async def ready(self) -> None:
        """Wait until all runs were asked, and a moment for the pipelines that do not run."""
        await self.runs.looked.wait()
        if roots := self.roots():
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self.stopped.refresh(roots)), WAIT)

    async def _follow_checkpoints(self) -> None:
        while True:
            if self.streams.open and (roots := self.roots()):
                await self.stopped.refresh(roots)
            await asyncio.sleep(1)

    async def _follow_connectors(self) -> None:
        while self.settings.connect:
            if self.streams.open:
                self.connectors = await self.listed_connectors()
            await asyncio.sleep(LOOK)

    async def listed_connectors(self) -> list[Json]:
        """The connectors of all Connect clusters, with what is known of them from the runs of their workers."""
        return [self._of_workers(connector) for connector in await self.clusters.listed()]

    async def connector(self, cluster: int, name: str) -> Json:
        """A connector with its configuration and offsets."""
        return self._of_workers(await self.clusters.connector(cluster, name))

    def _of_workers(self, connector: Json) -> Json:
        """The connector with the records of its tasks, and the Kafka of its workers; None if that is not known."""
        servers = {run.name: run.file.servers for run in self.runs.all() if run.file is not None}
        address = next(filter(None, map(servers.get, overview.workers(connector))), None)
        running = (run.status for run in self.runs.all() if run.status is not None and run.ended is None)
        return overview.with_counts(connector, running) | {"kafka": self.kafkas.name_of(address)}

    def overview(self) -> Json:
        """The overview of the API."""
        about = {
            "version": __version__,
            "read_only": self.settings.token is None,
            "messages": self.settings.messages,
            "history": self.settings.prometheus is not None,
            "kafkas": self.kafkas.names(),
            "kafka": self.kafkas.default(),
        }
        runs, stopped = self._shown()
        document = overview.overview(runs, stopped, about, self.connectors, self.kafkas.name_of)
        if self.stopped.problem:
            where = ", ".join(map(str, self.roots()))
            document["problems"].insert(0, overview.of_checkpoints(self.stopped.problem, where))
        return document

    def run(self, id: str) -> Json | None:
        """A run with the history of its batches, or a pipeline that does not run; None if there is none of this id."""
        runs, stopped = self._shown()
        whole = {pipeline["id"]: pipeline for pipeline in stopped} | (
            {id: overview.run_as_json(id, runs[id], history=True)} if id in runs else {}
        )
        if id not in whole:
            return None
        shown = [overview.run_as_json(run_id, run) for run_id, run in runs.items()] + stopped
        return overview.renamed(whole[id], overview.ids_of(shown, self.kafkas.name_of)[id])

    def _shown(self) -> tuple[dict[str, Run], list[Json]]:
        """The runs by id, and the pipelines that do not run."""
        runs = overview.identified(self.runs.all())
        stopped, hidden = self._stopped(runs)
        return {id: run for id, run in runs.items() if id not in hidden}, stopped

    def _stopped(self, runs: dict[str, Run]) -> tuple[list[Json], set[str]]:
        """The pipelines that do not run, and the ids of runs that they stand for: of ended processes."""
        alive = {run.name for run in runs.values() if run.ended is None and _kind(run) == "run"}
        ended = {run.name: (id, run) for id, run in runs.items() if run.ended is not None and _kind(run) == "run"}
        pipelines, hidden = [], set()
        for pipeline in self.stopped.pipelines:
            if pipeline["name"] in alive:
                continue
            if pipeline["name"] in ended:
                id, run = ended[pipeline["name"]]
                hidden.add(id)
                pipeline = _with_end(pipeline, run)
            pipelines.append(pipeline)
        return pipelines, hidden

    def readers_and_writers(self, kafka: str) -> dict[str, tuple[list[str], list[str]]]:
        """Who writes to a topic of this Kafka and who reads it, by the topic's name."""
        graph = self.overview()["graph"]
        names = {node["id"]: node["name"] for node in graph["nodes"]}
        topics = {node["id"]: node["name"] for node in graph["nodes"] if node.get("kafka") == kafka}
        by_topic: dict[str, tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
        for edge in graph["edges"]:
            source, target = edge["source"], edge["target"]
            if target in topics:
                by_topic[topics[target]][0].append(names.get(source, source))
            if source in topics:
                by_topic[topics[source]][1].append(names.get(target, target))
        return by_topic

    def of_kind(self, kind: str) -> dict[str, Run]:
        """The runs of a kind by id."""
        runs = overview.identified(self.runs.all())
        return {id: run for id, run in runs.items() if _kind(run) == kind and run.ended is None}

    def state_servers(self) -> Sequence[tuple[str, Address]]:
        """The servers of state, by the name of their run."""
        configured = [("--state", self.settings.state)] if self.settings.state else []
        return [*configured, *((id, run.address) for id, run in self.of_kind("state").items())]


async def _without_end(follow: Callable[[], Awaitable[None]]) -> None:
    """Go on after an error: a page that stays as it was would look like one on which all is well."""
    while True:
        try:
            await follow()
            return
        except Exception:
            log.exception("the console goes on after an error")
            await asyncio.sleep(1)


def _kind(run: Run) -> str:
    if run.status is not None:
        return str(run.status["kind"])
    return run.file.kind if run.file else "run"


def _with_end(pipeline: Json, run: Run) -> Json:
    """A stopped pipeline with what its last process said: its errors, and whether it failed."""
    last: Json = run.status or {"state": "stopped", "errors": [], "queries": []}
    states = {query["name"]: query for query in last["queries"]}
    queries = []
    for query in pipeline["queries"]:
        before = states.get(query["name"], {})
        failed = before.get("state") == "failed"
        why = {key: before[key] for key in ("problem", "next") if before.get(key)}
        queries.append(query | ({"state": "failed", **why} if failed else {}))
    about: Json = {key: last[key] for key in ("command", "started") if key in last}
    state = "failed" if last["state"] == "failed" else "stopped"
    about["problem"] = run.problem
    about["graph"] = _with_addresses(pipeline["graph"], last["graph"] if run.status else None)
    return {**pipeline, **about, "state": state, "errors": [*pipeline["errors"], *last["errors"]], "queries": queries}


def _with_addresses(graph: Json, last: Json | None) -> Json:
    """The graph of a checkpoint, which has no addresses, with those that the process had."""
    known = {node["id"]: node.get("address") for node in (last or {"nodes": []})["nodes"]}
    nodes = [node | {"address": node.get("address") or known.get(node["id"])} for node in graph["nodes"]]
    return graph | {"nodes": nodes}
