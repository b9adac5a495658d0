"""Members of a group on a real broker: they divide work, and a member that goes or dies leaves its share to others."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable, Mapping

import pytest
from waiting import PATIENCE

from penstock.local.services import Services
from penstock.wire.admin import Admin
from penstock.wire.broker_connection import BrokerConnection
from penstock.wire.cluster import Broker
from penstock.wire.errors import ConnectionLost, InconsistentGroupProtocol
from penstock.wire.group_member import GroupTimes, Membership

TIMES = GroupTimes(session=6, heartbeat=0.2, rebalance=20)
WORK = range(12)


class Share:
    """A part of the numbers in WORK, divided by the leader."""

    def __init__(self, name: str) -> None:
        self.name, self.numbers, self.leads, self.out = name, set[int](), False, list[str]()
        self.changed = asyncio.Condition()
        self.members: dict[str, str] = {}

    def said(self) -> bytes:
        return self.name.encode()

    def divide(self, members: Mapping[str, bytes]) -> Mapping[str, bytes]:
        self.members = {id: said.decode() for id, said in members.items()}
        ids = sorted(members)
        return {id: json.dumps([*WORK[at :: len(ids)]]).encode() for at, id in enumerate(ids)}

    def assigned(self, share: bytes, leads: bool) -> None:
        self.numbers, self.leads = set(json.loads(share)), leads

    def lost(self, why: str) -> None:
        self.numbers = set()
        self.out.append(why)


def member(services: Services, group: str, share: Share, *, protocol: str = "shares") -> Membership:
    return Membership(services.kafka, group, kind="test", protocol=protocol, work=share, times=TIMES)


async def ended(*tasks: asyncio.Task[None]) -> None:
    """Cancel members, and wait until they have left."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            if reached():
                return
            await asyncio.sleep(0.05)


async def divided(*shares: Share) -> None:
    """Wait until these have all of the work, each some of it, and nobody the same."""

    def found() -> bool:
        numbers = [number for share in shares for number in share.numbers]
        return sorted(numbers) == [*WORK] and all(share.numbers for share in shares)

    await until(found)


def test_members_divide_the_work_and_take_over_from_one_that_leaves(services: Services) -> None:
    async def main() -> None:
        group = f"g-{uuid.uuid4().hex}"
        shares = [Share(name) for name in "abc"]
        running = [asyncio.create_task(member(services, group, share).run()) for share in shares]
        await divided(*shares)
        assert [share.leads for share in shares].count(True) == 1
        (leader,) = (share for share in shares if share.leads)
        assert sorted(leader.members.values()) == ["a", "b", "c"]
        async with Admin(services.kafka) as admin:
            (listed,) = [one for one in await admin.groups.list() if one.name == group]
        assert (listed.protocol, listed.state) == ("test", "Stable")
        gone = shares.index(leader)
        await ended(running.pop(gone))
        shares.pop(gone)
        await divided(*shares)
        await ended(*running)
        assert not any(share.out for share in shares)

    asyncio.run(main())


def test_a_member_that_dies_is_out_after_the_session(services: Services) -> None:
    async def main() -> None:
        group = f"g-{uuid.uuid4().hex}"
        left, dead = Share("left"), Share("dead")
        lives, dies = member(services, group, left), member(services, group, dead)
        tasks = [asyncio.create_task(one.run()) for one in (lives, dies)]
        await divided(left, dead)
        await cut_off(dies)
        await divided(left)
        await until(lambda: not dies.holds and bool(dead.out))
        assert not dead.numbers
        assert lives.holds and not left.out
        await ended(*tasks)

    asyncio.run(main())


async def cut_off(member: Membership) -> None:
    """Cut a member off from the brokers."""

    async def connect(broker: Broker) -> BrokerConnection:
        raise ConnectionLost("the network is down")

    for cluster in member._clusters:
        cluster.connect = connect  # type: ignore[method-assign]
        for peer in [*cluster._peers.values()]:
            if peer.connection:
                await peer.connection.close()


def test_a_member_of_another_protocol_is_refused(services: Services) -> None:
    async def main() -> None:
        group = f"g-{uuid.uuid4().hex}"
        share = Share("a")
        first = asyncio.create_task(member(services, group, share).run())
        await divided(share)
        with pytest.raises(InconsistentGroupProtocol):
            await member(services, group, Share("b"), protocol="other").run()
        await ended(first)

    asyncio.run(main())
