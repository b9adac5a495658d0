"""Consumer groups from outside: which there are, their members and offsets.

A broker lists the groups that it coordinates; all else is asked of a group's coordinator. A group is of the classic
protocol or of that of KIP-848, which have requests of their own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass

from penstock.wire.cluster import Cluster
from penstock.wire.coordinator import GROUP, Committed, Coordinator, error_of_offsets
from penstock.wire.errors import (
    GroupIdNotFound,
    IllegalGeneration,
    KafkaError,
    MalformedResponse,
    UnknownMemberId,
    UnknownTopicOrPartition,
    UnsupportedBroker,
    UnsupportedVersion,
    error_of,
)
from penstock.wire.protocol import frames
from penstock.wire.protocol.frames import Api, Message
from penstock.wire.protocol.message_codec import decoder
from penstock.wire.protocol.types import BadBytes

DEAD = "Dead"
# From version 10 on, OffsetCommit names topics by ids.
COMMIT_AT_MOST = 9
# The bytes that a classic group keeps for each member, after their version of two bytes (ConsumerProtocolAssignment).
ASSIGNMENT = Api(
    -1,
    "ConsumerProtocolAssignment",
    (0, 3),
    flexible=None,
    request="",
    response="""
    assigned_partitions []
      topic string
      partitions []int32
    user_data bytes?
    """,
)
CONSUMER = "consumer"


class GroupHasMembers(KafkaError):
    """The group has members, which commit their own offsets; nobody else may."""

    name = "GROUP_HAS_MEMBERS"
    says = "the group has active members, which commit their own offsets"
    next = "stop its members, or use a group that no consumer uses"


@dataclass(frozen=True)
class GroupListing:
    """A group; `state` and `kind` ("classic", "consumer", "share", ...) are "" from brokers that do not say them."""

    name: str
    protocol: str
    state: str
    kind: str


@dataclass(frozen=True)
class GroupMember:
    """A consumer of a group, and the partitions that it reads, by topic."""

    id: str
    client: str
    host: str
    partitions: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class GroupInfo:
    """A group and its members; a group without members is "Empty"."""

    name: str
    state: str
    kind: str
    members: tuple[GroupMember, ...]


class Groups:
    """Requests about groups; `Admin.groups` is one."""

    def __init__(self, cluster: Cluster, patience: float) -> None:
        self._cluster, self._patience = cluster, patience

    async def list(self) -> list[GroupListing]:
        """The groups of all brokers, by name."""

        async def attempt() -> list[GroupListing]:
            return [group async for group in self._listed()]

        return sorted(await self._cluster.patiently(attempt, self._patience), key=lambda group: group.name)

    async def _listed(self) -> AsyncIterator[GroupListing]:
        await self._cluster.metadata([])
        for node in self._cluster.brokers:
            answer = await self._cluster.ask(frames.LIST_GROUPS, {}, node)
            if code := answer["error_code"]:
                raise error_of(code)(f"broker {node} cannot list its groups")
            for group in answer["groups"]:
                # Before KIP-848 all groups were classic, and brokers did not say it.
                yield GroupListing(
                    group["group_id"], group["protocol_type"], group["group_state"], group["group_type"].lower()
                )

    async def describe(self, name: str) -> GroupInfo:
        """A group and its members; raises GroupIdNotFound if there is none."""
        coordinator = self._coordinator(name)
        try:
            body = {"group_ids": [name], "include_authorized_operations": False}
            response = await coordinator.ask(frames.CONSUMER_GROUP_DESCRIBE, body, errors=_error_of("groups"))
            return _consumer_group(response["groups"][0])
        except (GroupIdNotFound, UnsupportedBroker, UnsupportedVersion):
            pass  # not of that kind, or the broker knows only the classic kind
        body = {"groups": [name]}
        response = await coordinator.ask(frames.DESCRIBE_GROUPS, body, errors=_error_of("groups"))
        group = response["groups"][0]
        if group["group_state"] == DEAD:
            raise GroupIdNotFound(f"there is no group {name}")
        return _classic_group(group)

    async def offsets(self, name: str) -> dict[tuple[str, int], Committed]:
        """The committed offsets of a group by (topic, partition); none if the group does not exist."""
        try:
            return dict(sorted((await self._coordinator(name).offsets()).items()))
        except GroupIdNotFound:
            return {}

    async def commit(self, name: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Set offsets of a group from outside, by (topic, partition); the group is made if there is none.

        Raises GroupHasMembers if consumers are in it, UnknownTopicOrPartition if there is no such topic.
        """
        topics: dict[str, list[dict[str, int]]] = defaultdict(list)
        for (topic, partition), offset in offsets.items():
            topics[topic].append({"partition_index": partition, "committed_offset": offset})
        body = {"group_id": name, "topics": [{"name": topic, "partitions": all} for topic, all in topics.items()]}
        try:
            await self._coordinator(name).ask(
                frames.OFFSET_COMMIT,
                body,
                at_most=COMMIT_AT_MOST,
                errors=error_of_offsets,
                final=(UnknownTopicOrPartition,),
            )
        except (UnknownMemberId, IllegalGeneration) as error:
            raise GroupHasMembers(f"group {name}") from error

    async def delete(self, name: str) -> None:
        """Delete a group and its offsets; raises GroupIdNotFound, or NonEmptyGroup if it has members."""
        await self._coordinator(name).ask(frames.DELETE_GROUPS, {"groups_names": [name]}, errors=_error_of("results"))

    def _coordinator(self, group: str) -> Coordinator:
        return Coordinator(self._cluster, GROUP, group, self._patience)


def _error_of(member: str) -> Callable[[Message], KafkaError | None]:
    """Finds the error of the only group in an answer."""

    def group_error(answer: Message) -> KafkaError | None:
        groups = answer[member]
        if len(groups) != 1:
            return MalformedResponse(f"{len(groups)} results for one group")
        code, name = groups[0]["error_code"], groups[0]["group_id"]
        return error_of(code)(f"group {name}") if code else None

    return group_error


def _consumer_group(group: Message) -> GroupInfo:
    members = [
        GroupMember(
            member["member_id"],
            member["client_id"],
            member["client_host"],
            {of["topic_name"]: tuple(of["partitions"]) for of in member["assignment"]["topic_partitions"]},
        )
        for member in group["members"]
    ]
    return GroupInfo(group["group_id"], group["group_state"], CONSUMER, tuple(members))


def _classic_group(group: Message) -> GroupInfo:
    members = [
        GroupMember(
            member["member_id"], member["client_id"], member["client_host"], _assigned(member["member_assignment"])
        )
        for member in group["members"]
    ]
    return GroupInfo(group["group_id"], group["group_state"], "classic", tuple(members))


def _assigned(data: bytes) -> dict[str, tuple[int, ...]]:
    """The partitions in a member's assignment; none if it is not a consumer's, or the group is not stable."""
    if len(data) < 2:
        return {}
    # Later versions only add fields at the end (KIP-429).
    version = min(int.from_bytes(data[:2], "big"), ASSIGNMENT.versions[1])
    try:
        assignment, _ = decoder(ASSIGNMENT, "response", version)(memoryview(data), 2)
    except BadBytes:
        return {}
    return {topic["topic"]: tuple(topic["partitions"]) for topic in assignment["assigned_partitions"]}
