"""What one worker of a group does: it takes part in the group, and runs the connectors and tasks that it is assigned.

Three threads: one keeps the place in the group; another looks again and again at what should run and what runs, and
starts, stops and tells. A task is stopped before its share is given up, and started only when nobody else has it. A
worker that is not sure to be in the group any more stops its tasks at once, for others may run them already: the third
thread waits for nothing but that, while the second one may wait for Kafka.
"""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import threading
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from penstock.connect.group.division import Claim, Share, TaskId, divide
from penstock.connect.group.group_configs import DividedConnector, GroupConfigs, Restart
from penstock.connect.group.kafka_positions import KafkaPositions, KeptInKafka
from penstock.connect.group.owner import Owner
from penstock.connect.group.states import GroupStates, ReportedStatus, of_connector, of_task
from penstock.connect.worker.checks import CheckedConfig, check
from penstock.connect.worker.connector_store import STARTED
from penstock.connect.worker.connector_tasks import TaskMaker
from penstock.connect.worker.context import WorkerContext
from penstock.connect.worker.offsets import SIGNALS, KeptInFolder
from penstock.connect.worker.running_task import ENDED, FAILED, UNASSIGNED, RunningTask, key_of, trace_of
from penstock.errors import PenstockError
from penstock.process.log_lines import quoted
from penstock.run.life_signs import Observer, Observers
from penstock.run.supervise import is_batch
from penstock.wire.errors import KafkaError
from penstock.wire.group_member import GroupWork, Membership

log = logging.getLogger(__name__)

LOOK = 0.25
"""Seconds between two looks at what runs."""
ANSWER = timedelta(seconds=2)
"""How long one look may wait until all positions are read; less than any session of a member."""
ONCE = "exactly.once.support"
MemberMaker = Callable[[GroupWork], Membership]


def wants_once(checked: CheckedConfig) -> bool:
    """Whether a configuration asks for what a group cannot do: its positions are not in the transactions of events."""
    return bool(checked.values.get(ONCE) == "required")


class Positions(Observer):
    """Reports to the group where the batches of a task have ended."""

    def __init__(self, positions: KafkaPositions, connector: str) -> None:
        self._positions, self._connector = positions, connector

    def progress(self, name: str, progress: Mapping[str, Any]) -> None:
        if is_batch(progress) and progress["sources"]:
            end = progress["sources"][0]["endOffset"]
            place = self._connector, name.removeprefix(f"{self._connector}.")
            self._positions.reached(place, json.loads(end) if isinstance(end, str) else end)


@dataclass
class Running:
    """A task that runs here, or has failed; `trace` is why it could not be started."""

    id: TaskId
    share: tuple[str, ...]
    folder: Path
    task: RunningTask | None = None
    trace: str = ""
    stopping: bool = False
    signals: Mapping[str, Any] | None = None
    """What its queries know of signals."""

    def ask_to_stop(self, *, now: bool = False) -> None:
        self.stopping = True
        if self.task:
            self.task.ask_to_stop(now=now)

    @property
    def is_over(self) -> bool:
        return self.task is None or self.task.is_over

    def status(self, worker: str) -> ReportedStatus:
        if self.task is None:
            return ReportedStatus(FAILED, worker, self.trace)
        state = self.task.state
        return ReportedStatus(UNASSIGNED if state == ENDED else state, worker, self.task.trace, self.task.waits_for)


class SharedWork:
    """The work of the worker at `address`; `failure` is why it cannot take part any more."""

    def __init__(
        self,
        context: WorkerContext,
        configs: GroupConfigs,
        positions: KafkaPositions,
        states: GroupStates,
        address: str,
        member: MemberMaker,
    ) -> None:
        self._context, self._configs, self._positions, self._states = context, configs, positions, states
        self._address, self._make_member = address, member
        self.failure: Exception | None = None
        self.running: dict[TaskId, Running] = {}
        self._owners: dict[str, Owner] = {}
        self._share: Share | None = None
        self._leads = self._asked = False
        self._claim = Claim(address)
        self._divided: object = None
        self._wishes: list[Restart] = []
        self._to_redivide: set[str] = set()
        self._positions_wait: type[PenstockError] | None = None
        self._lock = threading.Lock()
        self._look, self._closing, self._joined = threading.Event(), threading.Event(), threading.Event()
        self._stopped = threading.Event()
        self._member: Membership | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._threads = [
            threading.Thread(target=target, name=f"group {name}", daemon=True)
            for name, target in (("member", self._take_part), ("work", self._work), ("watch", self._watch))
        ]

    @property
    def workers(self) -> frozenset[str]:
        """The addresses of the group's workers, as this one knows them."""
        share = self._share
        return share.workers if share else frozenset()

    def start(self) -> None:
        """Join the group; returns when this worker has its share, or the group refuses it."""
        self._configs.restart, self._configs.changed = self._wish, self._look.set
        # Of a worker that was killed here: nobody else would say that it runs nothing any more.
        self._states.begin(self._address)
        for thread in self._threads:
            thread.start()
        self._joined.wait()

    def close(self) -> None:
        """Stop all tasks after their batches, and leave the group."""
        self._closing.set()
        self._look.set()
        self._threads[1].join()
        if self._loop and self._threads[0].is_alive():
            self._loop.call_soon_threadsafe(self._left.set)
        self._threads[0].join()
        self._threads[2].join()

    # The part of the group's protocol; called in the event loop.

    def said(self) -> bytes:
        """What this worker has, or has not stopped yet."""
        share = self._share or Share()
        with self._lock:
            tasks, connectors = share.tasks | self.running.keys(), share.connectors | self._owners.keys()
        self._asked, self._claim = False, Claim(self._address, frozenset(connectors), frozenset(tasks))
        return self._claim.encoded()

    def divide(self, members: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """Divide all connectors and tasks among the workers."""
        self._divided = names, tasks = self._wanted()
        claims = {member: _claim(member, data) for member, data in members.items()}
        shares = divide(claims, names, tasks, self._configs.offset)
        return {member: share.encoded() for member, share in shares.items()}

    def assigned(self, share: bytes, leads: bool) -> None:
        """Run this share from now on."""
        self._share, self._leads = Share.decoded(share), leads
        self._joined.set()
        self._look.set()

    def lost(self, why: str) -> None:
        """Stop everything: others may run it."""
        log.warning("this worker is not in its group any more, and stops its tasks: %s", why)
        self._share, self._leads = None, False
        self._stop_now()
        self._look.set()

    def _take_part(self) -> None:
        try:
            asyncio.run(self._stay())
        except Exception as error:
            if not isinstance(error, KafkaError):
                log.exception("this worker leaves its group")
            self.failure = error
        finally:
            self._share = None
            self._joined.set()
            self._look.set()

    async def _stay(self) -> None:
        self._loop, self._left = asyncio.get_running_loop(), asyncio.Event()
        self._member = self._make_member(self)
        running, left = asyncio.create_task(self._member.run()), asyncio.create_task(self._left.wait())
        await asyncio.wait([running, left], return_when=asyncio.FIRST_COMPLETED)
        for task in (running, left):
            task.cancel()
        with suppress(asyncio.CancelledError):
            await running

    def _join_again(self) -> None:
        if self._loop and self._member and not self._asked:
            self._asked = True
            self._loop.call_soon_threadsafe(self._member.join_again)

    def _wanted(self) -> tuple[frozenset[str], frozenset[TaskId]]:
        return frozenset(self._configs.known()), frozenset(self._configs.tasks())

    def _wish(self, wish: Restart) -> None:
        with self._lock:
            self._wishes.append(wish)

    # What a lost place needs at once.

    @property
    def _is_out(self) -> bool:
        """Whether others may have what runs here."""
        return self._share is None or self._member is None or not self._member.holds

    def _watch(self) -> None:
        while not self._stopped.wait(LOOK):
            if self._is_out:
                self._stop_now()

    def _stop_now(self) -> None:
        with self._lock:
            running, owners = list(self.running.values()), list(self._owners.values())
        for task in running:
            task.ask_to_stop(now=True)
        for owner in owners:
            owner.ask_to_stop()

    # The work; all of it in one thread.

    def _work(self) -> None:
        while not self._closing.is_set():
            try:
                self._pass()
            except Exception:
                # Tasks would run on, and nobody would stop them when others take over.
                log.exception("what runs on this worker could not be changed; it is tried again")
            self._look.wait(LOOK)
            self._look.clear()
        self._stop_all()
        self._stopped.set()

    def _pass(self) -> None:
        share, cut = self._share, self._is_out
        if cut:
            share = None
        known = self._configs.known()
        self._restart(known)
        self._stop_others(share or Share(), known, now=cut)
        self._reap(known)
        if share is not None and self._configs.offset >= share.offset:
            self._start_mine(share, known)
            self._give_up(share)
            if self._leads and self._wanted() != self._divided:
                self._join_again()
        for running in self.running.values():
            self._give_signals(running)
        self._report()

    def _restart(self, known: Mapping[str, DividedConnector]) -> None:
        """Stop what is wished to start again; `_start_mine` starts it."""
        with self._lock:
            wishes, self._wishes = self._wishes, []
        for wish in wishes:
            owner = self._owners.get(wish.connector)
            everything = wish.tasks and not wish.only_failed
            if owner and wish.number is None and (owner.trace or everything):
                self._to_redivide.add(wish.connector)
                owner.ask_to_stop()
            for id, running in self.running.items():
                failed = running.status("").state == FAILED
                chosen = id.number == wish.number if wish.number is not None else wish.tasks and failed
                if id.connector == wish.connector and chosen:
                    running.ask_to_stop()

    def _stop_others(self, share: Share, known: Mapping[str, DividedConnector], *, now: bool) -> None:
        for name, owner in self._owners.items():
            of = known.get(name)
            if name not in share.connectors or of is None or of.stored.state != STARTED:
                owner.ask_to_stop()
            elif of.configured != owner.known.configured or (owner.has_divided and not of.is_divided):
                # Also if its division is gone, or was replaced by one that does not count.
                self._to_redivide.add(name)
                owner.ask_to_stop()
        for id, running in self.running.items():
            if not self._is_mine(id, share, known):
                running.ask_to_stop(now=now)

    def _is_mine(self, id: TaskId, share: Share, known: Mapping[str, DividedConnector]) -> bool:
        of = known.get(id.connector)
        if id not in share.tasks or of is None:
            return False
        return of.is_divided and of.generation == id.generation and of.stored.state == STARTED

    def _reap(self, known: Mapping[str, DividedConnector]) -> None:
        """Take away what has stopped, after its positions are written."""
        for id, running in list(self.running.items()):
            if not (
                running.stopping and running.is_over and self._positions.is_settled(id.connector, set(running.share))
            ):
                continue
            shutil.rmtree(running.folder, ignore_errors=True)
            self._context.meters.forget(key_of(id.connector, id.number))
            of = known.get(id.connector)
            if of is None or id.number >= len(of.shares):
                self._states.forget(of_task(id.connector, id.number))
            else:
                self._states.report(of_task(id.connector, id.number), ReportedStatus(UNASSIGNED, self._address))
            with self._lock:
                del self.running[id]
        for name, owner in list(self._owners.items()):
            if owner.is_over:
                if name not in known:
                    self._states.forget(of_connector(name))
                with self._lock:
                    del self._owners[name]

    def _start_mine(self, share: Share, known: Mapping[str, DividedConnector]) -> None:
        for name in sorted(share.connectors - self._owners.keys()):
            if (of := known.get(name)) and of.stored.state == STARTED:
                owner = self._owner(name, of)
                with self._lock:
                    self._owners[name] = owner
        new = sorted(id for id in share.tasks - self.running.keys() if self._is_mine(id, share, known))
        if new and not self._knows_positions():
            return
        for id in new:
            # A place that is lost meanwhile is no longer claimed, and others may have the task.
            if self._share is share and not self._is_out and self._is_mine(id, share, known):
                running = self._begin(id, known[id.connector])
                with self._lock:
                    self.running[id] = running

    def _knows_positions(self) -> bool:
        """Whether all is read that the workers wrote which had the tasks before; if not, the next pass looks again."""
        try:
            self._positions.refresh(ANSWER)
        except PenstockError as error:
            if self._positions_wait is not type(error):
                log.warning("tasks wait for their positions: %s", error)
            self._positions_wait = type(error)
            return False
        self._positions_wait = None
        return True

    def _give_up(self, share: Share) -> None:
        """Join again once everything is stopped that was claimed and is not in the share: others wait for it."""
        claimed = self._claim
        more = (claimed.tasks - share.tasks) | (claimed.connectors - share.connectors)
        if more and not more & (self.running.keys() | self._owners.keys()):
            self._join_again()

    def _owner(self, name: str, of: DividedConnector) -> Owner:
        redivide = name in self._to_redivide
        self._to_redivide.discard(name)
        positions = KeptInKafka(self._positions, name)
        return Owner(name, lambda: self.maker(name, of), of, self._context, self._configs, positions, redivide=redivide)

    def maker(self, name: str, of: DividedConnector, signals: str = "") -> TaskMaker:
        """Makes a connector's tasks; raises PenstockError for a configuration that is not valid any more."""
        context, positions = self._context, KeptInKafka(self._positions, name)
        checked = check(of.stored.config, context.provided, ask=False)
        context.secrets.keep(name, checked.secrets)
        if checked.messages:
            raise PenstockError("; ".join(checked.messages), next="correct the configuration")
        if wants_once(checked):
            raise PenstockError(
                "exactly.once.support=required is not possible in a group of workers, whose positions are in Kafka",
                where=f"connector {name}",
                next="change it, or run the connector on a worker without group.id",
            )
        return TaskMaker(name, context.servers, checked, context.producer, positions.starts(), signals)

    def _begin(self, id: TaskId, of: DividedConnector) -> Running:
        context, share = self._context, of.shares[id.number]
        running = Running(id, share, context.checkpoints / uuid.uuid4().hex)
        try:
            maker = self.maker(id.connector, of, str(running.folder / SIGNALS))
            self._give_signals(running)
            KeptInKafka(self._positions, id.connector).prepare(running.folder, set(share))
            observer = Observers(context.observer(), Positions(self._positions, id.connector))
            task = maker.task(id.number, share)

            def wrote(query: str) -> None:
                self._states.used(id.connector, maker.topic_of(query))

            running.task = RunningTask(
                task, context.spark, running.folder, wrote, context.secrets.hide, context.meters, observer
            )
        except Exception as error:
            running.trace = context.secrets.hide(trace_of(error))
            log.error("task %s-%d failed: %s", id.connector, id.number, running.trace)
        return running

    def _give_signals(self, running: Running) -> None:
        """Copy the connector's signals for the queries of a task, if they have changed."""
        known = KeptInKafka(self._positions, running.id.connector).signals()
        if known is not running.signals and known is not None:
            KeptInFolder(running.folder).keep_signals(known)
        running.signals = known

    def _report(self) -> None:
        for id, running in self.running.items():
            # What has stopped is reported by `_reap`, once nothing more comes from it.
            if not (running.stopping and running.is_over):
                self._states.report(of_task(id.connector, id.number), running.status(self._address))
        for name, owner in self._owners.items():
            status = ReportedStatus(owner.state, self._address, owner.trace, owner.waits_for)
            self._states.report(of_connector(name), status)

    def _stop_all(self) -> None:
        for running in self.running.values():
            running.ask_to_stop()
        for owner in self._owners.values():
            owner.ask_to_stop()
        while self.running or self._owners:
            self._reap(self._configs.known())
            self._look.wait(LOOK)
            self._look.clear()


def _claim(member: str, data: bytes) -> Claim:
    try:
        return Claim.decoded(data)
    except ValueError as error:
        log.warning("ignored what the worker %s says of itself: %s", quoted(member), quoted(error))
        return Claim("")
