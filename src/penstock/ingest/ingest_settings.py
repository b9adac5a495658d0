"""The server's settings, from a TOML file and the command line, checked before anything starts."""

from __future__ import annotations

import math
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from penstock.durations import duration
from penstock.errors import PenstockError
from penstock.kafka.security import require_servers
from penstock.process.paths import is_file
from penstock.serve.access.callers import NOWHERE, ApiKey, Origins
from penstock.wire.topic_names import is_topic_name

Form = TypeVar("Form", bound=msgspec.Struct)

LISTEN = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:/\s\[\]]+)):(\d{1,5})")
DIGEST = re.compile(r"[0-9a-f]{64}")
DEFAULT_LISTEN = "127.0.0.1:8080"
WORKERS_PER_CORE = 4
"""At most; a busy worker takes about a core."""


class NoServers(PenstockError):
    """Neither the file nor the command line says where Kafka is."""


@dataclass(frozen=True)
class IngestTopic:
    """A topic that takes events; `schema` is the file of its JSON schema, `key` the path of the field with the key."""

    name: str
    schema: Path | None = None
    key: tuple[str, ...] = ()
    origins: Origins = NOWHERE
    """Of web pages that may send events with a secret key, or without a key if there are none."""
    pixel: bool = False
    """Whether events also come as `GET /pixel/NAME`."""


class IngestLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits in bytes, except `events`, `headers` and those of connections, which are counts."""

    body: int = 8 << 20
    """Of a request, both as received and unpacked."""
    event: int = 1_000_000
    """Of one event. By default, brokers take record batches of at most 1 048 588 bytes."""
    events: int = 10_000
    """In a request."""
    in_flight: int = 64 << 20
    """Of all requests that are not answered yet."""
    spool: int = 1 << 30
    """On disk."""
    head: int = 64 << 10
    """Of a request: its first line and its headers."""
    headers: int = 100
    """Lines in a head."""
    url: int = 8 << 10
    connections: int = 10_000
    """Open at a time; fewer if the limit of open files is lower."""
    connections_per_address: int | None = None
    """Of these, from one address; half of them by default."""


@dataclass(frozen=True)
class Times:
    """`body`: until a request is complete; `kafka`: until Kafka has its events; `idle`: between two requests."""

    body: timedelta = timedelta(seconds=10)
    kafka: timedelta = timedelta(seconds=15)
    idle: timedelta = timedelta(seconds=75)


class Tls(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """PEM files; `clients` has the authorities of the clients that may connect, without it all may."""

    certificate: str
    key: str
    password: str | None = None
    clients: str | None = None


@dataclass(frozen=True)
class IngestSettings:
    """All settings; created by `read`."""

    servers: str
    host: str
    port: int
    topics: Mapping[str, IngestTopic]
    keys: tuple[ApiKey, ...]
    limits: IngestLimits
    times: Times
    tls: Tls | None
    spool: Path | None
    workers: int
    kafka: Mapping[str, str]
    """Settings of Kafka's clients by their usual names."""
    origins: Origins
    """Of web pages that may send events, unless their topic has its own."""
    hosts: tuple[str, ...]
    """Host names that callers may use, besides those that are always allowed."""
    preflight: timedelta
    """How long browsers remember that a page may send events."""

    def share(self) -> IngestSettings:
        """The settings of one worker: limits for the whole server are divided."""
        limits, count = self.limits, self.workers
        parts = {name: max(1, getattr(limits, name) // count) for name in ("in_flight", "spool", "connections")}
        if limits.connections_per_address is not None:
            parts["connections_per_address"] = max(1, limits.connections_per_address // count)
        keys = tuple(replace(key, rate=key.rate / count) if key.rate else key for key in self.keys)
        return replace(self, limits=msgspec.structs.replace(limits, **parts), keys=keys)


@dataclass(frozen=True)
class Given:
    """The settings of the command line, which override the file."""

    servers: str | None = None
    listen: str | None = None
    topics: Sequence[str] = ()
    schemas: Path | None = None
    spool: Path | None = None
    workers: int | None = None
    hosts: Sequence[str] = ()
    origins: Sequence[str] = ()


class _Topic(msgspec.Struct, forbid_unknown_fields=True):
    schema: str | None = None
    key: str | None = None
    origins: list[str] | None = None
    pixel: bool = False


class _Key(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    sha256: str
    topics: list[str]
    publishable: bool = False
    origins: list[str] = []
    rate: float | None = None


class _Cors(msgspec.Struct, forbid_unknown_fields=True):
    origins: list[str] = []
    max_age: str = "2 hours"


class _Times(msgspec.Struct, forbid_unknown_fields=True):
    body: str | None = None
    kafka: str | None = None
    idle: str | None = None


class _File(msgspec.Struct, forbid_unknown_fields=True):
    servers: str | None = None
    listen: str | None = None
    schemas: str | None = None
    spool: str | None = None
    workers: int = 1
    topics: dict[str, dict[str, Any]] = {}
    keys: list[dict[str, Any]] = []
    limits: dict[str, Any] = {}
    timeouts: dict[str, Any] = {}
    tls: dict[str, Any] | None = None
    kafka: dict[str, str | int | bool] = {}
    allowed_hosts: list[str] = []
    cors: dict[str, Any] = {}


def read(file: Path | None, command_line: Given) -> IngestSettings:
    """The settings of a file, if there is one, and of the command line; paths in a file are relative to its folder.

    Raises PenstockError if a setting is missing or not valid.
    """
    where, folder = (str(file), file.parent) if file else ("penstock ingest", Path())
    in_file = _form(_load(file) if file else {}, _File, where)
    host, port = _listen(command_line.listen or in_file.listen or DEFAULT_LISTEN, where)
    schemas = command_line.schemas or (folder / in_file.schemas if in_file.schemas else None)
    cors = _form(in_file.cors, _Cors, f"{where}, [cors]")
    origins = Origins.of([*cors.origins, *command_line.origins], f"{where}, [cors]")
    topics = _topics(in_file.topics, command_line.topics, schemas, folder, origins, where)
    limits = _limits(in_file.limits, f"{where}, [limits]")
    tls = _form(in_file.tls, Tls, f"{where}, [tls]") if in_file.tls is not None else None
    return IngestSettings(
        servers=_servers(command_line.servers or in_file.servers, where),
        host=host,
        port=port,
        topics=topics,
        keys=tuple(_keys(in_file.keys, topics, where)),
        limits=limits,
        times=_times(in_file.timeouts, f"{where}, [timeouts]"),
        tls=_beside(tls, folder, f"{where}, [tls]") if tls else None,
        spool=command_line.spool or (folder / in_file.spool if in_file.spool else None),
        workers=_workers(in_file.workers if command_line.workers is None else command_line.workers, limits, where),
        kafka={
            name: str(value).lower() if value is True or value is False else str(value)
            for name, value in in_file.kafka.items()
        },
        origins=origins,
        hosts=(*in_file.allowed_hosts, *command_line.hosts),
        preflight=duration(cors.max_age, name=f"{where}, [cors]: max_age"),
    )


def _load(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except OSError as error:
        raise PenstockError(f"{file} cannot be read: {error.strerror}", next="give the path of a TOML file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PenstockError(f"{file} is not valid TOML: {error}", next="see docs/ingest.md for an example") from error


def _form(table: Any, form: type[Form], where: str) -> Form:
    try:
        return msgspec.convert(table, form)
    except msgspec.ValidationError as error:
        known = ", ".join(field.name for field in msgspec.structs.fields(form))
        raise PenstockError(f"a setting is not valid: {error}", where=where, next=f"use {known}") from None


def _servers(servers: str | None, where: str) -> str:
    if not servers:
        raise NoServers(
            "no Kafka servers are given",
            where=where,
            next='set servers = "host:9092", or give --servers; `penstock up` starts one',
        )
    require_servers(servers, where)
    return servers


def _listen(text: str, where: str) -> tuple[str, int]:
    match = LISTEN.fullmatch(text.strip())
    if not match or int(match[3]) > 65535:
        raise PenstockError(
            f"{text!r} is not an address to listen on", where=where, next=f"write it as {DEFAULT_LISTEN}"
        )
    return match[1] or match[2], int(match[3])


def _topics(
    tables: Mapping[str, dict[str, Any]],
    more: Sequence[str],
    schemas: Path | None,
    folder: Path,
    origins: Origins,
    where: str,
) -> dict[str, IngestTopic]:
    """The topics of the settings, and those that have a file in the folder of schemas."""
    topics = {name: IngestTopic(name, origins=origins) for name in more}
    for name, table in tables.items():
        place = f"{where}, [topics.{name}]"
        settings = _form(table, _Topic, place)
        key = tuple(settings.key.split(".")) if settings.key else ()
        own = origins if settings.origins is None else Origins.of(settings.origins, place)
        topics[name] = IngestTopic(
            name, folder / settings.schema if settings.schema else None, key, own, settings.pixel
        )
    for file in _schema_files(schemas, where) if schemas else ():
        topic = topics.get(file.stem, IngestTopic(file.stem, origins=origins))
        topics[file.stem] = replace(topic, schema=topic.schema or file)
    if not topics:
        raise PenstockError("no topic is given", where=where, next="write [topics.NAME] for each, or give --topics a,b")
    for name in topics:
        if not is_topic_name(name):
            raise PenstockError(
                f"{name!r} is not a valid topic name", where=where, next="use letters, digits, . _ and -"
            )
    return topics


def _schema_files(folder: Path, where: str) -> list[Path]:
    if not folder.is_dir():
        raise PenstockError(f"there is no folder {folder}", where=where, next="give the folder with TOPIC.json files")
    return sorted(folder.glob("*.json"))


def _keys(tables: Sequence[dict[str, Any]], topics: Mapping[str, IngestTopic], where: str) -> list[ApiKey]:
    key_by_name: dict[str, ApiKey] = {}
    for number, table in enumerate(tables, 1):
        key = _form(table, _Key, f"{where}, [[keys]] number {number}")
        place = f"{where}, key {key.name!r}"
        if not DIGEST.fullmatch(key.sha256.lower()):
            raise PenstockError(
                "sha256 is not 64 hexadecimal digits", where=place, next="make one: penstock ingest --new-key NAME"
            )
        if unknown := set(key.topics) - {*topics, "*"}:
            raise PenstockError(
                f"no topic {', '.join(sorted(unknown))}", where=place, next=f"use {', '.join(topics)}, or *"
            )
        if key.name in key_by_name:
            raise PenstockError("two keys have this name", where=place, next="give each its own")
        names = None if "*" in key.topics else frozenset(key.topics)
        key_by_name[key.name] = ApiKey(key.name, bytes.fromhex(key.sha256), names, _bound(key, place), key.rate)
    return list(key_by_name.values())


def _bound(key: _Key, where: str) -> Origins | None:
    """The origins of a publishable key; None for a secret one."""
    if key.rate is not None and not 0 < key.rate < math.inf:
        raise PenstockError(f"rate is {key.rate}", where=where, next="give requests per second, more than 0")
    if not key.publishable:
        if key.origins:
            raise PenstockError(
                "it has origins and is secret", where=where, next="add publishable = true if it is in web pages"
            )
        return None
    if "*" in key.topics or not key.topics:
        raise PenstockError(
            "a publishable key, which everybody can read, must be for named topics", where=where, next="name them"
        )
    if not key.origins:
        raise PenstockError(
            "a publishable key has no origins",
            where=where,
            next='give those of its pages, origins = ["https://shop.example"], or all: ["*"]',
        )
    return Origins.of(key.origins, where)


def _limits(table: dict[str, Any], where: str) -> IngestLimits:
    limits = _form(table, IngestLimits, where)
    for name in limits.__struct_fields__:
        value = getattr(limits, name)
        if value is not None and value < 1:
            raise PenstockError(f"{name} is {getattr(limits, name)}", where=where, next="give a number of 1 or more")
    if limits.event > limits.body:
        limits = msgspec.structs.replace(limits, event=limits.body)
    if limits.in_flight < limits.body:
        raise PenstockError(
            "in_flight is less than body", where=where, next="raise it: no request of that size could come in"
        )
    return limits


def _workers(count: int, limits: IngestLimits, where: str) -> int:
    cores = os.cpu_count() or 1
    if not 1 <= count <= WORKERS_PER_CORE * cores:
        advice = f"give 1 to {WORKERS_PER_CORE * cores}: a worker takes about a core, and there are {cores}"
        raise PenstockError(f"workers is {count}", where=where, next=advice)
    if limits.in_flight // count < limits.body:
        raise PenstockError(
            f"in_flight of {limits.in_flight} bytes, divided by {count} workers, is less than body",
            where=f"{where}, [limits]",
            next="raise in_flight, or give fewer workers",
        )
    return count


def _times(table: dict[str, Any], where: str) -> Times:
    texts = _form(table, _Times, where)
    text_by_name = {name: getattr(texts, name) for name in texts.__struct_fields__ if getattr(texts, name) is not None}
    times = {name: duration(text, name=f"{where}: {name}") for name, text in text_by_name.items()}
    for name, time in times.items():
        if not time:
            raise PenstockError(f"{name} is zero", where=where, next='give a time, for example "10 seconds"')
    return Times(**times)


def _beside(tls: Tls, folder: Path, where: str) -> Tls:
    """The settings with paths relative to the file's folder; raises PenstockError if a file is missing."""
    paths = {name: str(folder / getattr(tls, name)) for name in ("certificate", "key", "clients") if getattr(tls, name)}
    for name, path in paths.items():
        if not is_file(path):
            raise PenstockError(f"there is no file {path}", where=where, next=f"give the PEM file for {name}")
    return msgspec.structs.replace(tls, **paths)
