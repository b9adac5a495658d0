"""Members of an event that ExtractNewRecordState adds to the row or to the headers: `op`, `source.ts_ms:written_at`."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, functions as F

from penstock.codec.typed_records import RecordPart
from penstock.connect.transforms.header_text import header, text
from penstock.connect.transforms.struct_edits import fields, plain
from penstock.errors import PenstockError

WHERE = "add.fields or add.headers of ExtractNewRecordState"
_TRANSACTION = ("id", "data_collection_order", "total_order")
_ENVELOPE = ("op", "ts_ms", "ts_us", "ts_ns")


@dataclass(frozen=True)
class Reference:
    """A member: the envelope's own if `struct` is empty."""

    struct: str
    field: str
    name: str


def references(prefix: str, items: list[str]) -> list[Reference]:
    return [_reference(prefix, item) for item in items if item]


def problem(items: list[str]) -> str | None:
    """What is wrong with a list of references, or None."""
    wrong = [item for item in items if item.count(":") > 1 or item.startswith((":", ".")) or item.endswith((":", "."))]
    return f"Unexpected field name: {wrong[0]}" if wrong else None


def members(event: RecordPart, wanted: list[Reference]) -> list[tuple[str, RecordPart]]:
    """Those that the event has, each optional; one that is not in its struct may stand in the envelope."""
    found = []
    for each in wanted:
        place = _place(event, each)
        if place is None:
            continue
        optional = {name: value for name, value in {**place.schema, "optional": True}.items() if name != "default"}
        found.append((each.name, RecordPart(place.payload, plain(optional))))
    return found


def headers(event: RecordPart, wanted: list[Reference]) -> Column:
    """Those that the event has, as an array of headers."""
    return F.array(*(header(name, text(part)) for name, part in members(event, wanted)))


def _reference(prefix: str, item: str) -> Reference:
    path, _, name = item.partition(":")
    struct, dot, field = path.partition(".")
    if dot:
        return Reference(struct, field, prefix + (name or f"{struct}_{field}"))
    place = "transaction" if path in _TRANSACTION else "" if path in _ENVELOPE else "source"
    return Reference(place, path, prefix + (name or path))


def _place(event: RecordPart, wanted: Reference) -> RecordPart | None:
    envelope = fields(event, WHERE)
    if wanted.struct:
        if wanted.struct not in envelope:
            raise PenstockError(
                f"an event has no member {wanted.struct!r}",
                where=f"{WHERE}: {wanted.struct}.{wanted.field}",
                next=f"use one of {', '.join(envelope)}",
            )
        inner = fields(envelope[wanted.struct], WHERE)
        if wanted.field in inner:
            return inner[wanted.field]
    return envelope.get(wanted.field)
