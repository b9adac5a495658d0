"""InsertHeader, HeaderFrom and DropHeaders."""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import Column, functions as F

from penstock.codec.typed_records import RecordPart, Side
from penstock.connect.definition import REQUIRED, Property
from penstock.connect.transforms.conversions import header, text
from penstock.connect.transforms.state import (
    DEFAULTS,
    KAFKA,
    NO_HEADERS,
    State,
    Step,
    Transformation,
    Values,
    fields,
    on_key_and_value,
    one_of,
    rebuilt,
    some_names,
)
from penstock.errors import PenstockError


def _insert_header(values: Values) -> Step:
    added = F.array(header(values["header"], F.lit(values["value.literal"])))
    return lambda state: state.with_headers(added)


def _drop_headers(values: Values) -> Step:
    def apply(state: State) -> State:
        if state.headers is None:
            return state
        return replace(
            state, headers=F.filter(state.headers, lambda header: ~header.getField("key").isin(values["headers"]))
        )

    return apply


def _header_from(side: Side, values: Values) -> Step:
    names = list(zip(values["fields"], values["headers"], strict=True))

    def apply(state: State) -> State:
        held = state.pinned(side)
        if not held.parts(side):
            return state
        made = [(part.payload.isNotNull(), _made_from(part, names)) for part in held.parts(side)]
        added = F.array().cast(NO_HEADERS)
        for there, headers in made:
            added = F.when(there, headers).otherwise(added)
        held = held.with_headers(added)
        if values["operation"] == "copy":
            return held
        return held.with_parts(side, [_without(part, values["fields"]) for part in held.parts(side)])

    return apply


def _made_from(part: RecordPart, names: list[tuple[str, str]]) -> Column:
    found = fields(part, "the transform HeaderFrom")
    missing = [field for field, _ in names if field not in found]
    if missing:
        raise PenstockError(
            f"the record has no field {', '.join(missing)}",
            where="the transform HeaderFrom",
            next=f"use fields that it has: {', '.join(found)}",
        )
    return F.array(*(header(name, text(found[field])) for field, name in names))


def _without(part: RecordPart, moved: list[str]) -> RecordPart:
    found = fields(part, "the transform HeaderFrom")
    return rebuilt(part, ((name, field) for name, field in found.items() if name not in moved))


def _unequal(values: Values) -> str | None:
    if len(values["fields"] or []) == len(values["headers"] or []):
        return None
    return "'fields' config must have the same number of elements as 'headers' config."


CLASSES = (
    Transformation(
        f"{KAFKA}InsertHeader",
        (
            Property("header", "STRING", REQUIRED, "The header's name.", None, "HIGH"),
            Property("value.literal", "STRING", REQUIRED, "The header's value, written unchanged.", None, "HIGH"),
        ),
        _insert_header,
    ),
    Transformation(
        f"{KAFKA}DropHeaders",
        (Property("headers", "LIST", REQUIRED, "Names of headers to remove.", some_names, "HIGH"),),
        _drop_headers,
    ),
    *on_key_and_value(
        f"{KAFKA}HeaderFrom",
        (
            Property("fields", "LIST", REQUIRED, "Fields whose values become headers.", some_names, "HIGH"),
            Property(
                "headers", "LIST", REQUIRED, "The headers' names, in the order of the fields.", some_names, "HIGH"
            ),
            Property(
                "operation",
                "STRING",
                REQUIRED,
                "move removes the fields, copy keeps them.",
                one_of("move", "copy"),
                "HIGH",
            ),
            DEFAULTS,
        ),
        _header_from,
        _unequal,
    ),
)
