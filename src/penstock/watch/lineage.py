"""OpenLineage run events of the queries of pipelines and connectors (`--lineage URL`), by plain HTTP from a thread.

A start of a query is a run: START, RUNNING at most once a minute, and COMPLETE or FAIL. Events have the data sets that
the query reads and writes, named as OpenLineage's naming rules say, with the columns that are known. A receiver that
does not answer neither delays nor ends a run: events wait in a bounded queue, and a warning tells it.

Specification: https://openlineage.io/spec/2-0-2/OpenLineage.json and https://openlineage.io/docs/spec/naming.
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyspark
from pyspark.sql import types as st

from penstock import __version__
from penstock.checkpoint.checkpoint_folder import Location
from penstock.codec.change_frame import is_change_frame
from penstock.errors import PenstockError
from penstock.query.packed_rows import rows_schema
from penstock.query.query import Query
from penstock.run.life_signs import Observer
from penstock.serve.http_client import Address, CannotBeSent, NoHttpAnswer, UntrustedCertificate, fetch_blocking
from penstock.spark_runtime.logical_plan import analyzed, each
from penstock.watch.graph import Node, lookup_nodes, sink_nodes, source_nodes
from penstock.watch.probe import PORTS
from penstock.wire.topic_names import is_topic_name

log = logging.getLogger(__name__)

NAMESPACE = "penstock"
"""The namespace of the jobs; a job's name is the full name of a query."""
PRODUCER = f"urn:penstock:{__version__}"
SPECIFICATION = "https://openlineage.io/spec"
RUN_EVENT = f"{SPECIFICATION}/2-0-2/OpenLineage.json#/$defs/RunEvent"
FACETS = {
    "schema": f"{SPECIFICATION}/facets/1-2-0/SchemaDatasetFacet.json#/$defs/SchemaDatasetFacet",
    "errorMessage": f"{SPECIFICATION}/facets/1-0-1/ErrorMessageRunFacet.json#/$defs/ErrorMessageRunFacet",
    "processing_engine": f"{SPECIFICATION}/facets/1-1-1/ProcessingEngineRunFacet.json#/$defs/ProcessingEngineRunFacet",
    "jobType": f"{SPECIFICATION}/facets/2-0-4/JobTypeJobFacet.json#/$defs/JobTypeJobFacet",
}
PATH = "/api/v1/lineage"
"""The path of receivers such as Marquez, for URLs without one."""
API_KEY = "OPENLINEAGE_API_KEY"
"""The environment variable with a bearer token for the receiver, as in OpenLineage's own clients."""
EVERY = 60.0
"""Seconds between two events RUNNING of a query, at least."""
MOST_TEXT = 10_000
"""Characters of an error or its trace in an event."""

Event = dict[str, Any]


# Data sets.

SCHEMES = {"kafka": "kafka", "cql": "cassandra", "postgres": "postgres"}


def dataset(node: Node, columns: st.StructType | None = None) -> Event | None:
    """The data set of a node, with its columns if they are known; None if it has no name of its own."""
    named = _named(node)
    if named is None:
        return None
    facets = {"schema": _facet("schema", fields=_fields(columns))} if columns else {}
    return {"namespace": named[0], "name": named[1], "facets": facets}


def _named(node: Node) -> tuple[str, str] | None:
    """Namespace and name."""
    if node.system in ("files", "delta"):
        parts = urlsplit(node.name)
        if parts.scheme in ("", "file"):
            return "file", str(Path(unquote(parts.path)).absolute())
        return f"{parts.scheme}://{parts.netloc}", parts.path
    if node.system not in SCHEMES:
        return (node.system, node.name) if node.name else None
    if node.system == "kafka" and not is_topic_name(node.name):
        return None
    address, _, database = (node.address or "localhost").partition("/")
    first = address.split(",")[0].strip()
    if not re.search(r":\d+$", first):
        first = f"{first}:{PORTS[node.system]}"
    name = node.name
    if node.system == "postgres":
        name = f"{database}.{name if '.' in name else f'public.{name}'}"
    return f"{SCHEMES[node.system]}://{first}", name


def _fields(columns: st.StructType) -> list[Event]:
    return [_field(place, field) for place, field in enumerate(columns.fields, 1)]


def _field(place: int, field: st.StructField) -> Event:
    kind = field.dataType
    facet: Event = {"name": field.name, "type": kind.simpleString(), "ordinal_position": place}
    if isinstance(kind, st.StructType):
        facet |= {"type": "struct", "fields": _fields(kind)}
    return facet


def _facet(name: str, /, **fields: Any) -> Event:
    return {"_producer": PRODUCER, "_schemaURL": FACETS[name], **fields}


def inputs_of(query: Query) -> list[Event]:
    """The data sets that a query reads, with the columns of tables and files, and those that it looks rows up in."""
    groups = zip(source_nodes(query), _read_columns(query), strict=True)
    # The columns of readers of topics are Kafka's; those of the records are not known here.
    datasets = [
        dataset(node, None if node.system == "kafka" else columns) for nodes, columns in groups for node in nodes
    ]
    return _distinct([*datasets, *map(dataset, lookup_nodes(query))])


def _read_columns(query: Query) -> Iterator[st.StructType]:
    """The columns of each source of a query, in the order of `source_nodes`."""
    for leaf in each(analyzed(query.frame).collectLeaves()):
        if leaf.isStreaming():
            schema = rows_schema(st.StructType.fromJson(json.loads(leaf.schema().json())))
            yield _table_columns(schema) if is_change_frame(schema) else schema


def _table_columns(changes: st.StructType) -> st.StructType:
    """The columns of a table: those of the key, and those that a row has after a change."""
    fields: dict[str, st.StructField] = {}
    for name in ("key", "after"):
        kind = changes[name].dataType if name in changes.names else None
        fields |= {field.name: field for field in kind.fields} if isinstance(kind, st.StructType) else {}
    return st.StructType(list(fields.values()))


def outputs_of(query: Query) -> list[Event]:
    """The data sets that a query writes; their columns are those of the query's frame."""
    sinks = [node for group in sink_nodes(query) for node in group]
    return _distinct([dataset(node, rows_schema(query.frame.schema)) for node in sinks])


def _distinct(all: Sequence[Event | None]) -> list[Event]:
    return list({(event["namespace"], event["name"]): event for event in all if event}.values())


# Runs.


@dataclass
class _Run:
    """A run that has not ended; `reported` is when its last event was created."""

    id: str
    inputs: list[Event]
    outputs: list[Event]
    reported: float


class Lineage(Observer):
    """Makes the events of a pipeline's queries, and hands them to `sender`."""

    def __init__(self, sender: LineageSender) -> None:
        self._sender = sender
        self._runs: dict[str, _Run] = {}

    def begins(self, name: str, query: Query, checkpoint: Location) -> None:
        self._end(name, "COMPLETE")
        try:
            inputs, outputs = inputs_of(query), outputs_of(query)
        except Exception as error:
            # A plan that cannot be looked into must not keep the query from running.
            log.warning("%s: its inputs and outputs are not known to lineage: %s", name, error, extra=WARNING)
            inputs, outputs = [], []
        self._runs[name] = _Run(str(uuid.uuid4()), inputs, outputs, time.monotonic())
        self._tell(name, "START")

    def progress(self, name: str, progress: Mapping[str, Any]) -> None:
        run = self._runs.get(name)
        if run and time.monotonic() - run.reported >= EVERY:
            run.reported = time.monotonic()
            self._tell(name, "RUNNING")

    def fault(self, text: str, *, query: str = "", pause: float | None = None, trace: str = "") -> None:
        about = {"message": text[:MOST_TEXT], "programmingLanguage": "Python"}
        about |= {"stackTrace": trace[:MOST_TEXT]} if trace else {}
        for name in list(self._runs):
            # All queries of a pipeline are stopped with the one that failed; a failed start has no query's name.
            if query in ("", name):
                self._end(name, "FAIL", errorMessage=_facet("errorMessage", **about))
            else:
                self._end(name, "COMPLETE")

    def ended(self) -> None:
        for name in list(self._runs):
            self._end(name, "COMPLETE")

    def _end(self, name: str, kind: str, **facets: Event) -> None:
        if name in self._runs:
            self._tell(name, kind, **facets)
            del self._runs[name]

    def _tell(self, name: str, kind: str, **facets: Event) -> None:
        run = self._runs[name]
        engine = _facet(
            "processing_engine", name="Spark", version=pyspark.__version__, openlineageAdapterVersion=__version__
        )
        job = _facet("jobType", processingType="STREAMING", integration="PENSTOCK", jobType="QUERY")
        self._sender.put(
            {
                "eventType": kind,
                "eventTime": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
                "producer": PRODUCER,
                "schemaURL": RUN_EVENT,
                "run": {"runId": run.id, "facets": {"processing_engine": engine, **facets}},
                "job": {"namespace": NAMESPACE, "name": name, "facets": {"jobType": job}},
                "inputs": run.inputs,
                "outputs": run.outputs,
            }
        )


# Sending.

WARNING = {"event": "warning"}
ROOM = 256
"""Events that wait; when there are more, the oldest is dropped."""
TIMEOUT = 5.0
"""Seconds for a request and its answer."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 300.0
PATIENCE = 3.0
"""Seconds that the end of a run waits for events to be sent, if the last attempt succeeded."""
MOST_ANSWER = 200
"""Bytes of an answer that a warning shows."""


def receiver(text: str) -> str:
    """The URL of a receiver, with the usual path if it has none; raises PenstockError if it is not one."""
    parts = urlsplit(text)
    try:
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        valid = False
    if not valid or parts.username is not None or re.search(r"[\x00-\x20\x7f]", text):
        raise PenstockError(
            f"{text!r} is not the URL of a receiver of lineage",
            next=f"write http://HOST:PORT, or https://HOST/PATH; a token for it goes to {API_KEY}",
        )
    return text if parts.path.strip("/") else f"{parts.scheme}://{parts.netloc}{PATH}"


class _Refused(Exception):
    """The receiver does not want this event; sending it again will not help."""


class LineageSender:
    """Sends events in their order from a thread of its own, until it is closed."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._events: deque[Event] = deque()
        self._changed = threading.Condition()
        self._closed, self._fails, self._dropped = False, False, 0
        self._thread = threading.Thread(target=self._work, name="lineage", daemon=True)
        self._thread.start()

    def put(self, event: Event) -> None:
        """Queue an event; returns at once."""
        with self._changed:
            if len(self._events) == ROOM:
                self._events.popleft()
                self._dropped += 1
            self._events.append(event)
            self._changed.notify()

    def close(self) -> None:
        """Send what waits, for a few seconds at most, and not at all if the receiver is away."""
        with self._changed:
            self._closed = True
            self._changed.notify()
            patience = 0.0 if self._fails else PATIENCE
        self._thread.join(patience)
        with self._changed:
            if lost := len(self._events) + self._dropped:
                log.warning("%d events of lineage were not sent to %s", lost, self._url, extra=WARNING)
            self._events.clear()

    def _work(self) -> None:
        pause = FIRST_PAUSE
        while (event := self._next()) is not None:
            try:
                post(self._url, event)
            except _Refused as why:
                log.warning("%s; the event %s is left out", why, event["eventType"], extra=WARNING)
            except (CannotBeSent, UntrustedCertificate, ValueError) as error:
                # An API key that no header can have, for example; the thread must go on.
                reason = error.what if isinstance(error, PenstockError) else error
                log.warning("an event of lineage cannot be sent: %s; it is left out", reason, extra=WARNING)
            except NoHttpAnswer as error:
                self._note(fails=True)
                step = "check --lineage, and that the receiver is up; the run goes on"
                what = f"lineage is not sent to {self._url}: {error.what}"
                log.warning("%s; trying again in %g s. Next: %s", what, pause, step, extra=WARNING)
                if self._wait(pause):
                    return
                pause = min(pause * 2, LONGEST_PAUSE)
                continue
            pause = FIRST_PAUSE
            self._note(fails=False)
            self._sent(event)

    def _next(self) -> Event | None:
        """The oldest event, which stays queued; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._events or self._closed)
            return self._events[0] if self._events else None

    def _sent(self, event: Event) -> None:
        with self._changed:
            # Another one is first if this one was dropped meanwhile.
            if self._events and self._events[0] is event:
                self._events.popleft()

    def _note(self, *, fails: bool) -> None:
        with self._changed:
            self._fails = fails

    def _wait(self, seconds: float) -> bool:
        """Wait; returns whether the end came meanwhile."""
        with self._changed:
            return self._changed.wait_for(lambda: self._closed, seconds)


def post(url: str, event: Event) -> None:
    """Send one event. Raises NoHttpAnswer, and `_Refused` if the receiver does not want it."""
    parts = urlsplit(url)
    key = os.environ.get(API_KEY)
    address = Address(f"{parts.scheme}://{parts.netloc}", f"Bearer {key}" if key else None)
    path = f"{parts.path}{parts.query and '?'}{parts.query}"
    answer = fetch_blocking(address, path, method="POST", body=event, patience=TIMEOUT, most=MOST_ANSWER, cut=True)
    if answer.status in (408, 425, 429) or answer.status >= 500:
        raise NoHttpAnswer(f"HTTP status {answer.status}", where=url, next="check that the receiver is up")
    if answer.status >= 300:
        what = " ".join(answer.body.decode(errors="replace").split())
        raise _Refused(f"{url} refuses an event of lineage with HTTP status {answer.status}{what and ': '}{what}")


@contextmanager
def sending(url: str | None) -> Iterator[Callable[[], Observer]]:
    """Make observers, one for each pipeline, whose events go to the receiver while the code inside runs.

    Without a URL they do nothing. Raises PenstockError as `receiver` does.
    """
    if url is None:
        yield Observer
        return
    sender = LineageSender(receiver(url))
    try:
        yield lambda: Lineage(sender)
    finally:
        sender.close()


@contextmanager
def sent(url: str | None) -> Iterator[Observer]:
    """The observer of the only pipeline, whose runs end with the code inside; raises as `sending` does."""
    with sending(url) as observer_of:
        lineage = observer_of()
        try:
            yield lineage
            lineage.ended()
        except BaseException as error:
            lineage.fault(str(error) or type(error).__name__)
            raise
