"""`penstock topics tail`: shows a topic's last records, then new ones, decoded where that is possible."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.cli.arguments import add_kafkas_names, positive
from penstock.cli.kafka_commands import near
from penstock.cli.output import printable, while_read
from penstock.durations import EPOCH, duration, whole
from penstock.errors import PenstockError
from penstock.kafka.brokers import Brokers
from penstock.kafka.record_view import FRAME, shown, view
from penstock.local import registry_server, services
from penstock.wire.errors import UnknownTopicOrPartition
from penstock.wire.topic_records import Reader

if TYPE_CHECKING:
    from penstock.codec.registry import Registry

Record = dict[str, Any]  # a row of a table from the reader, with its partition

EXAMPLES = (
    "topics tail shop.orders",
    "topics tail shop.orders --limit 3 --json",
    'topics tail shop.orders --from "-10 minutes" --key 1042',
    "topics tail shop.orders --from 2026-05-31T12:00:00+02:00 --registry http://registry:8081",
)
SHOWN = 10
"""Existing records that `tail` shows by default, as tail(1) does."""
LOOK = 0.5
"""Seconds between looks for a topic that does not exist yet."""
ROWS = 1000
"""Rows that are Python objects at the same time."""
PLAIN = ("null", "text", "json")
"""Formats that a line of text does not name."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--from",
        dest="start",
        type=start_of,
        metavar="WHERE",
        help="earliest, latest (only new records), an ISO time, UTC if it has no time zone, or a duration before now, "
        f'as in "-10 minutes" (default: the last {SHOWN} records, or the last --limit records)',
    )
    parser.add_argument(
        "--from-beginning", dest="start", action="store_const", const="earliest", help="the same as --from earliest"
    )
    parser.add_argument("--limit", type=positive, metavar="N", help="exit after this many records")
    add_kafkas_names(parser, "--limit", "--max-messages")
    parser.add_argument(
        "--key", metavar="KEY", help="only the records with this key: its text, or its bytes as 0x and hex digits"
    )
    parser.add_argument(
        "--hashed",
        action="store_true",
        help="with --key: read only the partition that Kafka's default hash has for the key; for topics that Java, "
        "Spark or Penstock writes, and whose number of partitions was never changed",
    )
    parser.add_argument("--partition", type=_partition, metavar="N", help="only this partition")
    parser.add_argument(
        "--registry",
        metavar="URL",
        help="the schema registry that decodes Avro, Protobuf and JSON Schema (default: the registry of --root, if it "
        "runs and --servers is not given)",
    )


async def act(args: argparse.Namespace, brokers: Brokers) -> None:
    if args.hashed and args.key is None:
        raise PenstockError("--hashed needs a key", where="penstock topics tail", next="give --key KEY")
    async with Reader(brokers.servers, committed=not args.uncommitted, **brokers.client()) as reader:
        await while_read(show(reader, args, await asyncio.to_thread(registry_of, args)))


async def show(reader: Reader, args: argparse.Namespace, registry: Registry | None) -> None:
    left: float = args.limit or float("inf")
    line = partial(as_json if args.json else as_text, registry=registry)
    async with aclosing(_records(reader, args, registry)) as records:
        async for some in records:
            rows = some[: int(min(left, len(some)))]
            # In a thread: the first record of a schema asks the registry.
            sys.stdout.writelines(await asyncio.to_thread(_lines, line, rows))
            sys.stdout.flush()
            left -= len(rows)
            if not left:
                return


def _lines(line: Callable[[Record], str], rows: list[Record]) -> list[str]:
    return [f"{line(row)}\n" for row in rows]


def registry_of(args: argparse.Namespace) -> Registry | None:
    """The registry of `--registry`; else the local one, if the topic is in the local Kafka too."""
    url = args.registry or ("" if args.servers else _local_registry(args.root))
    if not url:
        return None
    # Here, because it loads PySpark's functions, for which a topic without a registry need not wait.
    from penstock.codec.registry import Registry

    return Registry(url)


def _local_registry(root: Path) -> str:
    for status in services.status(root):
        if status.name == registry_server.SERVICE.name and status.state == "running":
            return f"http://{status.address}{registry_server.API}"
    return ""


@dataclass(frozen=True)
class Filter:
    """Which records are shown: those with this key, all without one. A key that a registry decodes is its text."""

    key: str | None
    registry: Registry | None

    def table(self, table: pa.Table) -> pa.Table:
        """The rows that can have the key."""
        if self.key is None:
            return table
        same = pc.fill_null(pc.is_in(table["key"], pa.array(key_bytes(self.key), pa.binary())), False)
        if self.registry is not None:
            framed = pc.equal(pc.binary_slice(table["key"], 0, 1), pa.scalar(b"\0", pa.binary()))
            longer = pc.greater_equal(pc.binary_length(table["key"]), FRAME)
            same = pc.or_(same, pc.fill_null(pc.and_(framed, longer), False))
        return table.filter(same)

    def rows(self, rows: list[Record]) -> list[Record]:
        """The rows that have the key; it may ask the registry."""
        if self.key is None or self.registry is None:
            return rows
        wanted = key_bytes(self.key)
        return [row for row in rows if row["key"] in wanted or shown(row["key"], self.registry).text == self.key]


def key_bytes(text: str) -> list[bytes]:
    """The keys that the text of `--key` means: its own bytes, and those that it writes in hex."""
    keys = [text.encode()]
    if text.startswith("0x"):
        with suppress(ValueError):
            keys.append(bytes.fromhex(text[2:]))
    return keys


async def _partitions(reader: Reader, args: argparse.Namespace) -> set[int]:
    """The partitions to read."""
    every = await reader.partitions(args.topic)
    chosen = args.partition
    if args.hashed:
        # Here, because it loads compiled loops.
        from penstock.wire.records.partitioner import partition_for

        chosen = partition_for(key_bytes(args.key)[-1], len(every))
    if chosen is None:
        return set(every)
    if chosen not in every:
        raise PenstockError(
            f"there is no partition {chosen}", where=f"topic {args.topic}", next=f"give 0 to {every[-1]}"
        )
    return {chosen}


async def _records(
    reader: Reader, args: argparse.Namespace, registry: Registry | None
) -> AsyncGenerator[list[Record], None]:
    """The records that `tail` shows, a few at a time; all records of a topic that it has waited for."""
    keep = Filter(args.key, registry)
    if await _appeared(reader, args.topic) and not isinstance(args.start, datetime):
        start = await reader.earliest(args.topic)
    elif args.start is None:
        start = await reader.latest(args.topic)
        chosen = await _partitions(reader, args)
        yield await last(reader, args, {p: at for p, at in start.items() if p in chosen}, keep)
    elif isinstance(args.start, datetime):
        start = await reader.at_time(args.topic, (args.start - EPOCH) // timedelta(milliseconds=1))
    else:
        start = await getattr(reader, args.start)(args.topic)
    chosen = await _partitions(reader, args)
    async with aclosing(_read(reader, args, {p: at for p, at in start.items() if p in chosen})) as tables:
        async for partition, table in tables:
            for some in _rows(partition, keep.table(table)):
                if rows := await asyncio.to_thread(keep.rows, some):
                    yield rows


async def _appeared(reader: Reader, topic: str) -> bool:
    """Wait until the topic exists; whether that was necessary."""
    try:
        await reader.partitions(topic)
        return False
    except UnknownTopicOrPartition:
        hint = near(topic, await reader.topics())
        said = f"there is no topic {topic} yet, waiting for it until Ctrl-C{hint and '; '}{hint}"
        print(said, file=sys.stderr, flush=True)
    while True:
        await asyncio.sleep(LOOK)
        with suppress(UnknownTopicOrPartition):
            await reader.partitions(topic)
            return True


def _read(
    reader: Reader, args: argparse.Namespace, start: Mapping[int, int], end: Mapping[int, int] | None = None
) -> AsyncGenerator[tuple[int, pa.Table], None]:
    return reader.read(args.topic, start=start, end=end, max_decompressed_bytes=args.max_decompressed_bytes)


async def last(reader: Reader, args: argparse.Namespace, end: Mapping[int, int], keep: Filter) -> list[Record]:
    """The last records of these partitions by time; reads further back where too few are left."""
    first, width = await reader.earliest(args.topic), args.limit or SHOWN
    wanted = width
    last_by_partition: dict[int, deque[Record]] = {}
    left = list(end)
    while left:
        start = {p: max(first[p], end[p] - width) for p in left}
        last_by_partition |= {p: deque(maxlen=wanted) for p in left}
        async with aclosing(_read(reader, args, start, {p: end[p] for p in left})) as tables:
            async for partition, table in tables:
                for some in _rows(partition, keep.table(table)):
                    last_by_partition[partition] += await asyncio.to_thread(keep.rows, some)
        # Any partition may have the newest records, so each needs as many as are wanted, or all that it has.
        left = [p for p in left if len(last_by_partition[p]) < wanted and start[p] > first[p]]
        width *= 8
    records = [record for some in last_by_partition.values() for record in some]
    return sorted(records, key=itemgetter("timestamp", "partition", "offset"))[-wanted:]


def _rows(partition: int, table: pa.Table) -> Iterator[list[Record]]:
    """Rows as Python objects, as each becomes a line; times in milliseconds, as some do not fit a datetime."""
    at = table.schema.get_field_index("timestamp")
    table = table.set_column(at, "timestamp", table["timestamp"].cast(pa.int64()))
    for batch in table.to_batches(max_chunksize=ROWS):
        yield [{"partition": partition} | row for row in batch.to_pylist()]


def as_text(record: Record, registry: Registry | None = None) -> str:
    """A line of partition, offset, time, key and value, and what is to say of their formats."""
    seen = view(record, registry)
    key = "(null)" if seen["key"] is None else printable(seen["key"])
    value = "(tombstone)" if seen["value"] is None else printable(seen["value"])
    notes = [f"{part} {_format(seen, part)}" for part in ("key", "value") if seen[f"{part}_format"] not in PLAIN]
    line = f"{seen['partition']}\t{seen['offset']}\t{seen['timestamp']}\t{key}\t{value}"
    return f"{line}\t[{'; '.join(notes)}]" if notes else line


def _format(seen: Mapping[str, Any], part: str) -> str:
    problem = seen[f"{part}_problem"]
    return f"{seen[f'{part}_format']}{problem and ': '}{printable(problem)}"


def as_json(record: Record, registry: Registry | None = None) -> str:
    return json.dumps(view(record, registry))


def start_of(text: str) -> str | datetime:
    """The value of `--from`."""
    if text in ("earliest", "latest"):
        return text
    try:
        if text.startswith("-"):
            return datetime.now(UTC) - duration(text[1:], name="--from")
        moment = datetime.fromisoformat(text)
    except (ValueError, OverflowError, PenstockError):
        raise argparse.ArgumentTypeError(
            f'{text!r} is not earliest, latest, a time such as 2026-05-31T12:00:00 or a duration such as "-10 minutes"'
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _partition(text: str) -> int:
    number = whole(text)
    if number is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a partition: a number, 0 or more")
    return number
