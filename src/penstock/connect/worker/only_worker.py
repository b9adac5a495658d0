"""Of the workers on their own with one topic of configurations only one runs: two would run each connector twice.

They are members of one Kafka group, whose leader names the one that came first. The others do not start; one that runs,
and hears after a break that another came before it, ends.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from penstock.errors import PenstockError
from penstock.wire.errors import KafkaError
from penstock.wire.group_member import GroupTimes, Membership

log = logging.getLogger(__name__)

PREFIX = "penstock-connect-"
"""Of the group's name; the topic's name follows."""
KIND, PROTOCOL = "penstock-connect", "alone-1"
TIMES = GroupTimes(session=6.0, heartbeat=2.0, rebalance=10.0)
"""The broker counts a killed worker as a member for a session: the next one starts that much later."""
PATIENCE = 60.0
"""Seconds to wait for the group; the connectors do not wait for a broker that gives no answer."""


class OnlyWorker:
    """Takes part in the group while the code inside runs; joining may take seconds, so begin early."""

    def __init__(self, servers: str, topic: str, address: str, security: Mapping[str, Any]) -> None:
        self._servers, self._topic, self._security = servers, topic, security
        self._own = {"address": address, "since": time.time_ns()}
        self._first: Mapping[str, Any] | None = None
        self._known = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._left, self._leaving = asyncio.Event(), False
        self._thread = threading.Thread(target=self._take_part, name="only worker", daemon=True)

    def __enter__(self) -> OnlyWorker:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._leaving = True
        if self._loop:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._left.set)
        self._thread.join()

    def begin(self) -> None:
        """Return once this worker is known to be the first one; raises PenstockError if another one is."""
        if not self._known.wait(PATIENCE):
            log.warning("it is not known whether another worker runs the connectors of topic %s", self._topic)
        self.require()

    def require(self) -> None:
        """Raise PenstockError if another worker runs these connectors, for all that is known now."""
        if self._first is not None and self._first != self._own:
            raise PenstockError(
                f"the worker at {self._first['address']} already runs the connectors of topic {self._topic}",
                where=self._servers,
                next="stop it, or give both workers a group.id, or give this one another config.storage.topic",
            )

    # The part of the group's protocol; called in the event loop.

    def said(self) -> bytes:
        """What this worker says of itself."""
        return json.dumps(self._own).encode()

    def divide(self, members: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """Let all members know which of them came first."""
        first = min(members.values(), key=lambda said: (json.loads(said)["since"], said))
        return dict.fromkeys(members, first)

    def assigned(self, share: bytes, leads: bool) -> None:
        """Hear who came first."""
        self._first = json.loads(share)
        self._known.set()

    def lost(self, why: str) -> None:
        """The next join shows whether another worker has come meanwhile."""
        log.warning("this worker is not known to be the only one of topic %s any more: %s", self._topic, why)

    def _take_part(self) -> None:
        try:
            asyncio.run(self._stay())
        except KafkaError as error:
            log.warning(
                "it is not known whether another worker runs the connectors of topic %s: %s", self._topic, error
            )
        finally:
            self._known.set()

    async def _stay(self) -> None:
        self._loop = asyncio.get_running_loop()
        if self._leaving:  # before there was a loop to call
            return
        member = Membership(
            self._servers,
            PREFIX + self._topic,
            kind=KIND,
            protocol=PROTOCOL,
            work=self,
            times=TIMES,
            **self._security,
        )
        running, left = asyncio.create_task(member.run()), asyncio.create_task(self._left.wait())
        await asyncio.wait([running, left], return_when=asyncio.FIRST_COMPLETED)
        for task in (running, left):
            task.cancel()
        with suppress(asyncio.CancelledError):
            await running
