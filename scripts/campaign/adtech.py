"""A round of adtech: events by HTTP become persons, segments, counts and deliveries."""

from __future__ import annotations

from array import array
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient

from campaign.breaks import GROWN, Breaking, Disk, Struck, grow
from campaign.plan import RATES, Break, Round
from campaign.world import World
from penstock.errors import PenstockError
from penstock_demo import child
from penstock_demo.adtech import reads, site
from penstock_demo.adtech.parts import Ingest
from penstock_demo.adtech.run import Demo, create
from penstock_demo.stage import Options
from penstock_demo.view import View

TOPICS = dict(reads.TOPICS)


class AdtechRound(Breaking, Demo):
    """A round; `run` raises PenstockError if a part ends or makes no progress."""

    start, warm_longest, patience = 1200.0, 0.0, 400.0

    def __init__(
        self, chosen: Round, world: World, folder: Path, struck: list[Struck], view: View, stack: ExitStack
    ) -> None:
        super().__init__(Options(folder, 3600, str(RATES["adtech"]), (), keep=False), view, stack)
        self._round, self._world, self._folder = chosen, world, folder
        self._disks, self.struck = {}, struck
        self._kinds = {one.kind for one in chosen.breaks}
        reads.TOPICS.update(TOPICS)

    def outcome(self) -> dict[str, Any]:
        """Run the round; returns its counts of acts, events and problems."""
        verdict = self.run()
        times = self._times()
        for one in self.struck:
            one.flows(times[::2], times[1::2])
        return {
            "writes": verdict.acts,
            "events": verdict.events,
            "lost": verdict.lost,
            "duplicated": verdict.duplicated,
            "misordered": 0,
            "wrong": verdict.wrong,
            "replayed": 0,
            "copies": verdict.copies,
            "late": verdict.late,
            "retries": verdict.retries,
            "examples": [str(example) for example in verdict.examples],
            "stages": verdict.stages,
        }

    def _serve(self) -> World:
        if "full checkpoints" in self._kinds:
            self._disks["checkpoints"] = Disk(self._folder / "checkpoints")
            self._stack.callback(self._disks["checkpoints"].close)
        return self._world

    def _create(self) -> None:
        create(self._world, copies=3, config={"min.insync.replicas": "2"})
        self._world.await_topics(TOPICS)

    def _take_in(self) -> Ingest:
        workers = int(self._round.settings["workers"].partition("=")[2])
        return Ingest(self._folder, self._kafka(), stay=False, workers=workers)

    def _kafka(self) -> str:
        return self._world.reached("kafka", self._kinds)

    def _environment(self) -> dict[str, str]:
        return {
            "PENSTOCK_DEMO_CQL": self._world.cql,
            "PENSTOCK_DEMO_KAFKA": self._kafka(),
            "PENSTOCK_DEMO_POSTGRES": self._world.reached("postgres", self._kinds),
        }

    def _load_arguments(self) -> list[str]:
        address = self._ingest.address
        if "cut http" in self._kinds:
            address = self._world.network.address("http", address)
        pace = ["--rate", str(RATES["adtech"]), "--seconds", "3600", "--seed", str(self._round.number * 10)]
        return ["--address", address, "--kafka", self._world.kafka, *pace]

    def _times(self) -> array[int]:
        return self._reader.times

    def _topic(self) -> str:
        return site.EVENTS

    def _grow(self, servers: AdminClient) -> str:
        grow(servers, site.EVENTS)
        reads.TOPICS[site.EVENTS] = GROWN
        return site.EVENTS

    def _kill(self, part: str, one: Break) -> Any:
        if part == "ingest":
            self._ingest.kill()
            return self._ingest.start_again
        return super()._kill(part, one)

    def _pid(self, part: str, one: Break) -> int:
        if part == "ingest":
            return self._ingest.pid
        if part == "ingest-worker":
            workers = [one for one in child.below(self._ingest.pid) if _is_worker(one.command)]
            if not workers:
                raise PenstockError("ingest has no worker", where=str(self._ingest.log))
            return max(workers, key=lambda one: one.cpu).pid
        return super()._pid(part, one)


def _is_worker(command: str) -> bool:
    return "resource_tracker" not in command
