"""`penstock topics`: lists, describes and changes Kafka's topics, counts their records and shows them."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import asdict
from functools import partial
from typing import Any

import pyarrow as pa

from penstock.cli import topic_tail
from penstock.cli.arguments import add_kafkas_names, positive
from penstock.cli.kafka_commands import MOST_DECOMPRESSED, add_action, confirm, near, opened, run_action, unknown
from penstock.cli.output import aligned, while_read
from penstock.errors import PenstockError
from penstock.kafka.brokers import Brokers
from penstock.wire.admin import DEFAULT, Admin, TopicInfo
from penstock.wire.errors import InvalidConfig, InvalidReplicationFactor, KafkaError, UnknownTopicOrPartition
from penstock.wire.topic_records import Reader

EXAMPLES = {
    "list": (
        "topics list",
        "topics list --servers kafka:9092 --json",
        "topics list --servers kafka:9093 --command-config client.properties",
    ),
    "describe": ("topics describe shop.orders", "topics describe shop.orders --json"),
    "create": (
        "topics create shop.orders --partitions 6",
        "topics create shop.totals --partitions 6 --replication 3 --set cleanup.policy=compact",
    ),
    "alter": (
        "topics alter shop.orders --set retention.ms=86400000",
        "topics alter shop.orders --partitions 12 --unset retention.ms",
    ),
    "delete": ("topics delete shop.orders", "topics delete shop.orders shop.totals --yes"),
    "count": ("topics count shop.orders",),
    "tail": topic_tail.EXAMPLES,
}
OUTSIDE_BRACKETS = re.compile(r",(?=[^\]]*(?:\[|$))")
"""A comma between two settings; Kafka's own tools split them so."""
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def add(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    action = partial(add_action, actions, EXAMPLES)
    action("list", "list all topics and their number of partitions", _list)
    describing = action("describe", "show a topic: partitions, replicas, offsets, settings, sizes", _describe)
    creating = action("create", "create a topic", _create)
    altering = action("alter", "change the settings of a topic, or give it more partitions", _alter)
    deleting = action("delete", "delete topics and their records", _delete)
    counting = action("count", "count the records of a topic by reading them", _count)
    tail = action(
        "tail",
        "show the last records, then new records, until Ctrl-C; wait for a topic that does not exist",
        topic_tail.act,
    )
    for command in (describing, creating, altering, counting, tail):
        command.add_argument("topic", metavar="TOPIC")
    deleting.add_argument("topics", metavar="TOPIC", nargs="+")
    deleting.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    creating.add_argument(
        "--replication", type=positive, metavar="N", help="replicas of each partition (default: the cluster's default)"
    )
    add_kafkas_names(creating, "--replication", "--replication-factor")
    creating.add_argument("--if-not-exists", action="store_true", help="a topic that exists is not an error")
    altering.add_argument("--unset", action="append", default=[], metavar="NAME", help="give a setting its default")
    altering.add_argument(
        "--delete-config",
        dest="unset",
        type=_names,
        action="extend",
        metavar="NAME,...",
        help="the same for several, as kafka-configs.sh takes them",
    )
    altering.add_argument(
        "--add-config",
        dest="config",
        type=_settings,
        action="extend",
        metavar="NAME=VALUE,...",
        help="as --set for several, with [a,b] for a value with commas, as kafka-configs.sh takes them",
    )
    for command in (creating, altering):
        more = "" if command is creating else "; more than now: keys may then go to other partitions"
        command.add_argument("--partitions", type=positive, metavar="N", help=f"number of partitions{more}")
        command.add_argument(
            "--set",
            dest="config",
            type=_setting,
            action="append",
            default=[],
            metavar="NAME=VALUE",
            help="a setting of the topic",
        )
        add_kafkas_names(command, "--set", "--config")
    for command in (counting, tail):
        _add_reading(command)
    topic_tail.add_options(tail)
    parser.set_defaults(run=run_action)


def _add_reading(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--uncommitted", action="store_true", help="also read records of open and aborted transactions")
    parser.add_argument(
        "--max-decompressed-bytes",
        type=positive,
        metavar="N",
        help=f"bytes that a record batch may decompress to (default: {MOST_DECOMPRESSED})",
    )


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE, such as retention.ms=86400000")
    return name, value


def _settings(text: str) -> list[tuple[str, str]]:
    """The settings of `--add-config`, whose values are in brackets if they have commas."""
    pairs = [_setting(setting) for setting in OUTSIDE_BRACKETS.split(text)]
    return [(name, value.removeprefix("[").removesuffix("]")) for name, value in pairs]


def _names(text: str) -> list[str]:
    return text.split(",")


async def _list(args: argparse.Namespace, brokers: Brokers) -> None:
    async with Reader(brokers.servers, **brokers.client()) as reader:
        list_topics(await reader.topics(), as_json=args.json)


def list_topics(topics: Mapping[str, int], *, as_json: bool) -> None:
    width = max((len(name) for name in topics), default=0)
    for name, count in sorted(topics.items()):
        print(json.dumps({"topic": name, "partitions": count}) if as_json else f"{name:<{width}} {count:>6}")


async def _describe(args: argparse.Namespace, brokers: Brokers) -> None:
    async with opened(brokers) as (admin, reader):
        described = await description(admin, reader, args.topic)
    if args.json:
        print(json.dumps(described))
    else:
        _print_described(described)


async def description(admin: Admin, reader: Reader, name: str) -> dict[str, Any]:
    """What is known of a topic, as JSON can hold it; raises PenstockError if there is none.

    Offsets and sizes are None where no leader can tell them; settings are those that are not Kafka's defaults.
    """
    topic = await _topic(admin, name)
    led = all(partition.leader >= 0 for partition in topic.partitions)
    first, end = (await reader.earliest(name), await reader.latest(name)) if led else ({}, {})
    sizes = await admin.sizes(topic)
    partitions = [
        asdict(partition)
        | {
            "first": first.get(partition.partition),
            "end": end.get(partition.partition),
            "bytes": sizes.get(partition.partition),
        }
        for partition in topic.partitions
    ]
    configs = [asdict(entry) for entry in await admin.configs(name) if entry.source != DEFAULT]
    return {
        "topic": name,
        "id": topic.id,
        "internal": topic.internal,
        "replication": max((len(partition.replicas) for partition in topic.partitions), default=0),
        "under_replicated": [
            partition.partition for partition in topic.partitions if len(partition.in_sync) < len(partition.replicas)
        ],
        "partitions": partitions,
        "configs": configs,
    }


async def _topic(admin: Admin, name: str) -> TopicInfo:
    try:
        return await admin.topic(name)
    except UnknownTopicOrPartition as error:
        raise unknown("topic", name, await admin.topics()) from error


def _print_described(described: Mapping[str, Any]) -> None:
    partitions = described["partitions"]
    print(f"topic        {described['topic']}{' (internal)' if described['internal'] else ''}")
    print(f"id           {described['id'] or '-'}")
    print(f"partitions   {len(partitions)} with {_counted(described['replication'], 'replica')}")
    if all(partition["bytes"] is not None for partition in partitions):
        print(f"size         {_size(sum(partition['bytes'] for partition in partitions))}, without copies")
    for entry in described["configs"]:
        value = "(secret)" if entry["value"] is None else entry["value"]
        print(f"setting      {entry['name']}={value} ({entry['source']})")
    print()
    rows = [("PARTITION", "LEADER", "REPLICAS", "IN SYNC", "FIRST", "END", "OFFSETS", "SIZE"), *map(_row, partitions)]
    for line in aligned(rows):
        print(line)
    if missing := described["under_replicated"]:
        print(f"\npartitions without all their replicas: {', '.join(map(str, missing))}; see that all brokers run")


def _row(partition: Mapping[str, Any]) -> tuple[str, ...]:
    known = partition["first"] is not None and partition["end"] is not None
    return (
        str(partition["partition"]),
        "none" if partition["leader"] < 0 else str(partition["leader"]),
        ",".join(map(str, partition["replicas"])),
        ",".join(map(str, partition["in_sync"])) or "-",
        str(partition["first"]) if known else "-",
        str(partition["end"]) if known else "-",
        str(partition["end"] - partition["first"]) if known else "-",
        "-" if partition["bytes"] is None else _size(partition["bytes"]),
    )


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _size(count: float) -> str:
    for unit in UNITS:
        if count < 1024 or unit == UNITS[-1]:
            break
        count /= 1024
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"


async def _create(args: argparse.Namespace, brokers: Brokers) -> None:
    async with opened(brokers) as (admin, reader):
        try:
            created = await admin.create_topic(
                args.topic,
                partitions=args.partitions or -1,
                replication=args.replication or -1,
                configs=dict(args.config),
            )
        except InvalidConfig as error:
            raise await _wrong_setting(admin, args, error) from error
        except InvalidReplicationFactor as error:
            raise PenstockError(
                str(error), where=f"Kafka at {brokers}", next="give --replication at most as many as there are brokers"
            ) from error
        if not created and not args.if_not_exists:
            raise PenstockError(
                f"there is a topic {args.topic} already",
                where=f"Kafka at {brokers}",
                next=f"see it: penstock topics describe {args.topic}, or give --if-not-exists",
            )
        topic = await admin.topic(args.topic, is_new=True)
        described = await description(admin, reader, args.topic) if args.json else None
    replicas = _counted(len(topic.partitions[0].replicas), "replica")
    shape = f"{_counted(len(topic.partitions), 'partition')} with {replicas}"
    verb = "created" if created else "exists:"
    print(json.dumps(described) if described else f"{verb} {args.topic}, {shape}")


async def _alter(args: argparse.Namespace, brokers: Brokers) -> None:
    if not (args.partitions or args.config or args.unset):
        raise PenstockError(
            "nothing to change",
            where=f"topic {args.topic}",
            next="give --partitions, --set NAME=VALUE or --unset NAME",
        )
    async with opened(brokers) as (admin, reader):
        topic = await _topic(admin, args.topic)
        before = {entry.name: entry.value for entry in await admin.configs(args.topic)}
        if args.partitions is not None and args.partitions <= len(topic.partitions):
            raise PenstockError(
                f"the topic has {len(topic.partitions)} partitions, and Kafka only adds some",
                where=f"topic {args.topic}",
                next="give --partitions a larger number, or copy the topic to a new one",
            )
        for name in args.unset:
            if name not in before:
                raise _unknown_setting(name, before, args.topic)
        if args.config or args.unset:
            try:
                await admin.alter_configs(args.topic, dict.fromkeys(args.unset) | dict(args.config))
            except InvalidConfig as error:
                raise await _wrong_setting(admin, args, error) from error
        if args.partitions is not None:
            await admin.create_partitions(args.topic, args.partitions)
        await _print_changes(args, admin, reader, before, len(topic.partitions))


async def _print_changes(
    args: argparse.Namespace, admin: Admin, reader: Reader, before: Mapping[str, str | None], count: int
) -> None:
    if args.json:
        print(json.dumps(await description(admin, reader, args.topic)))
        return
    after = {entry.name: entry.value for entry in await admin.configs(args.topic)}
    for name in [*args.unset, *(name for name, _ in args.config)]:
        print(f"{name}: was {before.get(name)}, is {after.get(name)}")
    if args.partitions is not None:
        print(f"partitions: was {count}, is {args.partitions}")
        print("New records of a key may go to another partition than its earlier ones.", file=sys.stderr)


async def _wrong_setting(admin: Admin, args: argparse.Namespace, error: KafkaError) -> PenstockError:
    """The error for a setting that the broker refuses, with the names that are near to an unknown one."""
    topics = await admin.topics()
    any_topic = args.topic if args.topic in topics else next(iter(topics), None)
    known = {entry.name: entry.value for entry in await admin.configs(any_topic)} if any_topic else {}
    for name, _ in args.config:
        if known and name not in known:
            return _unknown_setting(name, known, args.topic)
    return PenstockError(error.detail or str(error), where=f"topic {args.topic}", next="correct the setting's value")


def _unknown_setting(name: str, known: Mapping[str, Any], topic: str) -> PenstockError:
    step = near(name, known) or 'see "Topic Configs" in the documentation of Kafka'
    return PenstockError(f"Kafka has no setting {name} of topics", where=f"topic {topic}", next=step)


async def _delete(args: argparse.Namespace, brokers: Brokers) -> None:
    async with opened(brokers) as (admin, reader):
        # All names are looked up before the first topic is gone.
        for name in args.topics:
            if (await _topic(admin, name)).internal:
                raise PenstockError(
                    f"{name} is a topic of Kafka itself", where=f"Kafka at {brokers}", next="leave it: Kafka needs it"
                )
        for name in args.topics:
            if not args.yes:
                first, end = await reader.earliest(name), await reader.latest(name)
                held = sum(end[p] - first[p] for p in end)
                question = f"Delete the topic {name} with {held} offsets in {len(end)} partitions, for ever?"
                confirm(question, where=f"topic {name}", command=f"topics delete {name}")
            await admin.delete_topic(name)
            print(json.dumps({"topic": name, "deleted": True}) if args.json else f"deleted {name}")


async def _count(args: argparse.Namespace, brokers: Brokers) -> None:
    async with Reader(brokers.servers, committed=not args.uncommitted, **brokers.client()) as reader:
        await while_read(count(reader, args))


async def count(reader: Reader, args: argparse.Namespace) -> None:
    try:
        start, end = await reader.earliest(args.topic), await reader.latest(args.topic)
    except UnknownTopicOrPartition as error:
        raise unknown("topic", args.topic, await reader.topics()) from error
    counts = dict.fromkeys(start, 0)
    async with aclosing(_read(reader, args, start, end)) as tables:
        async for partition, table in tables:
            counts[partition] += table.num_rows
    rows: list[tuple[Any, int, int]] = [(p, counts[p], max(0, end[p] - start[p])) for p in start]
    rows.append(("all", sum(row[1] for row in rows), sum(row[2] for row in rows)))
    if not args.json:
        print(f"{'partition':<9} {'records':>12} {'offsets':>12}")
    for partition, records, offsets in rows:
        counted = {"topic": args.topic, "partition": partition, "records": records, "offsets": offsets}
        print(json.dumps(counted) if args.json else f"{partition:<9} {records:>12} {offsets:>12}")


def _read(
    reader: Reader, args: argparse.Namespace, start: Mapping[int, int], end: Mapping[int, int]
) -> AsyncGenerator[tuple[int, pa.Table], None]:
    return reader.read(args.topic, start=start, end=end, max_decompressed_bytes=args.max_decompressed_bytes)
