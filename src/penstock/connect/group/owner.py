"""A connector on the worker that has it: it divides the sources among tasks, and sends heartbeats."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from penstock.connect.connector_store import STARTED
from penstock.connect.connector_tasks import TaskMaker, awaited
from penstock.connect.group.group_configs import Divided, GroupConfigs
from penstock.connect.heartbeat import Heartbeats
from penstock.connect.running_task import FAILED, RUNNING, UNASSIGNED, trace_of
from penstock.connect.world import World

log = logging.getLogger(__name__)


class Owner:
    """Begins at once, in a thread; with `anew` it divides the sources also if they are the same as before."""

    def __init__(
        self,
        maker: Callable[[], TaskMaker],
        known: Divided,
        world: World,
        configs: GroupConfigs,
        read_to: Callable[[], int | None],
        *,
        anew: bool = False,
    ) -> None:
        self.known, self._maker, self._world, self._configs = known, maker, world, configs
        self._read_to, self._anew = read_to, anew
        self.trace, self.waits_for = "", "its tasks"
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="connector", daemon=True)
        self._thread.start()

    @property
    def state(self) -> str:
        """Its state in the REST API."""
        if self.known.kept.state != STARTED:
            return self.known.kept.state
        return FAILED if self.trace else UNASSIGNED if self.waits_for else RUNNING

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def ask_to_stop(self) -> None:
        self._stopping.set()

    def _run(self) -> None:
        beats = None
        try:
            maker = self._maker()
            name = maker.connector
            if self._anew or not self.known.is_divided:
                sources = awaited(maker, self._stopping, self._wait_for)
                if self._stopping.is_set():
                    return
                self._configs.divide(name, maker.shares(sources))
            self.waits_for = ""
            if maker.setup is not None:
                beats = Heartbeats(self._world.spark, maker.setup, self._read_to)
            self._stopping.wait()
        except Exception as error:
            self.trace = self._world.secrets.hide(trace_of(error))
            log.error("a connector failed: %s", self.trace)
            self._stopping.wait()
        finally:
            self.waits_for = ""
            if beats:
                beats.stop()

    def _wait_for(self, what: str) -> str:
        self.waits_for = self._world.secrets.hide(what)
        return self.waits_for
