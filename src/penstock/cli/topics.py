"""`penstock topics`: lists Kafka's topics, counts their records and shows records."""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import re
import sys
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from typing import Any

import pyarrow as pa

from penstock.cli import services
from penstock.cli.arguments import positive, servers
from penstock.errors import PenstockError
from penstock.wire.errors import KafkaError
from penstock.wire.fetcher import RecordsTooLarge
from penstock.wire.topic_records import MAX_BYTES, MORE_DECOMPRESSED, Reader

Record = dict[str, Any]  # a row of a table from the reader, with its partition

SHOWN = 10
"""Existing records that `tail` shows by default, as tail(1) does."""
MOST_DECOMPRESSED = MAX_BYTES + MORE_DECOMPRESSED
ROWS = 1000
"""Rows that are Python objects at the same time."""
PIPE_CLOSED = 141  # the exit code that shells report after a broken pipe
START = datetime(1970, 1, 1, tzinfo=UTC)
UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def add(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    _action(actions, "list", "list all topics and their number of partitions", _list, topic=False)
    _action(actions, "count", "count the records of a topic by reading them", _count)
    tail = _action(actions, "tail", "show the last records, then new records, until Ctrl-C", _tail)
    tail.add_argument(
        "--from",
        dest="start",
        type=_start,
        metavar="WHERE",
        help=f"earliest, latest (only new records) or an ISO time, UTC if it has no time zone (default: the last "
        f"{SHOWN} records, or the last --limit records)",
    )
    tail.add_argument("--limit", type=positive, metavar="N", help="exit after this many records")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    brokers = args.servers or services.kafka(args.root)
    try:
        asyncio.run(_act(args, brokers))
        sys.stdout.flush()
    except KafkaError as problem:
        more = 4 * (args.max_decompressed_bytes or MOST_DECOMPRESSED)
        next = f"give --max-decompressed-bytes {more}" if isinstance(problem, RecordsTooLarge) else ""
        raise PenstockError(str(problem), where=f"Kafka at {brokers}", next=next) from problem
    except BrokenPipeError:
        # Python would raise again when it flushes standard output at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    return 0


def _action(actions: Any, name: str, line: str, act: Any, *, topic: bool = True) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=line, description=f"{line[0].upper()}{line[1:]}.")
    if topic:
        parser.add_argument("topic", metavar="TOPIC")
        parser.add_argument(
            "--uncommitted", action="store_true", help="also read records of open and aborted transactions"
        )
        parser.add_argument(
            "--max-decompressed-bytes",
            type=positive,
            metavar="N",
            help=f"bytes that a record batch may decompress to (default: {MOST_DECOMPRESSED})",
        )
    parser.add_argument("--servers", type=servers, metavar="HOST:PORT,...", help="Kafka; replaces the Kafka of --root")
    services.add_root(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    parser.set_defaults(act=act, uncommitted=False, max_decompressed_bytes=None)
    return parser


async def _act(args: argparse.Namespace, brokers: str) -> None:
    async with Reader(brokers, committed=not args.uncommitted) as reader:
        await args.act(reader, args)


async def _list(reader: Reader, args: argparse.Namespace) -> None:
    topics = sorted((await reader.topics()).items())
    width = max((len(name) for name, _ in topics), default=0)
    for name, count in topics:
        print(json.dumps({"topic": name, "partitions": count}) if args.json else f"{name:<{width}} {count:>6}")


async def _count(reader: Reader, args: argparse.Namespace) -> None:
    start, end = await reader.earliest(args.topic), await reader.latest(args.topic)
    counts = dict.fromkeys(start, 0)
    async with aclosing(_read(reader, args, start, end)) as tables:
        async for partition, table in tables:
            counts[partition] += table.num_rows
    rows: list[tuple[Any, int, int]] = [(p, counts[p], max(0, end[p] - start[p])) for p in start]
    rows.append(("all", sum(row[1] for row in rows), sum(row[2] for row in rows)))
    if not args.json:
        print(f"{'partition':<9} {'records':>12} {'offsets':>12}")
    for partition, records, offsets in rows:
        found = {"topic": args.topic, "partition": partition, "records": records, "offsets": offsets}
        print(json.dumps(found) if args.json else f"{partition:<9} {records:>12} {offsets:>12}")


async def _tail(reader: Reader, args: argparse.Namespace) -> None:
    left: float = args.limit or float("inf")
    form = _as_json if args.json else _as_text
    async with aclosing(_records(reader, args)) as found:
        async for some in found:
            shown = some[: int(min(left, len(some)))]
            sys.stdout.writelines(f"{form(record)}\n" for record in shown)
            sys.stdout.flush()
            left -= len(shown)
            if not left:
                return


async def _records(reader: Reader, args: argparse.Namespace) -> AsyncGenerator[list[Record], None]:
    """The records that `tail` shows, a few at a time."""
    if args.start is None:
        start = await reader.latest(args.topic)
        yield await _last(reader, args, start)
    elif isinstance(args.start, datetime):
        start = await reader.at_time(args.topic, (args.start - START) // timedelta(milliseconds=1))
    else:
        start = await getattr(reader, args.start)(args.topic)
    async with aclosing(_read(reader, args, start)) as tables:
        async for partition, table in tables:
            for some in _rows(partition, table):
                yield some


def _read(
    reader: Reader, args: argparse.Namespace, start: Mapping[int, int], end: Mapping[int, int] | None = None
) -> AsyncGenerator[tuple[int, pa.Table], None]:
    return reader.read(args.topic, start=start, end=end, max_decompressed_bytes=args.max_decompressed_bytes)


async def _last(reader: Reader, args: argparse.Namespace, end: Mapping[int, int]) -> list[Record]:
    """The last records of all partitions by time; reads further back where gaps in the offsets leave too few."""
    first, width = await reader.earliest(args.topic), args.limit or SHOWN
    wanted = width
    found: dict[int, deque[Record]] = {}
    left = list(end)
    while left:
        start = {p: max(first[p], end[p] - width) for p in left}
        found |= {p: deque(maxlen=wanted) for p in left}
        async with aclosing(_read(reader, args, start, {p: end[p] for p in left})) as tables:
            async for partition, table in tables:
                for some in _rows(partition, table.slice(max(0, table.num_rows - wanted))):
                    found[partition] += some
        # Any partition may have the newest records, so each needs as many as are wanted, or all that it has.
        left = [p for p in left if len(found[p]) < wanted and start[p] > first[p]]
        width *= 8
    records = [record for some in found.values() for record in some]
    return sorted(records, key=itemgetter("timestamp", "partition", "offset"))[-wanted:]


def _rows(partition: int, table: pa.Table) -> Iterator[list[Record]]:
    """Rows as Python objects, as each becomes a line; times in milliseconds, as some do not fit a datetime."""
    at = table.schema.get_field_index("timestamp")
    table = table.set_column(at, "timestamp", table["timestamp"].cast(pa.int64()))
    for batch in table.to_batches(max_chunksize=ROWS):
        yield [{"partition": partition} | row for row in batch.to_pylist()]


def _as_text(record: Record) -> str:
    key = "(null)" if record["key"] is None else _text(record["key"])
    value = "(tombstone)" if record["value"] is None else _text(record["value"])
    return f"{record['partition']}\t{record['offset']}\t{_time(record['timestamp'])}\t{key}\t{value}"


def _text(data: bytes) -> str:
    """Bytes as one line, with control characters escaped, as they could control the terminal."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return f"base64:{base64.b64encode(data).decode()}"
    return UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def _as_json(record: Record) -> str:
    headers = [[one["key"], _plain(one["value"])] for one in record["headers"]]
    parts = {"timestamp": _time(record["timestamp"]), "key": _plain(record["key"]), "value": _plain(record["value"])}
    return json.dumps({name: record[name] for name in ("partition", "offset")} | parts | {"headers": headers})


def _plain(data: bytes | None) -> str | dict[str, str] | None:
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data or b"").decode()}


def _time(ms: int) -> str:
    try:
        return (START + timedelta(milliseconds=ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except OverflowError:
        return str(ms)


def _start(text: str) -> str | datetime:
    if text in ("earliest", "latest"):
        return text
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not earliest, latest or a time such as 2026-05-31T12:00:00"
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
