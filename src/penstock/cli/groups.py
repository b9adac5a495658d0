"""`penstock groups`: lists Kafka's consumer groups with their lag, describes and deletes them."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from penstock.cli.kafka_commands import add_action, confirm, opened, run_action, unknown
from penstock.cli.output import aligned, printable
from penstock.errors import PenstockError
from penstock.kafka.brokers import Brokers
from penstock.query.delivery import is_marker_group
from penstock.wire.admin import Admin
from penstock.wire.errors import (
    GroupAuthorizationFailed,
    GroupIdNotFound,
    LeaderNotAvailable,
    NonEmptyGroup,
    TopicAuthorizationFailed,
    UnknownTopicOrPartition,
)
from penstock.wire.groups import GroupInfo, GroupListing, GroupMember
from penstock.wire.topic_records import Reader

EXAMPLES = {
    "list": (
        "groups list",
        "groups list --servers kafka:9092 --json",
        "groups list --servers kafka:9093 --command-config client.properties",
    ),
    "describe": ("groups describe shop", "groups describe shop --json"),
    "delete": ("groups delete shop", "groups delete shop --yes"),
}
AT_ONCE = 16
"""Groups or topics that are asked about at the same time."""
Place = tuple[str, int]
"""A topic and a partition of it."""


@dataclass(frozen=True)
class Lag:
    """A group's position in a partition; `end` is None if the partition is gone or has no leader."""

    topic: str
    partition: int
    offset: int
    end: int | None
    metadata: str = ""

    @property
    def lag(self) -> int | None:
        return None if self.end is None else max(0, self.end - self.offset)


def add(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    action = partial(add_action, actions, EXAMPLES)
    listing = action("list", "list all groups: state, topics and lag", _list)
    describing = action("describe", "show a group: its position and lag in each partition, its members", _describe)
    deleting = action("delete", "delete a group and its offsets", _delete)
    for command in (describing, deleting):
        command.add_argument("group", metavar="GROUP")
    for command, line in ((listing, "also list"), (deleting, "delete even one of")):
        command.add_argument("--markers", action="store_true", help=f"{line} the groups of exactly-once markers")
    deleting.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    parser.set_defaults(run=run_action)


async def _list(args: argparse.Namespace, brokers: Brokers) -> None:
    async with opened(brokers) as (admin, reader):
        groups = await admin.groups.list()
        shown = [group for group in groups if args.markers or not is_marker_group(group.name)]
        lags = await lags_of(admin, reader, [group.name for group in shown])
    if args.json:
        for group in shown:
            print(json.dumps(_listed(group, lags[group.name])))
    else:
        rows = [("GROUP", "STATE", "KIND", "LAG", "TOPICS"), *(_row(group, lags[group.name]) for group in shown)]
        for line in aligned(rows):
            print(line)
    if left := len(groups) - len(shown):
        print(f"{left} groups of exactly-once markers are left out; --markers shows them", file=sys.stderr)


async def lags_of(admin: Admin, reader: Reader, groups: Iterable[str]) -> dict[str, list[Lag]]:
    """The position and the lag of groups in each of their partitions."""
    few = asyncio.Semaphore(AT_ONCE)

    async def offsets(group: str) -> Mapping[Place, Any]:
        async with few:
            try:
                return await admin.groups.offsets(group)
            except GroupAuthorizationFailed:
                return {}

    async def ends(topic: str) -> Mapping[int, int]:
        async with few:
            try:
                return await reader.latest(topic)
            except (UnknownTopicOrPartition, TopicAuthorizationFailed, LeaderNotAvailable):
                return {}

    names = list(groups)
    offsets_by_group = dict(zip(names, await asyncio.gather(*map(offsets, names)), strict=True))
    topics = sorted({topic for places in offsets_by_group.values() for topic, _ in places})
    end_of = dict(zip(topics, await asyncio.gather(*map(ends, topics)), strict=True))
    return {
        group: [
            Lag(topic, partition, at.offset, end_of[topic].get(partition), at.metadata)
            for (topic, partition), at in places.items()
        ]
        for group, places in offsets_by_group.items()
    }


def total(lags: Iterable[Lag], group: str) -> int | None:
    """The lag of a group in sum; None if it is not known, or the group has markers instead of positions."""
    known = [lag.lag for lag in lags if lag.lag is not None]
    return None if is_marker_group(group) or not known else sum(known)


def _listed(group: GroupListing, lags: list[Lag]) -> dict[str, Any]:
    return {
        "group": group.name,
        "state": group.state,
        "kind": group.kind,
        "protocol": group.protocol,
        "markers": is_marker_group(group.name),
        "topics": sorted({lag.topic for lag in lags}),
        "lag": total(lags, group.name),
    }


def _row(group: GroupListing, lags: list[Lag]) -> tuple[str, ...]:
    kind = "markers" if is_marker_group(group.name) else group.kind or "classic"
    lag = total(lags, group.name)
    topics = ", ".join(sorted({lag.topic for lag in lags}))
    return printable(group.name), group.state or "?", kind, "-" if lag is None else str(lag), topics or "-"


async def _describe(args: argparse.Namespace, brokers: Brokers) -> None:
    async with opened(brokers) as (admin, reader):
        info = await _group(admin, args.group)
        lags = (await lags_of(admin, reader, [args.group]))[args.group]
    if args.json:
        print(json.dumps(description(info, lags)))
    else:
        _print_described(info, lags)


async def _group(admin: Admin, name: str) -> GroupInfo:
    try:
        return await admin.groups.describe(name)
    except GroupIdNotFound as error:
        raise unknown("group", name, [group.name for group in await admin.groups.list()]) from error


def description(info: GroupInfo, lags: list[Lag]) -> dict[str, Any]:
    """What is known of a group, as JSON can hold it."""
    reads = _readers(info)
    return {
        "group": info.name,
        "state": info.state,
        "kind": info.kind,
        "markers": is_marker_group(info.name),
        "lag": total(lags, info.name),
        "partitions": [
            {
                "topic": lag.topic,
                "partition": lag.partition,
                "offset": lag.offset,
                "end": lag.end,
                "lag": lag.lag,
                "member": reads.get((lag.topic, lag.partition)),
            }
            for lag in lags
        ],
        "members": [_member(member) for member in info.members],
    }


def _member(member: GroupMember) -> dict[str, Any]:
    partitions = {topic: list(some) for topic, some in member.partitions.items()}
    return {"id": member.id, "client": member.client, "host": member.host, "partitions": partitions}


def _readers(info: GroupInfo) -> dict[Place, str]:
    """The member that reads each partition."""
    return {(topic, p): member.id for member in info.members for topic, some in member.partitions.items() for p in some}


def _print_described(info: GroupInfo, lags: list[Lag]) -> None:
    lag = total(lags, info.name)
    print(f"group    {printable(info.name)}")
    print(f"state    {info.state}, {info.kind}")
    if is_marker_group(info.name):
        print("markers  the offsets below are numbers of batches of an exactly-once sink, not positions of a reader")
        for marker in lags:
            print(f"         task {marker.partition}: batch {marker.offset - 1} {printable(marker.metadata)}".rstrip())
        return
    print(f"lag      {'unknown' if lag is None else lag}")
    for member in info.members:
        count = sum(map(len, member.partitions.values()))
        print(f"member   {printable(f'{member.client} at {member.host}, {count} partitions: {member.id}')}")
    if lags:
        print()
    clients = {member.id: member.client for member in info.members}
    reads = _readers(info)
    rows = [("TOPIC", "PARTITION", "OFFSET", "END", "LAG", "READ BY")]
    for at in lags:
        reader = clients.get(reads.get((at.topic, at.partition), ""), "-")
        known = ("gone", "-") if at.end is None else (str(at.end), str(at.lag))
        rows.append((at.topic, str(at.partition), str(at.offset), *known, printable(reader)))
    for line in aligned(rows) if lags else ["it has committed no offsets"]:
        print(line)


async def _delete(args: argparse.Namespace, brokers: Brokers) -> None:
    name = args.group
    if is_marker_group(name) and not args.markers:
        raise PenstockError(
            f"the group {name} has the markers of a query that writes exactly once: without them, a query that starts "
            "again may write its last batch once more",
            where=f"Kafka at {brokers}",
            next="leave it, or give --markers if the query will not start again",
        )
    async with opened(brokers) as (admin, _):
        await _group(admin, name)
        if not args.yes:
            confirm(f"Delete the group {name} and its offsets?", where=f"group {name}", command=f"groups delete {name}")
        try:
            await admin.groups.delete(name)
        except NonEmptyGroup as error:
            raise PenstockError(
                f"the group {name} has members",
                where=f"Kafka at {brokers}",
                next=f"stop them: penstock groups describe {name} shows them",
            ) from error
    print(json.dumps({"group": name, "deleted": True}) if args.json else f"deleted {name}")
