"""A member of a classic group: joins it, is given a share of the work, and keeps its place by heartbeats.

It follows the group protocol of Kafka's protocol guide ("Group Membership API"), for any kind of work: a broker, the
group's coordinator, chooses one member as the leader, which divides the work among all of them. Whenever a member
comes, leaves or wants to, all join again. `GroupWork` says what is divided, and does it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import ssl
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from penstock.wire.broker_connection import Link
from penstock.wire.cluster import Backoff, Cluster
from penstock.wire.coordinator import GROUP, Coordinator
from penstock.wire.errors import (
    FencedInstanceId,
    IllegalGeneration,
    KafkaError,
    MemberIdRequired,
    RebalanceInProgress,
    UnknownMemberId,
    error_of,
)
from penstock.wire.protocol import frames
from penstock.wire.protocol.frames import Message
from penstock.wire.sasl import Authenticate

log = logging.getLogger(__name__)

PAUSES = 0.1, 2.0
SLACK = 5.0
"""Seconds that an answer to JoinGroup may take beyond the rebalance timeout, for which the broker holds it back."""
LARGEST_ANSWER = 64 << 20
"""Bytes of an answer: the leader gets what all members have said."""


class GroupWork(Protocol):
    """What a member does; its methods are called in the event loop, and return at once."""

    def said(self) -> bytes:
        """What this member says of itself when it joins."""

    def divide(self, members: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """As the leader: the share of each member, of what each has said, by their ids."""

    def assigned(self, share: bytes, leads: bool) -> None:
        """This member has a share from now on, instead of the one before; `leads` says whether it is the leader."""

    def lost(self, why: str) -> None:
        """The group does not count on this member any more: others may have its share already."""


@dataclass(frozen=True)
class GroupTimes:
    """In seconds: without a heartbeat for `session` a member is out; all join again within `rebalance`."""

    session: float = 10.0
    heartbeat: float = 3.0
    rebalance: float = 60.0


class Membership:
    """A member of the group `name`; all members speak the same `protocol`, of the kind `kind`."""

    def __init__(
        self,
        servers: str,
        name: str,
        *,
        kind: str,
        protocol: str,
        work: GroupWork,
        times: GroupTimes,
        tls: ssl.SSLContext | None = None,
        authenticate: Authenticate | None = None,
    ) -> None:
        self._name, self._kind, self._protocol, self._work, self._times = name, kind, protocol, work, times

        def cluster(timeout: float) -> Cluster:
            link = Link(request_timeout=timeout, tls=tls, authenticate=authenticate, largest_answer=LARGEST_ANSWER)
            return Cluster(servers, link, pauses=PAUSES, create=False)

        # A broker answers the requests of a connection in order: a heartbeat must not wait behind a join.
        self._clusters = cluster(times.rebalance + SLACK), cluster(times.session / 2)
        self._joins = Coordinator(self._clusters[0], GROUP, name, times.session)
        self._beats = Coordinator(self._clusters[1], GROUP, name, times.heartbeat)
        self._id, self._generation = "", -1
        self._again = asyncio.Event()
        self._joining = True
        self._failure: KafkaError | None = None
        self._beaten = -math.inf

    @property
    def holds(self) -> bool:
        """Whether the group still counts on this member, for all that it knows; may be asked in any thread."""
        return time.monotonic() - self._beaten < self._times.session

    def join_again(self) -> None:
        """Have the work divided again; call it in the event loop."""
        self._again.set()

    async def run(self) -> None:
        """Take part until cancelled, then leave; raises `KafkaError` if the broker does not let this member in."""
        backoff = Backoff(*PAUSES)
        beats = asyncio.create_task(self._beat())
        try:
            while True:
                try:
                    await self._take_part(backoff)
                except (UnknownMemberId, FencedInstanceId) as error:
                    self._id = ""
                    self._out(error)
                except IllegalGeneration as error:
                    self._out(error)
                except KafkaError as error:
                    if not error.retriable:
                        raise
                    log.warning("group %s: %s", self._name, error)
                    backoff.failed()
                    await backoff.wait()
        finally:
            beats.cancel()
            await self._leave()
            for cluster in self._clusters:
                await cluster.close()

    async def _take_part(self, backoff: Backoff) -> None:
        """One generation of the group, up to the next."""
        self._again.clear()
        self._joining, self._failure = True, None
        joined = await self._join()
        leads = joined["leader"] == self._id
        shares: Mapping[str, bytes] = {}
        if leads:
            shares = self._work.divide({member["member_id"]: bytes(member["metadata"]) for member in joined["members"]})
        try:
            share = await self._share(shares)
        except RebalanceInProgress:
            return
        self._joining = False
        backoff.reset()
        self._work.assigned(share, leads)
        await self._again.wait()
        if self._failure:
            raise self._failure

    async def _join(self) -> Message:
        body = {
            "group_id": self._name,
            "session_timeout_ms": int(self._times.session * 1000),
            "rebalance_timeout_ms": int(self._times.rebalance * 1000),
            "protocol_type": self._kind,
        }
        while True:
            said = [{"name": self._protocol, "metadata": self._work.said()}]
            wanted = body | {"member_id": self._id, "protocols": said}
            began = time.monotonic()
            try:
                response = await self._joins.ask(frames.JOIN_GROUP, wanted, errors=self._refusal)
            except MemberIdRequired:
                continue
            if not self._id:
                self._beaten = began
            self._id, self._generation = response["member_id"], response["generation_id"]
            return response

    def _refusal(self, response: Message) -> KafkaError | None:
        """The error of an answer to JoinGroup; the first one has the id to join with (KIP-394)."""
        if not response["error_code"]:
            return None
        kind = error_of(response["error_code"])
        if kind is MemberIdRequired:
            self._id, self._beaten = response["member_id"], time.monotonic()
        return kind(f"group {self._name}")

    async def _share(self, shares: Mapping[str, bytes]) -> bytes:
        assignments = [{"member_id": member, "assignment": share} for member, share in shares.items()]
        named = {"protocol_type": self._kind, "protocol_name": self._protocol}
        response = await self._joins.ask(frames.SYNC_GROUP, {**self._me, **named, "assignments": assignments})
        return bytes(response["assignment"])

    async def _beat(self) -> None:
        """Send heartbeats, also while a join waits for other members: an answer shows that this member still counts."""
        while True:
            await asyncio.sleep(self._times.heartbeat)
            if not self._id:
                continue
            began = time.monotonic()
            try:
                await self._beats.ask(frames.HEARTBEAT, self._me)
                self._beaten = began
            except RebalanceInProgress:
                self._beaten = began
                if not self._joining:
                    self._again.set()
            except KafkaError as error:
                self._missed(error, began)

    def _missed(self, error: KafkaError, began: float) -> None:
        """A heartbeat was refused, or not answered."""
        if self._joining:
            # The join that waits is of the generation that replaces the one of this heartbeat.
            if isinstance(error, IllegalGeneration):
                self._beaten = began
        elif not error.retriable:
            self._failure = error
            self._again.set()
        elif not self.holds and self._beaten > -math.inf:
            self._out(error)

    @property
    def _me(self) -> dict[str, str | int]:
        return {"group_id": self._name, "generation_id": self._generation, "member_id": self._id}

    def _out(self, error: KafkaError) -> None:
        """The place in the group is lost; the next join gets another one."""
        self._beaten = -math.inf
        self._work.lost(str(error))
        self._again.set()

    async def _leave(self) -> None:
        """Let the others divide the work at once, instead of after the session."""
        if not self._id:
            return
        body = {"group_id": self._name, "member_id": self._id}
        with suppress(KafkaError):
            # From version 3 on several members leave with one request.
            await self._beats.ask(frames.LEAVE_GROUP, body, at_most=2)
