"""Checkpoints for users: what they belong to, their positions, moving them aside, and setting them to a time.

A position is set by a batch that ends there and is recorded as finished. The source itself looks the time up when the
query starts again: it has the addresses and passwords, and knows how far back its log or topic goes.
"""

from __future__ import annotations

import json
import time as clock
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import urlsplit

from penstock.checkpoint.checkpoint_folder import CheckpointFolder, Local
from penstock.checkpoint.identity import CDC, FILE, OUR_KAFKA, CheckpointIdentity, SourceIdentity, stored_identity
from penstock.checkpoint.lease import Lease
from penstock.checkpoint.log import METADATA, NONE, OFFSETS, CheckpointLog
from penstock.durations import EPOCH, duration
from penstock.errors import PenstockError
from penstock.kafka.source_format import EARLIEST, TopicOffsets, topics
from penstock.run.checkpoint import holder, lock, lock_file

ASIDE = ".reset"
"""The folder of checkpoints that were reset, below the folder of checkpoints."""
STATE = "state"
NONE_YET = "none yet"


@dataclass(frozen=True)
class SourcePosition:
    """A source of a query and its position, as JSON and in words; `lag` is the position's age."""

    source: SourceIdentity | None
    offset: str | None
    position: str
    lag: timedelta | None = None

    def to_json(self) -> dict[str, Any]:
        about = {"source": str(self.source) if self.source else None, "position": self.position}
        lag = None if self.lag is None else round(self.lag.total_seconds(), 3)
        return about | {"lag_seconds": lag, "offset": _parsed(self.offset)}


@dataclass(frozen=True)
class CheckpointPosition:
    """A checkpoint; `batch` is its last finished batch, `running` the pid of the process that holds it.

    On another file system that is a text with the machine's name, and the process may have been killed.
    """

    name: str
    folder: str
    query: str | None
    created: datetime
    batch: int | None
    at: datetime | None
    unfinished: int | None
    readings: tuple[SourcePosition, ...]
    sinks: tuple[str, ...] | None
    stateful: bool
    running: int | str | None
    problem: str | None

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "folder": self.folder,
            "query": self.query,
            "made": iso(self.created),
            "batch": self.batch,
            "batch_at": None if self.at is None else iso(self.at),
            "unfinished_batch": self.unfinished,
            "sources": [reading.to_json() for reading in self.readings],
            "sinks": None if self.sinks is None else list(self.sinks),
            "stateful": self.stateful,
            "held_by": self.running,
            "problem": self.problem,
        }


@dataclass(frozen=True)
class Move:
    """The result of `move`: the number of the batch that ends at the new position, and all positions before and after.

    `replaces` if the batch existed before.
    """

    number: int
    replaces: bool
    before: tuple[str, ...]
    after: tuple[str, ...]


def checkpoints(root: CheckpointFolder) -> list[str]:
    """The names of all checkpoints below a folder: PIPELINE, or PIPELINE/QUERY."""
    folders = root.folders()
    if folders is None:
        what = f"there is no folder {root.where}"
        raise PenstockError(what, next="give the DIR of `penstock run --checkpoints DIR`")
    names = [[folder, *(f"{folder}/{inner}" for inner in root.folders(folder) or ())] for folder in folders]
    return [name for some in names for name in some if _is_checkpoint(root.below(name))]


def show(root: CheckpointFolder, name: str) -> CheckpointPosition:
    store, problem, batch = _folder(root, name), None, None
    log, identity, query = CheckpointLog(store), None, None
    try:
        identity = stored_identity(store)
        log.check()
        query = log.query
        batch = log.batch(log.committed[-1]) if log.committed else None
        offsets = batch.offsets if batch else ()
    except PenstockError as error:
        problem, offsets = str(error), _offsets(log, log.planned)
    unfinished = log.planned[-1] if log.planned and log.planned[-1] not in log.committed else None
    return CheckpointPosition(
        name,
        store.where,
        query,
        _created(store),
        log.committed[-1] if log.committed else None,
        datetime.fromtimestamp(batch.at, UTC) if batch else None,
        unfinished,
        tuple(_readings(offsets, identity)),
        tuple(map(str, identity.sinks)) if identity else None,
        _stateful(store),
        _holder(root, name),
        problem,
    )


def resumed(store: CheckpointFolder) -> tuple[SourcePosition, ...]:
    """The sources and positions with which a query continues that has this checkpoint: a batch that did not end is read
    again from where it began."""
    log = CheckpointLog(store)
    return tuple(_readings(_offsets(log, log.committed), stored_identity(store)))


def reset(root: CheckpointFolder, name: str) -> str:
    """Move a checkpoint, or all checkpoints of a pipeline, aside; returns the new path.

    Raises PenstockError if there is no such checkpoint or a run holds it.
    """
    _folder(root, name, whole=True)
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%fZ")
    aside = f"{ASIDE}/{name}-{stamp}"
    with _held(root, name):
        root.move(name, aside)
    return root.below(aside).where


def adopt(root: CheckpointFolder, name: str) -> bool:
    """Remove the record of a checkpoint's sources and sinks: the next query that starts with it records its own.

    Returns False if there is no record.
    """
    folder = _folder(root, name)
    with _held(root, name):
        if folder.changed(FILE) is None:
            return False
        before = f".{FILE}.before"
        folder.remove(before)
        folder.move(FILE, before)
    return True


def move(root: CheckpointFolder, name: str, to: str, *, keep_state: bool = False, dry: bool = False) -> Move:
    """Let the query continue from a time, "earliest" or "latest" at its next start.

    Raises PenstockError if one of its sources cannot be set to a time, or a run holds the checkpoint.
    """
    folder = _folder(root, name)
    time = moment(to)
    with _held(root, name):
        log, identity = CheckpointLog(folder), stored_identity(folder)
        if not log.begun:
            raise _cannot(folder, "it has no batch yet", "give the source start=, and start the pipeline")
        stateful = _stateful(folder)
        if stateful and not keep_state:
            raise _cannot(
                folder,
                "the query keeps state (windows, tables, counts) of the rows that it read before",
                "start from scratch with `penstock checkpoints reset NAME`, or add what it reads to that state with "
                "--keep-state",
            )
        if stateful:
            log.check()
            if log.committed[-1:] != log.planned[-1:]:
                step = "run the pipeline until it finishes a batch"
                raise _cannot(folder, f"batch {log.planned[-1]} is not finished", step)
        before = _offsets(log, log.planned) or (NONE,) * (len(identity.sources) if identity else 0)
        sources = _sources(folder, identity, before)
        after = tuple(_set(folder, source, offset, time) for source, offset in zip(sources, before, strict=True))
        number = log.planned[-1] if stateful else log.last + 1
        if not dry:
            number = log.replace(after) if stateful else log.add(after)
    known = tuple(reading.position for reading in _readings(before, identity))
    return Move(number, stateful, known, tuple(reading.position for reading in _readings(after, identity)))


def moment(text: str) -> datetime | None:
    """The time of `--to`; None for "earliest". Raises PenstockError if it is not a time from 1970 until now."""
    now = datetime.now(UTC)
    if text == "earliest":
        return None
    if text == "latest":
        return now
    try:
        if text.startswith("-"):
            return now - duration(text[1:], name="--to")
        time = datetime.fromisoformat(text)
        time = time if time.tzinfo else time.replace(tzinfo=UTC)
    except (ValueError, OverflowError, PenstockError):
        raise PenstockError(
            f"{text!r} is not a time", next='use "earliest", "latest", "2026-11-20T10:00:00Z" or "-2 hours"'
        ) from None
    if not EPOCH <= time <= now:
        when = "in the future" if time > now else "before 1970"
        raise PenstockError(f"{text} is {when}", next='use a time in the past, or "latest" for now')
    return time


def iso(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _is_checkpoint(folder: CheckpointFolder) -> bool:
    return any(folder.changed(name) is not None for name in (OFFSETS, METADATA, FILE))


def _folder(root: CheckpointFolder, name: str, *, whole: bool = False) -> CheckpointFolder:
    """The folder of a checkpoint; with `whole` also the folder of a pipeline with several checkpoints."""
    known = checkpoints(root)
    pipelines = [checkpoint.split("/")[0] for checkpoint in known] if whole else []
    if name in known or name in pipelines:
        return root.below(name)
    queries = [checkpoint for checkpoint in known if checkpoint.startswith(f"{name}/")]
    if queries:
        raise PenstockError(f"{name} has several queries", where=root.where, next=f"choose one: {', '.join(queries)}")
    names = f"choose from: {', '.join(known)}" if known else "give --checkpoints DIR: this folder has no checkpoint"
    raise PenstockError(f"there is no checkpoint {name!r}", where=root.where, next=names)


def _locks(root: Path, name: str) -> list[Path]:
    """The folders that a run may lock: the pipeline's; also `root` if that is itself a pipeline's folder."""
    pipeline = root.resolve() / name.split("/")[0]
    above = pipeline.parent
    return [pipeline, above] if lock_file(above).exists() else [pipeline]


@contextmanager
def _held(root: CheckpointFolder, name: str) -> Iterator[None]:
    """Hold the checkpoint, so that no run can start; raises PenstockError if a run holds it."""
    if isinstance(root, Local):
        with ExitStack() as stack:
            for path in _locks(root.path, name):
                stack.enter_context(lock(path))
            yield
        return
    with ExitStack() as stack:
        for lease in _leases(root, name):
            lease.take(_wait)
            stack.callback(lease.release)
        yield


def _holder(root: CheckpointFolder, name: str) -> int | str | None:
    if isinstance(root, Local):
        return next(filter(None, (holder(path) for path in _locks(root.path, name))), None)
    return next(filter(None, (lease.holder() for lease in _leases(root, name))), None)


def _leases(root: CheckpointFolder, name: str) -> list[Lease]:
    """Those that a run may hold, as in `_locks`."""
    pipeline = name.split("/")[0]
    leases = [Lease(root.below(f"{pipeline}.lease"), root.below(pipeline).where)]
    name = PurePath(urlsplit(root.where).path).name
    above = root.below(f"../{name}.lease")
    # The root of a file system has nothing above it.
    return leases if not name or above.folders() is None else [*leases, Lease(above, root.where)]


def _wait(seconds: float) -> bool:
    clock.sleep(seconds)
    return False


def _created(folder: CheckpointFolder) -> datetime:
    times = (folder.changed(name) for name in (METADATA, FILE, ""))
    return datetime.fromtimestamp(next(time for time in times if time is not None), UTC)


def _stateful(folder: CheckpointFolder) -> bool:
    return bool(folder.folders(STATE))


def _offsets(log: CheckpointLog, batches: Sequence[int]) -> tuple[str, ...]:
    """The offsets of the newest of these batches whose file is intact; empty if there is none."""
    for number in reversed(batches):
        try:
            return log.batch(number).offsets
        except PenstockError:
            continue
    return ()


def _sources(
    folder: CheckpointFolder, identity: CheckpointIdentity | None, offsets: tuple[str, ...]
) -> tuple[SourceIdentity, ...]:
    """The sources that the checkpoint names; guessed from their offsets if an older version made it."""
    if identity is not None and len(identity.sources) == len(offsets):
        return identity.sources
    if not offsets:
        raise _cannot(folder, "no file of offsets can be read", "start from scratch: `penstock checkpoints reset NAME`")
    return tuple(_guessed(offset) for offset in offsets)


def _guessed(offset: str) -> SourceIdentity:
    parsed = _parsed(offset)
    if _is_cdc(parsed):
        return SourceIdentity("cdc", format=CDC)
    if _is_kafka(parsed):
        # Penstock's Kafka reader keeps these entries besides the offsets.
        return SourceIdentity("kafka", format=OUR_KAFKA if any(":" in name for name in parsed) else "")
    return SourceIdentity("of an older build")


def _set(folder: CheckpointFolder, source: SourceIdentity, offset: str, time: datetime | None) -> str:
    """The offset with which a source begins at this time."""
    if source.format == CDC:
        from penstock.cdc.cdc_resume import sought

        return json.dumps(sought(None if time is None else (time - EPOCH) // timedelta(microseconds=1)))
    if source.format == OUR_KAFKA:
        (topic, *_) = topics(_parsed(offset) if offset != NONE else {}) or [source.of.get("topic", "")]
        # Rounded up: Kafka's records have times in milliseconds.
        millis = EARLIEST if time is None else -(-(time - EPOCH) // timedelta(milliseconds=1))
        return json.dumps(TopicOffsets(topic, {}, time=millis).offset())
    if source.kind == "kafka":
        raise _cannot(
            folder,
            "Spark's own Kafka reader has no times in its offsets"
            if source.format
            else "the checkpoint does not say yet which reader reads the topic",
            'read the topic with kafka.read (client="penstock"), start the pipeline once, and set it then',
        )
    raise _cannot(
        folder,
        f"the source {source} has no times in its offsets",
        "start from scratch: `penstock checkpoints reset NAME`",
    )


def _cannot(folder: CheckpointFolder, why: str, next: str) -> PenstockError:
    return PenstockError(f"the position cannot be set: {why}", where=f"checkpoint {folder.where}", next=next)


def _readings(offsets: tuple[str, ...], identity: CheckpointIdentity | None) -> Iterator[SourcePosition]:
    sources = identity.sources if identity else ()
    for place in range(max(len(offsets), len(sources))):
        source = sources[place] if place < len(sources) else None
        offset = offsets[place] if place < len(offsets) else None
        yield SourcePosition(source, offset, *_position(offset))


def _position(offset: str | None) -> tuple[str, timedelta | None]:
    """A position in words, and its age if it is a time."""
    if offset is None or offset == NONE:
        return NONE_YET, None
    parsed = _parsed(offset)
    if _is_cdc(parsed):
        return _of_cdc(parsed)
    if _is_kafka(parsed):
        topic = topics(parsed)[0]
        at = TopicOffsets.of(parsed, topic)
        if at.time is not None:
            return ("earliest" if at.time == EARLIEST else iso(EPOCH + timedelta(milliseconds=at.time))), None
        return ", ".join(f"{p}: {next}" for p, next in sorted(at.at.items())), None
    return offset if len(offset) <= 80 else f"{offset[:77]}...", None


def _of_cdc(parsed: Mapping[str, Any]) -> tuple[str, timedelta | None]:
    if parsed.get("seek") == "earliest":
        return "earliest", None
    try:
        time = EPOCH + timedelta(microseconds=max(parsed["time"], parsed.get("fresh", 0)))
    except OverflowError:
        return str(parsed["time"]), None
    if "snapshot" in parsed:
        return f"in a snapshot of the table, then from {iso(time)}", None
    return iso(time), datetime.now(UTC) - time


def _is_cdc(parsed: Any) -> bool:
    return isinstance(parsed, dict) and all(
        isinstance(parsed.get(key), int) for key in ("generation", "time", "planned")
    )


def _is_kafka(parsed: Any) -> bool:
    if not isinstance(parsed, dict) or len(topics(parsed)) != 1:
        return False
    try:
        TopicOffsets.of(parsed, topics(parsed)[0])
    except ValueError:
        return False
    return True


def _parsed(offset: str | None) -> Any:
    try:
        return None if offset is None else json.loads(offset)
    except ValueError:
        return offset
