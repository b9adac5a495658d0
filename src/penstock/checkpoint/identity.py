"""What a checkpoint belongs to: the sources whose positions it has, and the sinks that know its batches.

It is stored in `penstock.json` in the checkpoint from the first start on. Another source or sink is refused:
rows would count as read, or written, that are not. Addresses, users, columns and the read rate may change, and sinks
may be added after the others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.checkpoint.checkpoint_folder import CheckpointFolder
from penstock.checkpoint.log import CheckpointLog
from penstock.errors import PenstockError
from penstock.spark_runtime.logical_plan import analyzed, each

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FILE = "penstock.json"
CDC, OUR_KAFKA, SPARKS_KAFKA = "scylla-cdc", "penstock-kafka-topic", "kafka"
"""Formats of sources that are compared by what they read."""
NAMED = ("path", "table", "topic", "dbtable", "stream", "streamname", "database", "collection", "queue", "subject")
"""Options of other sources that say what is read; the others may have addresses and secrets."""
ADDRESSES = ("hosts", "servers", "kafka.bootstrap.servers")
"""Options of sources that are addresses of servers."""
_USER_INFO = re.compile(r"(?<=://)[^/@]*@")


@dataclass(frozen=True)
class SourceIdentity:
    """What a source reads; `format` is its reader, which may change, as from Spark's Kafka reader to Penstock's."""

    kind: str
    of: Mapping[str, str] = field(default_factory=dict)
    format: str = ""

    def __str__(self) -> str:
        return " ".join([self.kind, *(f"{name} {value}" for name, value in sorted(self.of.items()))])

    @property
    def compared(self) -> tuple[str, dict[str, str]]:
        return self.kind, dict(self.of)


@dataclass(frozen=True)
class SinkTarget:
    """Where a sink writes."""

    kind: str
    of: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.of}".rstrip()


@dataclass(frozen=True)
class CheckpointIdentity:
    """The sources of a query in the order of its plan, and its sinks in the order in which they are written."""

    sources: tuple[SourceIdentity, ...]
    sinks: tuple[SinkTarget, ...]

    def text(self) -> str:
        sources = [{"kind": source.kind, "of": dict(source.of), "format": source.format} for source in self.sources]
        sinks = [{"kind": sink.kind, "of": sink.of} for sink in self.sinks]
        return json.dumps({"version": 1, "sources": sources, "sinks": sinks}, indent=1)

    @classmethod
    def of_text(cls, text: str) -> CheckpointIdentity:
        """Raises ValueError if this is not what `text` writes."""
        try:
            document = json.loads(text)
            version = document["version"]
            if version != 1:
                raise ValueError(f"version {version}")
            sources = tuple(
                SourceIdentity(source["kind"], dict(source["of"]), source["format"]) for source in document["sources"]
            )
            return cls(sources, tuple(SinkTarget(sink["kind"], sink["of"]) for sink in document["sinks"]))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(str(error)) from error


def stored_identity(store: CheckpointFolder) -> CheckpointIdentity | None:
    """What the checkpoint belongs to; None if it is new, or of a build without identities.

    Raises `PenstockError` if the file is damaged.
    """
    text = store.read(FILE)
    if text is None:
        return None
    try:
        return CheckpointIdentity.of_text(text)
    except ValueError:
        raise PenstockError(
            f"the checkpoint's file {FILE} is damaged, or of a newer version",
            where=f"checkpoint {store.where}",
            next="make sure that the checkpoint is this query's, and move the file away: the next start writes it",
        ) from None


def keep(store: CheckpointFolder, identity: CheckpointIdentity) -> None:
    """Write what the checkpoint belongs to; raises `PenstockError` as `require_own` does."""
    if require_own(store, identity) != identity:
        store.write(FILE, identity.text())


def require_own(store: CheckpointFolder, identity: CheckpointIdentity) -> CheckpointIdentity | None:
    """What the checkpoint belongs to; raises `PenstockError` if that is another query, or the checkpoint is damaged.

    A checkpoint without a batch has no position yet, so any query may take it.
    """
    log = CheckpointLog(store)
    log.check()
    known = stored_identity(store)
    if known is not None and known != identity and log.begun:
        _require_same(store, known, identity)
    return known


def _require_same(store: CheckpointFolder, known: CheckpointIdentity, identity: CheckpointIdentity) -> None:
    if [source.compared for source in known.sources] != [source.compared for source in identity.sources]:
        raise _other(store, "reads", known.sources, identity.sources)
    if identity.sinks[: len(known.sinks)] != known.sinks:
        raise _other(store, "writes to", known.sinks, identity.sinks)


def _other(store: CheckpointFolder, verb: str, known: Iterable[object], own: Iterable[object]) -> PenstockError:
    root, _, name = store.where.rpartition("/")
    command = f"penstock checkpoints {{}} {name} --checkpoints {root or '.'}"
    step = (
        f"see what is there (`{command.format('show')}`), and start this query over "
        f"(`{command.format('reset')}`) or continue from this position (`{command.format('adopt')}`)"
    )
    return PenstockError(
        f"the checkpoint belongs to another query: that one {verb} {_listed(known)}, and this one {verb} "
        f"{_listed(own)}",
        where=f"checkpoint {store.where}",
        next=f"give the pipeline another name; or {step}",
    )


def _listed(things: Iterable[object]) -> str:
    return ", ".join(map(str, things)) or "nothing"


def of_query(frame: DataFrame, sinks: Iterable[object]) -> CheckpointIdentity:
    """The identity of a query that writes this frame; a sink gives its own as `target`, a pair of kind and name."""
    sources = tuple(source_of(format, options) for format, options in streams(frame))
    return CheckpointIdentity(sources, tuple(target_of(sink) for sink in sinks))


def target_of(sink: object) -> SinkTarget:
    target = getattr(sink, "target", None)
    return SinkTarget(*target) if isinstance(target, tuple) else SinkTarget(type(sink).__name__)


def streams(frame: DataFrame) -> Iterator[tuple[str, dict[str, str]]]:
    """The format and the options of each streaming source of a frame; options may have secrets."""
    for leaf in each(analyzed(frame).collectLeaves()):
        if not leaf.isStreaming():
            continue
        kind = leaf.getClass().getSimpleName()
        if kind == "StreamingRelationV2":
            options = dict(leaf.extraOptions().asCaseSensitiveMap())
            name = leaf.identifier()
            known = {"table": name.get().toString()} if name.isDefined() else {}
            yield str(leaf.sourceName()), options | known
        elif kind == "StreamingRelation":
            options = {str(pair._1()): str(pair._2()) for pair in each(leaf.dataSource().options())}
            yield str(leaf.dataSource().className()), options
        else:
            yield kind, {}


def source_of(format: str, options: Mapping[str, str]) -> SourceIdentity:
    """What a Spark source with these options reads."""
    options_by_name = {name.lower(): value for name, value in options.items()}
    if format == CDC:
        table = options_by_name.get("table", "")
        of = {"table": table if '"' in table else table.lower(), "rows": options_by_name.get("rows", "changes")}
        return SourceIdentity("cdc", of, format)
    if format == OUR_KAFKA:
        return SourceIdentity("kafka", {"topic": options_by_name.get("topic", "")}, format)
    if format == SPARKS_KAFKA:
        named = {"subscribe": "topic", "subscribepattern": "pattern", "assign": "partitions"}
        of = {named[name]: options_by_name[name] for name in named if name in options_by_name}
        if "topic" in of:
            of["topic"] = ",".join(sorted(part.strip() for part in of["topic"].split(",")))
        return SourceIdentity("kafka", of, format)
    of = {name: _USER_INFO.sub("", options_by_name[name]) for name in NAMED if name in options_by_name}
    return SourceIdentity(format, of, format)
