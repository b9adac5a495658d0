"""The worker's settings, from a properties file as for Kafka Connect's workers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.connect.definition import full_name
from penstock.connect.group.group_settings import GroupSettings, group_settings
from penstock.connect.java import regex as java_regex
from penstock.connect.records.sink_converters import CLASSES, OF_HEADERS
from penstock.connect.worker.providers import KINDS, PLUGIN_PATH, Provided, Provider, read_properties, read_text
from penstock.connect.worker.secrets import of_config
from penstock.durations import whole
from penstock.errors import PenstockError
from penstock.kafka import kafka_sink
from penstock.kafka.kafka_settings import DECOMPRESSED
from penstock.kafka.security import SETTINGS as SECURITY, Security, require_servers
from penstock.process.paths import is_file
from penstock.serve.access.passwords import Passwords

TOPIC = "connect-configs"
HEADER = "header.converter"
ALLOWED = "penstock.allowed.hosts"
EXTENSIONS, CREDENTIALS = "rest.extension.classes", "penstock.rest.credentials.file"
BASIC_AUTH = "org.apache.kafka.connect.rest.basic.auth.extension.BasicAuthSecurityRestExtension"
LISTENER = re.compile(r"http://(\[[0-9A-Fa-f:.]+\]|[^:/\s]*):(\d{1,5})")


@dataclass(frozen=True)
class WorkerSettings:
    """The settings of a worker; `read` creates them."""

    servers: str
    host: str
    port: int
    topic: str
    provided: Provided
    producer: Mapping[str, str] = field(repr=False)
    security: Security
    allowed: tuple[str, ...] = ()
    """Names by which callers may address the worker."""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Secrets, with their replacements in messages."""
    max_decompressed: int | None = None
    """Bytes that a record batch of the topic of configurations may decompress to."""
    advertised: str = ""
    """The host name by which other machines know the worker."""
    passwords: Passwords | None = None
    """Of those who may call the worker; None if all may."""
    group: GroupSettings | None = None
    """The group that shares the connectors; None for a worker on its own."""

    def client(self) -> dict[str, Any]:
        """The options of Penstock's Kafka client."""
        return {"tls": self.security.tls(), "authenticate": self.security.authenticate()}


def read(file: Path | None, servers: str | None, listen: str | None) -> WorkerSettings:
    """Read the settings of a worker's file, if there is one; `servers` and `listen` override it.

    Raises PenstockError for a missing file and for wrong values.
    """
    if file is not None and not is_file(file):
        raise PenstockError(f"there is no file {file}", next="give the worker's properties file, or omit it")
    where = str(file) if file else "penstock connect"
    said = _said(file) if file else {}
    resolved = Provided(_providers(said, where)).resolved(said)
    for name, message in resolved.errors:
        raise PenstockError(f"{name}: {message}", where=where, next="correct the reference or its source")
    properties = resolved.config
    host, port = _listener(listen or properties.get("listeners", "http://127.0.0.1:8083").split(",")[0], where)
    chosen = servers or properties.get("bootstrap.servers")
    if not chosen:
        raise PenstockError(
            "no Kafka is named", where=where, next="set bootstrap.servers, or give --servers; `penstock up` starts one"
        )
    require_servers(chosen, where, next="correct bootstrap.servers")
    security = {name: properties[name] for name in SECURITY if name in properties}
    producer = {
        name.removeprefix("producer."): text for name, text in properties.items() if name.startswith("producer.")
    }
    _require_producer(security, producer, where)
    topic, most = properties.get("config.storage.topic", TOPIC), _bytes(properties, DECOMPRESSED, where)
    return WorkerSettings(
        chosen,
        host,
        port,
        topic,
        # Connectors' configurations show the worker's converters, so their references stay unresolved here.
        Provided(
            _providers(properties, where),
            {**_converters(properties, where), **_converters_of(said)},
            _plugin_path(said),
        ),
        {**security, **producer},
        Security.of(security),
        (host, *_allowed(properties)),
        of_config(resolved),
        most,
        properties.get("rest.advertised.host.name", "").strip(),
        _passwords(properties, where),
        group_settings(properties, topic, most, where),
    )


def _require_producer(security: Mapping[str, str], producer: Mapping[str, str], where: str) -> None:
    """Raise now, with the property, what would otherwise end each task."""
    for name, text in producer.items():
        if name not in SECURITY:
            # Without the value, which is a secret if the name is that of one with a slip.
            _require_options({name: text}, f"producer.{name} is refused", where)
    # A login is right or wrong as a whole.
    _require_options({**security, **producer}, "the producer's properties are refused", where)


def _require_options(options: Mapping[str, str], said: str, where: str) -> None:
    try:
        kafka_sink.require_options(options)
    except PenstockError as error:
        raise PenstockError(f"{said}: {error.what}", where=where, next=error.next) from error


def _allowed(properties: Mapping[str, str]) -> list[str]:
    """The worker's host names in the file."""
    names = f"{properties.get('rest.advertised.host.name', '')},{properties.get(ALLOWED, '')}".split(",")
    return [name.strip() for name in names if name.strip()]


def _said(file: Path) -> dict[str, str]:
    try:
        return read_properties(read_text(file, "utf-8"))
    except OSError as error:
        raise PenstockError(f"the worker's file cannot be read: {error}", where=str(file), next="correct it") from error
    except ValueError as error:
        raise PenstockError(
            f"not a Java properties file: {error}", where=str(file), next="correct this line"
        ) from error


def _bytes(properties: Mapping[str, str], name: str, where: str) -> int | None:
    text = properties.get(name)
    number = None if text is None else whole(text, 1)
    if number is None and text is not None:
        raise PenstockError(f"{name} cannot be {text!r}", where=where, next="give a number of bytes above 0")
    return number


def _passwords(properties: Mapping[str, str], where: str) -> Passwords | None:
    """Of the file that `CREDENTIALS` names, which has a line for each name: name=password."""
    wanted = [name.strip() for name in properties.get(EXTENSIONS, "").split(",") if name.strip()]
    for name in wanted:
        if name != BASIC_AUTH:
            # An unknown one may be what keeps others from the worker.
            raise PenstockError(f"{EXTENSIONS} cannot be {name!r}", where=where, next=f"use {BASIC_AUTH}, or none")
    file = properties.get(CREDENTIALS, "").strip()
    if not file:
        if wanted:
            raise PenstockError(
                f"{BASIC_AUTH} needs names and passwords, which are in no JAAS configuration here",
                where=where,
                next=f"set {CREDENTIALS} to a properties file with a line name=password for each",
            )
        return None
    if not is_file(Path(file)):
        raise PenstockError(f"{CREDENTIALS}: there is no file {file}", where=where, next="correct the path")
    try:
        known = read_properties(read_text(Path(file), "utf-8"))
    except (OSError, ValueError) as error:
        raise PenstockError(
            f"{CREDENTIALS}: {file} cannot be read", where=where, next="make it a properties file of this user"
        ) from error
    if not known or any(not name or ":" in name or not password for name, password in known.items()):
        raise PenstockError(
            f"{CREDENTIALS}: {file} has no names, or a name with a colon or without a password",
            where=where,
            next="give it a line name=password for each who may call",
        )
    return Passwords(known)


def _listener(text: str, where: str) -> tuple[str, int]:
    match = LISTENER.fullmatch(text.strip())
    if not match or int(match[2]) > 65535:
        raise PenstockError(
            f"{text!r} is not an address to listen at", where=where, next="write it as http://127.0.0.1:8083"
        )
    return match[1].strip("[]") or "0.0.0.0", int(match[2])


def _plugin_path(said: Mapping[str, str]) -> str:
    """The folders with code, whole and those that are there: Kafka's own workers have others, too."""
    names = (name.strip() for name in said.get(PLUGIN_PATH, "").split(","))
    return ",".join(str(Path(name).absolute()) for name in names if name and Path(name).is_dir())


def _converters(properties: Mapping[str, str], where: str) -> dict[str, str]:
    """The worker's converters, for connectors without their own."""
    texts = _converters_of(properties)
    for side, classes in (("key.converter", CLASSES), ("value.converter", CLASSES), (HEADER, OF_HEADERS)):
        name = texts.get(side)
        if name is not None and full_name(name, classes) not in classes:
            raise PenstockError(
                f"{side} cannot be {name or 'empty'}", where=where, next=f"use one of: {', '.join(classes)}"
            )
    return texts


def _converters_of(properties: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in properties.items() if re.match(r"(key|value|header)\.converter(\.|$)", name)}


def _providers(properties: Mapping[str, str], where: str) -> dict[str, Provider]:
    names = [name.strip() for name in properties.get("config.providers", "").split(",") if name.strip()]
    classes = {name: properties.get(f"config.providers.{name}.class", "") for name in names}
    for name, kind in classes.items():
        if kind not in KINDS:
            raise PenstockError(
                f"config.providers.{name}.class cannot be {kind!r}", where=where, next=f"use one of: {', '.join(KINDS)}"
            )
    return {
        name: _provider(KINDS[kind], f"config.providers.{name}.param.", properties, where)
        for name, kind in classes.items()
    }


def _provider(kind: str, prefix: str, properties: Mapping[str, str], where: str) -> Provider:
    paths, names = (properties.get(f"{prefix}{param}", "").strip() for param in ("allowed.paths", "allowlist.pattern"))
    try:
        pattern = java_regex.compiled(names) if names else None
    except ValueError as error:
        raise PenstockError(f"{prefix}allowlist.pattern cannot be {names!r}: {error}", where=where) from error
    return Provider(kind, tuple(Path(path.strip()) for path in paths.split(",") if path.strip()), pattern)
