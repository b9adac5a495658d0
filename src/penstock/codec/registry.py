"""A schema registry that speaks Confluent's REST API: Confluent's own, Apicurio, Karapace, Redpanda.

Serves the codecs that write a schema's id in front of each record. A schema is registered once in a process; the id
is kept. The paths, error codes and the content type are those of "Schema Registry API Reference", version 1.
"""

from __future__ import annotations

import base64
import json
import ssl
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from http import HTTPStatus
from http.client import HTTPException
from typing import Any, NamedTuple, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import quote, unquote, urlsplit, urlunsplit
from urllib.request import Request, urlopen

from pyspark.sql import Column, functions as F

from penstock.codec.connect_schema import Schema
from penstock.codec.typed_records import Side
from penstock.errors import PenstockError

MAGIC = 0
"""The first byte of Confluent's wire format, which has four bytes of the schema's id behind it."""
T = TypeVar("T")

CONTENT = "application/vnd.schemaregistry.v1+json"
TIMEOUT = 10.0  # seconds for one answer
MOST = 16 << 20
"""Bytes of an answer, which has one schema."""
MOST_REFUSED = 64 << 10
"""Bytes of a refusal that are looked at."""
PAUSES = (0.1, 0.3, 1.0)  # seconds before each further attempt
LEVELS = (
    "BACKWARD",
    "BACKWARD_TRANSITIVE",
    "FORWARD",
    "FORWARD_TRANSITIVE",
    "FULL",
    "FULL_TRANSITIVE",
    "NONE",
)


class _Address(NamedTuple):
    url: str
    user: str | None
    password: str | None


class RegistryUnavailable(PenstockError):
    """The registry did not answer, or said that it can't now."""

    retriable = True


@dataclass(frozen=True)
class Registry:
    """A registry at `url`, such as "http://127.0.0.1:8081"; several, with commas between, serve the same schemas.

    `user` and `password` log in, also when they stand in the URL. `ca`, `certificate` and `key` are PEM files for
    https; without `ca` the system's authorities are trusted. With `register=False` nothing is registered: a schema
    that its subject does not have yet is an error.
    """

    url: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    register: bool = True

    def __post_init__(self) -> None:
        places = [_address(url.strip()) for url in self.url.split(",")]
        object.__setattr__(self, "url", ",".join(place.url for place in places))
        for place in places:
            if place.user is not None and self.user is None:
                object.__setattr__(self, "user", place.user)
                object.__setattr__(self, "password", place.password)

    def id(self, subject: str, schema: str, kind: str) -> int:
        """The id of a schema under a subject, registered if need be; `kind` is AVRO, PROTOBUF or JSON.

        An incompatible or faulty schema is a `PenstockError`, a registry that can't answer a `RegistryUnavailable`.
        """
        return _id(self, subject, schema, kind)

    def compatible(self, subject: str, schema: str, kind: str) -> bool:
        """Whether the subject would take the schema as its next version."""
        path = f"/compatibility/subjects/{quote(subject, safe='')}/versions/latest"
        try:
            return _member(self.ask("POST", path, _body(schema, kind), subject), "is_compatible", bool, self.url)
        except _NotFound:
            return True

    def set_compatibility(self, level: str, subject: str | None = None) -> None:
        """Set what changes are allowed, in one subject or, without one, in all that have no setting of their own."""
        if level not in LEVELS:
            raise PenstockError(f"no compatibility level {level!r}", next=f"use one of {', '.join(LEVELS)}")
        path = "/config" if subject is None else f"/config/{quote(subject, safe='')}"
        self.ask("PUT", path, {"compatibility": level}, subject or "")

    def versions(self, subject: str) -> list[int]:
        """The versions of a subject, oldest first; none if there is no such subject."""
        try:
            found = self.ask("GET", f"/subjects/{quote(subject, safe='')}/versions", None, subject)
        except _NotFound:
            return []
        return _member({"versions": found}, "versions", list, self.url)

    def schemas(self, subject: str) -> list[tuple[int, str, str]]:
        """Id, text and kind (AVRO, PROTOBUF or JSON) of each version of a subject, oldest first; an error for none."""
        path = f"/subjects/{quote(subject, safe='')}/versions"
        numbers = self.versions(subject)
        if not numbers:
            raise PenstockError(
                f"the schema registry has no subject {subject}",
                where=self.url,
                next="write a first record, register a schema, or give subject= if it has another name",
            )
        found = [self.ask("GET", f"{path}/{number}", None, subject) for number in sorted(numbers)]
        return [
            (
                _member(one, "id", int, self.url),
                _member(one, "schema", str, self.url),
                _member({"schemaType": "AVRO"} | one, "schemaType", str, self.url),
            )
            for one in found
        ]

    def ask(self, method: str, path: str, body: Any, subject: str) -> Any:
        """The registry's answer; passing faults are tried again, at the next address if there are several."""
        for pause in (*PAUSES, None):
            for url in self.url.split(","):
                try:
                    return self._once(url, method, path, body, subject)
                except RegistryUnavailable as unavailable:
                    fault = unavailable
            if pause is None:
                raise fault
            time.sleep(pause)
        raise AssertionError("the last attempt returns or raises")

    def _once(self, url: str, method: str, path: str, body: Any, subject: str) -> Any:
        request = Request(url + path, method=method, headers={"Accept": CONTENT})
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", CONTENT)
        if self.user is not None:
            login = base64.b64encode(f"{self.user}:{self.password or ''}".encode()).decode()
            request.add_header("Authorization", f"Basic {login}")
        try:
            with urlopen(request, timeout=TIMEOUT, context=self._tls(url)) as answer:
                return _parsed(answer.read(MOST + 1), url)
        except HTTPError as refusal:
            with refusal:
                raise _refused(refusal, url, subject) from None
        except (OSError, HTTPException, ValueError) as problem:
            raise _unanswered(problem, url) from problem

    def _tls(self, url: str) -> ssl.SSLContext | None:
        if not url.startswith("https:"):
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.certificate:
                context.load_cert_chain(self.certificate, self.key)
        except OSError as problem:
            raise PenstockError(
                f"cannot use the certificates for the schema registry: {problem}",
                where=", ".join(filter(None, (self.ca, self.certificate, self.key))),
                next="ca, certificate and key are PEM files",
            ) from problem
        return context


def _parsed(answer: bytes, url: str) -> Any:
    if len(answer) > MOST:
        raise PenstockError(
            f"the schema registry answers with more than {MOST} bytes", where=url, next="check that it is a registry"
        )
    try:
        return json.loads(answer)
    except RecursionError:
        raise PenstockError(
            "the schema registry's answer is nested too deeply", where=url, next="check that it is a registry"
        ) from None


def _member(answer: Any, name: str, kind: type[T], url: str) -> T:
    """A member of an answer; a PenstockError if it is not there or of another type."""
    value = answer.get(name) if isinstance(answer, dict) else None
    if not isinstance(value, kind):
        raise PenstockError(
            f"the schema registry's answer has no {name}: {json.dumps(answer)[:200]}",
            where=url,
            next="check that the address is that of Confluent's REST API",
        )
    return value


class _NotFound(PenstockError):
    """There is no such subject, version or schema."""


def _unanswered(problem: Exception, url: str) -> PenstockError:
    reason = problem.reason if isinstance(problem, URLError) else problem
    if isinstance(reason, ssl.SSLCertVerificationError):
        return PenstockError(
            f"the schema registry's certificate is not trusted: {reason.verify_message}",
            where=url,
            next="give its authority with Registry(url, ca=...)",
        )
    return RegistryUnavailable(
        f"the schema registry does not answer: {reason or type(problem).__name__}",
        where=url,
        next="check the address and that the registry runs",
    )


def _refused(refusal: HTTPError, url: str, subject: str) -> PenstockError:
    said = _message(refusal)
    where = f"subject {subject} at {url}" if subject else url
    if refusal.code == HTTPStatus.TOO_MANY_REQUESTS or refusal.code >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return RegistryUnavailable(f"the schema registry can't answer now: {said}", where=where, next="try again")
    if refusal.code == HTTPStatus.CONFLICT:
        return PenstockError(
            f"the schema is incompatible with the versions before it: {said}",
            where=where,
            next="write to another topic, or allow the change by the subject's compatibility level",
        )
    if refusal.code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return PenstockError(
            f"the schema registry refuses the login: {said}",
            where=where,
            next="give Registry(url, user=..., password=...) of somebody who may read and write this subject",
        )
    kind = _NotFound if refusal.code == HTTPStatus.NOT_FOUND else PenstockError
    return kind(f"the schema registry refuses: {said}", where=where, next="correct what it says")


@cache
def _id(registry: Registry, subject: str, schema: str, kind: str) -> int:
    path = f"/subjects/{quote(subject, safe='')}"
    if registry.register:
        return _member(registry.ask("POST", f"{path}/versions", _body(schema, kind), subject), "id", int, registry.url)
    try:
        return _member(registry.ask("POST", path, _body(schema, kind), subject), "id", int, registry.url)
    except _NotFound as missing:
        raise PenstockError(
            f"the schema is not registered: {missing.what}",
            where=missing.where,
            next=f"register it, or let penstock do it with register=True. It is {schema}",
        ) from None


def _body(schema: str, kind: str) -> dict[str, str]:
    # Registries older than the other kinds do not know the member.
    return {"schema": schema} if kind == "AVRO" else {"schema": schema, "schemaType": kind}


def _message(refusal: HTTPError) -> str:
    text = refusal.read(MOST_REFUSED).decode("utf-8", "replace")
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        told = None  # the page of some proxy
    message = told.get("message") if isinstance(told, dict) else None
    return f"{message or refusal.reason} (HTTP {refusal.code})"


def _address(url: str) -> _Address:
    """An address without the login that may stand in it, and the login."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise PenstockError(
            f"no address of a schema registry: {_shown(url)!r}",
            where="registry",
            next='write it as "http://host:8081"; Apicurio serves this API below /apis/ccompat/v7',
        )
    plain = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])).rstrip("/")
    if parts.username is None:
        return _Address(plain, None, None)
    return _Address(plain, unquote(parts.username), unquote(parts.password or ""))


def _shown(url: str) -> str:
    """The address without a password."""
    return url.rpartition("@")[2] if "@" in url else url


# Under which subject of a registry a schema goes, and the frame of a record that carries its id.


def _by_topic(topic: str, side: Side, record: str) -> str:
    return f"{topic}-{side}"


def _by_record(topic: str, side: Side, record: str) -> str:
    return record


def _by_both(topic: str, side: Side, record: str) -> str:
    return f"{topic}-{record}"


STRATEGIES: dict[str, Callable[[str, Side, str], str]] = {
    "topic": _by_topic,
    "record": _by_record,
    "topic-record": _by_both,
}


@dataclass(frozen=True)
class Subjects:
    """A registry and the rule that names subjects in it: "topic" (`<topic>-key`, `<topic>-value`), "record" (the
    name of the record's schema) or "topic-record"; Confluent's TopicName-, RecordName- and TopicRecordNameStrategy.
    """

    registry: Registry
    strategy: str = "topic"

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise PenstockError(
                f"unknown rule for subjects {self.strategy!r}",
                where="registry",
                next=f"use {' or '.join(map(repr, STRATEGIES))}",
            )

    def framed(self, encoded: Column, text: str, kind: str, *, topic: str, side: Side, schema: Schema) -> Column:
        """The record's bytes behind the id of its schema, whose text is registered; null stays null.

        Records whose topic differs from row to row go by the name of their schema.
        """
        name = STRATEGIES[self.strategy if topic else "record"]
        subject = name(topic, side, schema.get("name") or topic or "penstock")
        frame = struct.pack(">bI", MAGIC, self.registry.id(subject, text, kind))
        return F.concat(F.lit(frame), encoded)
