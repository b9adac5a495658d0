"""A client for schema registries with Confluent's REST API: Confluent's own, Apicurio, Karapace, Redpanda.

The codecs that write a schema id before each record use it. A process registers a schema once and caches the id. Paths,
error codes and the content type are from "Schema Registry API Reference", version 1.
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, get_args
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from pyspark.sql import Column, functions as F

from penstock.border.public import public
from penstock.codec.connect_schema import Schema
from penstock.codec.typed_records import Side
from penstock.errors import PenstockError

if TYPE_CHECKING:
    import ssl

    from penstock.serve.http_client import HttpAnswer, NoHttpAnswer

MAGIC = 0
"""The first byte of Confluent's wire format; the schema id follows in four bytes."""
T = TypeVar("T")

CONTENT = "application/vnd.schemaregistry.v1+json"
TIMEOUT = 10.0  # seconds for one request and its answer
MOST = 16 << 20
"""The most bytes of an answer, which has one schema."""
MOST_REFERENCES = 100
"""The most schemas that a schema refers to, with those that these refer to."""
REDIRECTS = 10
"""The most redirects of a request that are followed."""
PAUSES = (0.1, 0.3, 1.0)  # seconds before each further attempt
Level: TypeAlias = Literal[
    "BACKWARD",
    "BACKWARD_TRANSITIVE",
    "FORWARD",
    "FORWARD_TRANSITIVE",
    "FULL",
    "FULL_TRANSITIVE",
    "NONE",
]
LEVELS = get_args(Level)


class RegistryUnavailable(PenstockError):
    """The registry did not answer, or reported that it cannot answer now; trying again can help."""

    retriable = True


@public("kafka.Registry")
@dataclass(frozen=True)
class Registry:
    """A schema registry at `url`, such as "http://127.0.0.1:8081"; separate several URLs of one registry by commas.

    `user` and `password` are the login; they can also be in the URL. `ca`, `certificate` and `key` are paths of PEM
    files for https; without `ca` the system's authorities are trusted. With `register=False` nothing is registered: a
    schema that its subject does not have is an error.

    A request has 10 seconds per attempt and is tried four times, each time at every URL. All methods raise
    RegistryUnavailable (a PenstockError with `retriable`) if the registry does not answer, and PenstockError if it
    refuses the request or its answer is not valid. A `url` that is not valid raises PenstockError.
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
        object.__setattr__(self, "url", ",".join(url for url, _, _ in places))
        for _, user, password in places:
            if user is not None and self.user is None:
                object.__setattr__(self, "user", user)
                object.__setattr__(self, "password", password)

    def id(self, subject: str, schema: str, kind: str) -> int:
        """Return the id of a schema under a subject; register the schema if needed. `kind` is AVRO, PROTOBUF or JSON.

        Raises PenstockError if the schema is not valid or not compatible.
        """
        return _id(self, subject, schema, kind)

    def compatible(self, subject: str, schema: str, kind: str) -> bool:
        """Whether the subject would accept the schema as its next version; True if there is no such subject."""
        path = f"/compatibility/subjects/{quote(subject, safe='')}/versions/latest"
        try:
            return _member(self.ask("POST", path, _body(schema, kind), subject), "is_compatible", bool, self.url)
        except _NotFound:
            return True

    def set_compatibility(self, level: Level, subject: str | None = None) -> None:
        """Set the compatibility level of a subject, or without `subject` the registry's default level.

        `level` is BACKWARD, FORWARD or FULL, each also with _TRANSITIVE, or NONE.
        """
        if level not in LEVELS:
            raise PenstockError(f"{level!r} is not a compatibility level", next=f"use one of {', '.join(LEVELS)}")
        path = "/config" if subject is None else f"/config/{quote(subject, safe='')}"
        self.ask("PUT", path, {"compatibility": level}, subject or "")

    def versions(self, subject: str) -> list[int]:
        """Return the versions of a subject, oldest first; an empty list if there is no such subject."""
        try:
            versions = self.ask("GET", f"/subjects/{quote(subject, safe='')}/versions", None, subject)
        except _NotFound:
            return []
        return _member({"versions": versions}, "versions", list, self.url)

    def schemas(self, subject: str) -> list[tuple[int, str, str]]:
        """Return id, text and kind (AVRO, PROTOBUF or JSON) of each version of a subject, oldest first.

        Raises PenstockError if there is no such subject.
        """
        path = f"/subjects/{quote(subject, safe='')}/versions"
        numbers = self.versions(subject)
        if not numbers:
            raise PenstockError(
                f"the schema registry has no subject {subject}",
                where=self.url,
                next="write a first record, register a schema, or give subject= if it has another name",
            )
        answers = [self.ask("GET", f"{path}/{number}", None, subject) for number in sorted(numbers)]
        return [
            (
                _member(answer, "id", int, self.url),
                _member(answer, "schema", str, self.url),
                _member({"schemaType": "AVRO"} | answer, "schemaType", str, self.url),
            )
            for answer in answers
        ]

    def schema(self, number: int) -> tuple[str, str]:
        """Return text and kind (AVRO, PROTOBUF or JSON) of the schema with this id.

        Raises PenstockError if there is none, or if it refers to schemas of other subjects.
        """
        text, kind, references = self._schema(f"/schemas/ids/{number}")
        if references:
            raise PenstockError(
                f"the schema {number} refers to schemas of other subjects, which are not read",
                where=self.url,
                next="register it as one text",
            )
        return text, kind

    def schema_with_references(self, number: int) -> tuple[str, str, dict[str, str]]:
        """Return text and kind of a schema, and the texts of all schemas that it refers to, by their names in it.

        Raises PenstockError if one of them is missing, or if they are more than 100 or larger than 16 MiB.
        """
        text, kind, pending = self._schema(f"/schemas/ids/{number}")
        texts: dict[str, str] = {}
        while pending:
            reference = pending.pop()
            name, subject = _member(reference, "name", str, self.url), _member(reference, "subject", str, self.url)
            if name in texts:
                continue
            if len(texts) == MOST_REFERENCES or sum(map(len, texts.values())) > MOST:
                raise PenstockError(
                    f"the schema {number} refers to more than {MOST_REFERENCES} schemas, or {MOST} characters of them",
                    where=self.url,
                    next="register it with fewer references",
                )
            version = _member(reference, "version", int, self.url)
            texts[name], _, more = self._schema(f"/subjects/{quote(subject, safe='')}/versions/{version}")
            pending += more
        return text, kind, texts

    def _schema(self, path: str) -> tuple[str, str, list[Any]]:
        """Text, kind and references of the schema at this path."""
        answer = self.ask("GET", path, None, "")
        text = _member(answer, "schema", str, self.url)
        references = answer.get("references") or []
        return (
            text,
            _member({"schemaType": "AVRO"} | answer, "schemaType", str, self.url),
            _member({"references": references}, "references", list, self.url),
        )

    def ask(self, method: str, path: str, body: Any, subject: str) -> Any:
        """Send a request and return the answer; a transient fault is retried, at the next URL if there are several."""
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
        # Imported here, as `ssl`: most of Spark's Python processes load this module and ask no registry.
        from penstock.serve.client_connection import basic
        from penstock.serve.http_client import Address, NoHttpAnswer, fetch_blocking

        headers = {"accept": CONTENT} | ({} if body is None else {"content-type": CONTENT})
        login = None if self.user is None else basic(self.user, self.password or "")
        try:
            answer = fetch_blocking(
                Address(url, login),
                path,
                method=method,
                body=body,
                headers=headers,
                patience=TIMEOUT,
                most=MOST,
                tls=self._tls(url),
                redirects=REDIRECTS,
                proxied=True,
            )
        except NoHttpAnswer as problem:
            raise _unanswered(problem, url) from problem
        if answer.status >= 300:
            raise _refused(answer, url, subject)
        return _parsed(answer.body, url)

    def _tls(self, url: str) -> ssl.SSLContext | None:
        if not url.startswith("https:"):
            return None
        import ssl

        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.certificate:
                context.load_cert_chain(self.certificate, self.key)
        except OSError as problem:
            raise PenstockError(
                f"cannot use the certificates for the schema registry: {problem}",
                where=", ".join(filter(None, (self.ca, self.certificate, self.key))),
                next="give ca, certificate and key as PEM files",
            ) from problem
        return context


def _parsed(answer: bytes, url: str) -> Any:
    try:
        return json.loads(answer)
    except RecursionError:
        raise PenstockError(
            "the schema registry's answer is nested too deeply", where=url, next="check that it is a registry"
        ) from None
    except ValueError as problem:
        raise _away(f"{problem}", url) from problem


def _member(answer: Any, name: str, kind: type[T], url: str) -> T:
    """A member of an answer; raises PenstockError if it is missing or has another type."""
    value = answer.get(name) if isinstance(answer, dict) else None
    if not isinstance(value, kind):
        raise PenstockError(
            f"the schema registry's answer has no {name}: {json.dumps(answer)[:200]}",
            where=url,
            next="check that Confluent's REST API is at this address",
        )
    return value


class _NotFound(PenstockError):
    """There is no such subject, version or schema."""


def _unanswered(problem: NoHttpAnswer, url: str) -> PenstockError:
    from penstock.serve.http_client import RedirectedElsewhere, TooLargeAnswer, UntrustedCertificate

    if isinstance(problem, UntrustedCertificate):
        return PenstockError(
            f"the schema registry's certificate is not trusted: {problem.reason}",
            where=url,
            next="give its authority with Registry(url, ca=...)",
        )
    if isinstance(problem, RedirectedElsewhere):
        return PenstockError(
            f"the schema registry redirects to {problem.origin}, which does not get its login",
            where=problem.where,
            next="give the registry's own address, if you trust it",
        )
    if isinstance(problem, TooLargeAnswer):
        return PenstockError(
            f"the schema registry answers with more than {MOST} bytes", where=url, next="check that it is a registry"
        )
    return _away(problem.what, url)


def _away(why: str, url: str) -> RegistryUnavailable:
    return RegistryUnavailable(
        f"the schema registry does not answer: {why}", where=url, next="check the address and that the registry runs"
    )


def _refused(refusal: HttpAnswer, url: str, subject: str) -> PenstockError:
    said = _message(refusal)
    where = f"subject {subject} at {url}" if subject else url
    if refusal.status == HTTPStatus.TOO_MANY_REQUESTS or refusal.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return RegistryUnavailable(f"the schema registry cannot answer now: {said}", where=where, next="try again")
    if refusal.status == HTTPStatus.CONFLICT:
        return PenstockError(
            f"the schema is incompatible with earlier versions: {said}",
            where=where,
            next="write to another topic, or allow the change by the subject's compatibility level",
        )
    if refusal.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return PenstockError(
            f"the schema registry refuses the login: {said}",
            where=where,
            next="give Registry(url, user=..., password=...) for a user who may read and write this subject",
        )
    kind = _NotFound if refusal.status == HTTPStatus.NOT_FOUND else PenstockError
    return kind(f"the schema registry refuses: {said}", where=where, next="correct what the registry reports")


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
            next=f"register it, or let penstock register it with register=True. It is {schema}",
        ) from None


def _body(schema: str, kind: str) -> dict[str, str]:
    # Old registries, which have only Avro, do not know the member `schemaType`.
    return {"schema": schema} if kind == "AVRO" else {"schema": schema, "schemaType": kind}


def _message(refusal: HttpAnswer) -> str:
    text = refusal.body.decode("utf-8", "replace")
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        answer = None  # the error page of a proxy
    message = answer.get("message") if isinstance(answer, dict) else None
    return f"{message or refusal.reason} (HTTP {refusal.status})"


def _address(url: str) -> tuple[str, str | None, str | None]:
    """Split a URL into the URL without login, the user and the password."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise PenstockError(
            # Without the login.
            f"{url.rpartition('@')[2]!r} is not the address of a schema registry",
            where="registry",
            next='write it as "http://host:8081"; Apicurio serves this API below /apis/ccompat/v7',
        )
    plain = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])).rstrip("/")
    if parts.username is None:
        return plain, None, None
    return plain, unquote(parts.username), unquote(parts.password or "")


# The subject of a schema in a registry, and the frame of a record with the schema id.


def _by_topic(topic: str, side: Side, record: str) -> str:
    return f"{topic}-{side}"


def _by_record(topic: str, side: Side, record: str) -> str:
    return record


def _by_both(topic: str, side: Side, record: str) -> str:
    return f"{topic}-{record}"


SubjectNames: TypeAlias = Literal["topic", "record", "topic-record"]
"""Rules for the names of subjects; see `Subjects`."""
STRATEGIES: dict[str, Callable[[str, Side, str], str]] = {
    "topic": _by_topic,
    "record": _by_record,
    "topic-record": _by_both,
}


@dataclass(frozen=True)
class Subjects:
    """A registry and the rule for the names of subjects in it.

    The rules are "topic" (`<topic>-key`, `<topic>-value`), "record" (the name of the record's schema) and
    "topic-record": Confluent's TopicNameStrategy, RecordNameStrategy and TopicRecordNameStrategy.
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
        """Register the schema `text`, and return the record's bytes after its id; null stays null.

        If the topic differs from row to row, the subject is the name of the schema.
        """
        name = STRATEGIES[self.strategy if topic else "record"]
        subject = name(topic, side, schema.get("name") or topic or "penstock")
        frame = struct.pack(">bI", MAGIC, self.registry.id(subject, text, kind))
        return F.concat(F.lit(frame), encoded)
