"""How far a replication has applied changes, by its checkpoints; `verify` waits for it before it compares again."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

from pyspark.sql import SparkSession

from penstock.border.public import public
from penstock.cdc.generations import Position
from penstock.checkpoint.checkpoint_folder import CheckpointFolder, Location
from penstock.checkpoint.hadoop_folder import store_of
from penstock.checkpoint.identity import CDC, OUR_KAFKA, stored_identity
from penstock.checkpoint.log import NONE, CheckpointLog
from penstock.durations import duration_text
from penstock.errors import PenstockError
from penstock.kafka.security import Security
from penstock.kafka.source_format import TopicOffsets
from penstock.wire.errors import KafkaError
from penstock.wire.topic_records import Reader

WHERE = "replicate.progress"
Offset: TypeAlias = dict[str, Any]
NEXT_LOOK = 0.5
"""Seconds between two looks at the checkpoints."""


@dataclass(frozen=True)
class QueryProgress:
    """A query of a replication: it reads a change log, or the topic that changes go through."""

    checkpoint: CheckpointFolder
    topic: str | None

    def offset(self) -> Offset | None:
        """Where the last finished batch ended; None if there is none."""
        log = CheckpointLog(self.checkpoint)
        text = log.batch(log.committed[-1]).offsets[0] if log.committed else NONE
        return None if text == NONE else json.loads(text)

    def reached(self, offset: Offset | None, end: int | Mapping[int, int]) -> bool:
        """Whether all before `end` was applied: a time of the log in microseconds, or the ends of the topic."""
        if offset is None:
            return False
        if isinstance(end, int):
            return _time(offset) >= end
        assert self.topic is not None
        at = TopicOffsets.of(offset, self.topic).at
        return all(at.get(partition, 0) >= end_offset for partition, end_offset in end.items())


@dataclass(frozen=True)
class Progress:
    """How far a replication is; from `progress`."""

    queries: tuple[QueryProgress, ...]
    servers: str | None = None
    options: Mapping[str, str] = field(default_factory=dict, repr=False)  # there may be passwords among them

    def wait(self, until: int, patience: timedelta) -> None:
        """Wait until all changes of up to `until` (microseconds since 1970) were applied.

        Raises PenstockError if the replication does not get on for `patience`, or Kafka does not answer.
        """
        for query in self.queries:
            if query.topic is None:
                self._wait(query, until, patience)
        for query in self.queries:
            if query.topic is not None:
                self._wait(query, asyncio.run(self._ends(query.topic, patience)), patience)

    def _wait(self, query: QueryProgress, end: int | Mapping[int, int], patience: timedelta) -> None:
        offset, since = query.offset(), time.monotonic()
        while not query.reached(offset, end):
            time.sleep(NEXT_LOOK)
            if (now := query.offset()) != offset:
                offset, since = now, time.monotonic()
            elif time.monotonic() - since > patience / timedelta(seconds=1):
                raise PenstockError(
                    f"the replication has applied changes {_told(query.topic, offset)}, "
                    f"and no more for {duration_text(patience)}; rows that differ cannot be compared again",
                    where=f"checkpoint {query.checkpoint.where}",
                    next="see with penstock status whether it runs; if it is stopped, compare with --settle instead",
                )

    async def _ends(self, topic: str, patience: timedelta) -> dict[int, int]:
        assert self.servers is not None
        security = Security.of(self.options)
        try:
            async with Reader(
                self.servers, patience=patience, tls=security.tls(), authenticate=security.authenticate()
            ) as reader:
                return await reader.latest(topic)
        except KafkaError as error:
            raise PenstockError(
                f"the end of the topic {topic} cannot be read: {error}",
                where=self.servers,
                next="check the address and the topic",
            ) from error


def _time(offset: Offset) -> int:
    """Microseconds since 1970: all changes of up to this time were applied; 0 before the end of a snapshot."""
    position = Position.of(offset)
    return position.time if position.snapshot is None else 0


def _told(topic: str | None, offset: Offset | None) -> str:
    if topic is not None:
        return f"of {topic} up to its offsets {offset}"
    micros = _time(offset) if offset else 0
    if not micros:
        return "of no time yet, since it copies the rows that were there before"
    return f"of up to {datetime.fromtimestamp(micros / 1_000_000, UTC):%Y-%m-%d %H:%M:%S} UTC"


@public("replicate.progress")
def progress(
    spark: SparkSession,
    *checkpoints: str | Location,
    servers: str | None = None,
    options: Mapping[str, str] | None = None,
) -> Progress:
    """How far a replication is, for `replicate.verify`: by the checkpoints of its queries, folders or URIs.

    That is `DIR/NAME/KEYSPACE.TABLE` for `penstock replicate --checkpoints DIR --name NAME`. Where changes go through
    Kafka, give the checkpoints of both queries, and its `servers`; `options` are Kafka's settings for TLS and SASL.

    Raises PenstockError if a checkpoint does not exist, or is of another kind of query.
    """
    queries = tuple(_query(store_of(checkpoint, spark)) for checkpoint in checkpoints)
    if not any(query.topic is None for query in queries):
        raise PenstockError(
            "no checkpoint is of a query that reads a change log", where=WHERE, next="give the one of that query"
        )
    through = any(query.topic is not None for query in queries)
    if servers is not None and not through:
        raise PenstockError(
            "no checkpoint is of a query that reads a topic: the changes do not go through Kafka",
            where=WHERE,
            next="leave out servers= (--through), or give the checkpoint of that query, too",
        )
    if servers is None and through:
        raise PenstockError(
            "the changes go through Kafka", where=WHERE, next="give servers= (--through), to see how far its topic is"
        )
    return Progress(queries, servers, dict(options or {}))


def _query(checkpoint: CheckpointFolder) -> QueryProgress:
    identity = stored_identity(checkpoint)
    if identity is None:
        raise PenstockError(
            "there is no checkpoint of a query that has started",
            where=checkpoint.where,
            next="give the folder of the replication's checkpoint, as penstock checkpoints list shows it",
        )
    if [source.format for source in identity.sources] == [CDC]:
        return QueryProgress(checkpoint, None)
    if [source.format for source in identity.sources] == [OUR_KAFKA]:
        return QueryProgress(checkpoint, identity.sources[0].of["topic"])
    read = ", ".join(map(str, identity.sources)) or "nothing"
    raise PenstockError(
        f"the query reads {read}: how far its changes were applied cannot be told",
        where=checkpoint.where,
        next="give the checkpoint of a query with one source: cdc.read or replicate.changes",
    )


def checkpoints_of(root: CheckpointFolder, name: str, query: str) -> list[str]:
    """The checkpoints of a replication's table below the folder of all checkpoints: one query, or two.

    Raises PenstockError if there is none.
    """
    known = root.folders(name)
    if known is None:
        raise PenstockError(
            f"there is no checkpoint of a replication {name!r}",
            where=root.where,
            next="give the --name and the --checkpoints of penstock replicate",
        )
    checkpoints = [
        folder for folder in known if folder in (query, *(f"{query}.{part}" for part in ("back", "out", "in")))
    ]
    if not checkpoints:
        raise PenstockError(
            f"the replication {name} has no checkpoint of {query}",
            where=root.where,
            next=f"it has {', '.join(known) or 'none'}: give the table that is its source",
        )
    return [f"{name}/{checkpoint}" for checkpoint in checkpoints]
