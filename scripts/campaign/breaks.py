"""Does and undoes each kind of break; and the stage that does a round's breaks while its load runs."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from array import array
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewPartitions

from campaign.plan import GAP, Break, Round
from campaign.world import World
from penstock.errors import PenstockError
from penstock.local.process import tail
from penstock_demo import child
from penstock_demo.node import connect, publish
from penstock_demo.parts import Pipeline
from penstock_demo.stage import Stage

WAIT = 600.0
"""Seconds that a load may take to make progress, or to get its last answers, also on a busy machine."""
DISK = "256m"
ROOM = 20_000
"""Bytes that a log may still grow on a full disk."""
ENDED_BY = ("kill jvm", "kill driver", "full checkpoints")
"""Breaks after which `penstock run` may end and is started again."""
AWAY = ("kill driver", "kill ingest")
"""Breaks that end a part on purpose, until it is started again."""
NEWEST = 20
"""The number of newest events that are checked for an event after a break."""
FAKETIME = (
    "/usr/lib/*/faketime/libfaketimeMT.so.1",
    "/usr/local/lib/faketime/libfaketimeMT.so.1",
    "/opt/homebrew/lib/faketime/libfaketime.1.dylib",
)
GROWN = 5
"""The new number of partitions of a topic."""

Undo = Callable[[], None]


class Impossible(Exception):
    """A break is not possible on this machine; the message says why."""


@dataclass
class Struck:
    """A done break: its time, the time when it was undone, and the seconds until events flowed again."""

    kind: str
    told: str
    at_us: int
    undone_us: int = 0
    flowed_s: float | None = None

    def flows(self, times: Iterable[int], received: Iterable[int]) -> None:
        """Set `flowed_s` by the first receipt of a result whose cause (`times`) came after the break."""
        after = [seen for caused, seen in zip(times, received, strict=False) if caused >= self.at_us]
        self.flowed_s = round((min(after) - self.at_us) / 1e6, 1) if after else None


@cache
def faketime() -> str:
    """The path of the library that changes a process's clock; empty if there is none that Python can run with."""
    given = os.environ.get("FAKETIME_LIBRARY", "")
    found = [str(path) for pattern in FAKETIME for path in Path("/").glob(pattern.lstrip("/"))]
    return next(filter(_sleeps, [given] * bool(given) + found), "")


def _sleeps(library: str) -> bool:
    """libfaketime 0.9.10 and older raise EINVAL in `time.sleep` of Python 3.11 (its issue 426)."""
    clock = {"LD_PRELOAD": library, "FAKETIME": "-20s", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    nap = [sys.executable, "-c", "import time; time.sleep(0.01)"]
    return subprocess.run(nap, env=os.environ | clock, capture_output=True, check=False).returncode == 0


def require_possible(chosen: Round) -> None:
    """Raises Impossible for a round that this machine cannot play."""
    if any(one.kind == "jump clock" for one in chosen.breaks) and not faketime():
        raise Impossible(
            "libfaketime, which changes clocks, was not found, or is 0.9.10 or older, with which Python cannot sleep;"
            " install a newer one and set FAKETIME_LIBRARY to its path"
        )


class Disk:
    """A folder whose disk can be filled: a small file system, if this user may mount it.

    Otherwise the size of files is limited for the process that writes there.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(folder)]
        self.mounted = bool(shutil.which("mount")) and subprocess.call(mount, stderr=subprocess.DEVNULL) == 0

    def fill(self, writer: int) -> Undo:
        if not self.mounted:
            _, hard = resource.prlimit(writer, resource.RLIMIT_FSIZE)
            resource.prlimit(writer, resource.RLIMIT_FSIZE, (0, hard))
            return lambda: _unlimited(writer)
        filler = self._folder / ".filler"
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 20))
        with suppress(OSError), filler.open("ab", buffering=0) as file:
            while True:
                file.write(bytes(512))
        return lambda: filler.unlink(missing_ok=True)

    def close(self) -> None:
        if self.mounted:
            subprocess.run(["umount", "--lazy", str(self._folder)], check=False)


def _unlimited(writer: int) -> None:
    with suppress(ProcessLookupError):
        _, hard = resource.prlimit(writer, resource.RLIMIT_FSIZE)
        resource.prlimit(writer, resource.RLIMIT_FSIZE, (hard, hard))


class Clock:
    """The clock of processes that run with `environment`."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "clock"
        self.set(0)
        self.environment = {
            "LD_PRELOAD": faketime(),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def set(self, ahead: float) -> None:
        fresh = self._file.with_suffix(".new")
        fresh.write_text(f"{ahead:+g}s\n")
        fresh.replace(self._file)


class Breaking(Stage[Any, Any]):
    """Does the breaks of a round one after the other while the load runs; each is undone before the next."""

    _world: World
    _round: Round
    _pipeline: Pipeline
    _clock: Clock | None = None
    _away = False
    _disks: dict[str, Disk]
    struck: list[Struck]

    def _times(self) -> array[int]:
        """The time of each cause and the time of receipt of its result, alternating, in microseconds."""
        raise NotImplementedError

    def _topic(self) -> str:
        """A topic that is always being written."""
        raise NotImplementedError

    def _grow(self, servers: AdminClient) -> str:
        """Add partitions to a topic; returns its name."""
        raise NotImplementedError

    def _alteration(self) -> str:
        """A CQL statement that alters a table."""
        raise NotImplementedError

    def _run_load(self) -> None:
        earliest = 0.0
        for one in self._round.breaks:
            self._until(self._flows, "no events come after the last break", WAIT)
            at = max(one.at, earliest)
            self._until(lambda at=at: self._load.status.seconds >= at, "the load stands still", WAIT)  # type: ignore[misc]
            self._strike(one)
            earliest = self._load.status.seconds + GAP
        self._until(lambda: self._load.status.seconds >= earliest, "the load stands still", WAIT)
        self._load.stop()
        self._until(lambda: self._load.done, "the load does not end", WAIT)

    def _flows(self) -> bool:
        """Whether an event was received that was caused after the last break was undone."""
        newest = self._times()[-2 * NEWEST :: 2]
        return not self.struck or max(newest, default=0) >= self.struck[-1].undone_us

    def _strike(self, one: Break) -> None:
        self._phase(str(one))
        struck = Struck(one.kind, str(one), time.time_ns() // 1000)
        self.struck.append(struck)
        undo = self._do(one)
        self._away = one.kind in AWAY
        until = time.monotonic() + one.lasts
        while time.monotonic() < until:
            self._turn()
        undo()
        self._away = False
        struck.undone_us = time.time_ns() // 1000
        self._world.remember()
        self._phase("running after the break")

    def _do(self, one: Break) -> Undo:
        done, _, part = one.kind.partition(" ")
        return {
            "kill": self._kill,
            "pause": self._pause,
            "cut": self._cut,
            "full": self._fill,
            "jump": self._jump,
            "alter": self._alter,
            "new": self._publish,
            "add": self._add,
        }[done](part, one)

    def _kill(self, part: str, one: Break) -> Undo:
        if part == "driver":
            self._pipeline.kill()
            return self._pipeline.start_again
        if part == "broker":
            number = self._world.leader(self._topic())
            self._world.brokers.kill(number)
            return lambda: self._start_broker(number)
        if part == "cql":
            number = one.pick % 3
            self._world.nodes.kill(number)
            return lambda: self._world.nodes.start(number)
        os.kill(self._pid(part, one), signal.SIGKILL)
        if part in ("postgres", "registry"):
            return lambda: self._world.start_again(part)
        return lambda: None

    def _start_broker(self, number: int) -> None:
        self._world.brokers.start(number)
        self._world.brokers.wait(number)

    def _pause(self, part: str, one: Break) -> Undo:
        pids = self._tree(self._pipeline.pid) if part == "driver" else [self._pid(part, one)]
        if part in ("postgres", "ingest"):
            pids = self._tree(pids[0])
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        return lambda: resume(pids)

    def _await(self, find: Callable[[], int]) -> int:
        """Wait for a process of the pipeline, which may still be starting."""
        deadline = time.monotonic() + WAIT
        while True:
            try:
                return find()
            except PenstockError:
                if time.monotonic() > deadline:
                    raise
            self._turn()

    def _tree(self, pid: int) -> list[int]:
        return [pid, *(other.pid for other in child.below(pid))]

    def _pid(self, part: str, one: Break) -> int:
        if part in ("worker", "jvm"):
            return self._await(self._pipeline.worker if part == "worker" else self._pipeline.jvm)
        if part == "broker":
            return self._world.brokers.pid(self._world.leader(self._topic()))
        if part == "cql":
            return self._world.nodes.pid(one.pick % 3)
        return self._world.pids[part]

    def _cut(self, part: str, one: Break) -> Undo:
        self._world.network.cut(part)
        return lambda: self._world.network.mend(part)

    def _fill(self, part: str, one: Break) -> Undo:
        if part != "broker":
            return self._disks[part].fill(self._await(self._pipeline.jvm))
        number = self._world.leader(self._topic())
        self._world.brokers.fill_disk(number, self._topic(), ROOM)

        def start() -> None:
            self._world.brokers.wait_for_end(number)
            self._start_broker(number)

        return start

    def _jump(self, part: str, one: Break) -> Undo:
        assert self._clock
        self._clock.set(one.jump)
        return lambda: self._clock.set(0) if self._clock else None

    def _alter(self, part: str, one: Break) -> Undo:
        with connect(self._world.cql) as session:
            session.execute(self._alteration(), timeout=60)
        return lambda: None

    def _publish(self, part: str, one: Break) -> Undo:
        with connect(self._world.cql) as session:
            publish(session)
        return lambda: None

    def _add(self, part: str, one: Break) -> Undo:
        self._grow(AdminClient({"bootstrap.servers": self._world.kafka, "log_level": 0}))
        return lambda: None

    def _look(self) -> None:
        """Start the pipeline again if the break ended it, as an operator would."""
        if self._away:
            return
        if self._pipeline.code is not None and any(one.kind in ENDED_BY for one in self.struck):
            self._view.say(f"the pipeline ended with code {self._pipeline.code}: {tail(self._pipeline.log, 2)}")
            self._pipeline.start_again()
        super()._look()


def resume(pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def grow(admin: AdminClient, topic: str, count: int = GROWN) -> None:
    """Add partitions to a topic, up to `count`."""
    for done in admin.create_partitions([NewPartitions(topic, count)]).values():
        try:
            done.result()
        except Exception as error:
            raise PenstockError(f"partitions cannot be added to topic {topic}: {error}") from error
