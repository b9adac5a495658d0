"""The formats of records by name: "json", "avro", "protobuf", "json-schema", "csv"."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias, get_args

from penstock.border.public import public
from penstock.codec.avro import Avro
from penstock.codec.protobuf import Protobuf
from penstock.codec.registry import Registry, SubjectNames, Subjects
from penstock.codec.text_formats import Csv, Json, JsonSchema
from penstock.codec.typed_records import Codec
from penstock.errors import PenstockError

Format: TypeAlias = Literal["json", "avro", "protobuf", "json-schema", "csv"]
FORMATS: tuple[Format, ...] = get_args(Format)
REGISTERED: dict[str, Callable[[Subjects], Codec]] = {
    "avro": Avro,
    "protobuf": Protobuf,
    "json-schema": JsonSchema,
}
"""Formats whose schemas are in a registry."""


@public("kafka.codec")
def codec(
    format: Format, *, registry: Registry | str | None = None, subjects: SubjectNames = "topic", schemas: bool = False
) -> Codec:
    """Return the codec of a format: "json", "avro", "protobuf", "json-schema" or "csv".

    `registry` (the URL of a schema registry, or a `Registry`) is for "avro", "protobuf" and "json-schema", which need
    one. `subjects` is how subjects are named there: "topic" (`<topic>-key`, `<topic>-value`), "record" (the name of the
    record's schema) or "topic-record". `schemas` puts the Connect schema into each record of "json".

    Raises PenstockError if the format is unknown, lacks a registry, or does not use a given setting.
    """
    if format not in FORMATS:
        raise PenstockError(f"unknown format {format!r}", next=f"use {' or '.join(map(repr, FORMATS))}")
    if schemas and format != "json":
        raise PenstockError(f"schemas is for the format 'json', not {format!r}", next="leave it out")
    if format in REGISTERED:
        return REGISTERED[format](Subjects(_registry(format, registry), subjects))
    if registry is not None:
        raise PenstockError(
            f"the format {format!r} does not use a schema registry",
            next=f"leave registry= out, or use {' or '.join(map(repr, REGISTERED))}",
        )
    return Csv() if format == "csv" else Json(schemas)


def _registry(format: str, registry: Registry | str | None) -> Registry:
    if registry is None:
        raise PenstockError(
            f"the format {format!r} needs a schema registry",
            next='give registry="http://host:8081"; `penstock up --with registry` starts a registry',
        )
    return registry if isinstance(registry, Registry) else Registry(registry)
