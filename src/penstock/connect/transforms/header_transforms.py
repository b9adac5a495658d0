"""InsertHeader, HeaderFrom and DropHeaders."""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import Column, functions as F

from penstock.codec.typed_records import RecordPart, Side
from penstock.connect.transforms.conversions import header, text
from penstock.connect.transforms.state import (
    KAFKA,
    NO_HEADERS,
    State,
    Step,
    Values,
    fields,
    on_key_and_value,
    one_of,
    plugin,
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
    if len(values["fields"]) == len(values["headers"]):
        return None
    return "'fields' config must have the same number of elements as 'headers' config."


CLASSES = (
    plugin(f"{KAFKA}InsertHeader", _insert_header),
    plugin(f"{KAFKA}DropHeaders", _drop_headers, {"headers": some_names}),
    *on_key_and_value(
        "HeaderFrom",
        _header_from,
        {"fields": some_names, "headers": some_names, "operation": one_of("move", "copy")},
        _unequal,
    ),
)
