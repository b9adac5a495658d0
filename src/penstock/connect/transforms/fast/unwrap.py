"""`unwrap` on columns: ExtractNewRecordState (Debezium, ScyllaDB), and ScyllaFlattenColumns."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from pyspark.sql import Column, functions as F

from penstock.codec.typed_records import RecordPart
from penstock.connect.transforms.fast.state import (
    NO_HEADERS,
    State,
    Step,
    all_fields,
    any_of,
    each_field,
    fields,
    is_event,
    optional_text,
    plain,
    rebuilt,
    topic_column,
)
from penstock.connect.transforms.fast.times import header, text
from penstock.connect.transforms.plugin import DEBEZIUM, SCYLLA
from penstock.connect.transforms.steps import Misfit, Values
from penstock.connect.transforms.unwrap import DELETED, FieldReference, UnwrapSettings, require_fits, settings
from penstock.errors import PenstockError

WHERE = "add.fields or add.headers of ExtractNewRecordState"


def unwrapped(state: State, chosen: UnwrapSettings) -> State:
    """Replace all events by their rows; other records stay as they are."""
    held = state.pinned("value").pinned("key")
    held = replace(held, tombstones=state.tombstones)
    tombstone = held.valueless
    events = [part for part in held.values if is_event(part)]
    ranges = [event for event in events if _is_range(event)]
    events = [event for event in events if not _is_range(event)]
    for event in events:
        _require_fits(event, chosen)
    key = all_fields(held, "key")
    rows = held.with_parts("value", [part for part in held.values if not is_event(part)])
    for event in events:
        rows = rows.with_parts("value", [*rows.values, *_rows(event, chosen, key)])
    rows = _with_headers(rows, events, tombstone, chosen.headers)
    rows = _routed(rows, events, chosen, key)
    lost = [part.payload.isNotNull() for part in ranges] + [_rowless(event, chosen) for event in events]
    if not chosen.keep_tombstones:
        lost.append(tombstone)
    return replace(rows.only(~any_of(lost)), tombstones=chosen.empty or (chosen.keep_tombstones and held.tombstones))


def _require_fits(event: RecordPart, chosen: UnwrapSettings) -> None:
    try:
        require_fits(event.schema, chosen)
    except Misfit as error:
        where = f"the transform ExtractNewRecordState, {error.place}"
        raise PenstockError(str(error), where=where, next=error.next) from None


def _is_range(event: RecordPart) -> bool:
    return any(field["field"] == "range" for field in event.schema["fields"])


def _deletes(event: RecordPart) -> Column:
    return event.payload.getField("op") == "d"


def _rowless(event: RecordPart, chosen: UnwrapSettings) -> Column:
    """Whether an event gives no record: a write without an image, or a delete that is dropped."""
    envelope = fields(event, "")
    write = event.payload.isNotNull() & ~_deletes(event) & envelope["after"].payload.isNull()
    if chosen.rewrite or chosen.empty:
        return F.coalesce(write, F.lit(False))
    return F.coalesce(write | _deletes(event), F.lit(False))


def _rows(event: RecordPart, chosen: UnwrapSettings, key: dict[str, RecordPart]) -> Iterable[RecordPart]:
    """The row after a write; with `rewrite` also the row before a delete, with at least its key."""
    after = fields(event, "")["after"]
    after = RecordPart(F.when(~_deletes(event), after.payload), after.schema)
    rows = [rebuilt(after, [*fields(after, "").items(), *_mark(chosen, "false"), *members(event, chosen.fields)])]
    if chosen.rewrite:
        before = _before(event, key)
        there = RecordPart(F.when(_deletes(event), event.payload), fields(event, "")["before"].schema)
        rows.append(rebuilt(there, [*before.items(), *_mark(chosen, "true"), *members(event, chosen.fields)]))
    return rows


def _mark(chosen: UnwrapSettings, deleted: str) -> list[tuple[str, RecordPart]]:
    return [(DELETED, RecordPart(F.lit(deleted), optional_text()))] if chosen.rewrite else []


def _before(event: RecordPart, key: dict[str, RecordPart]) -> dict[str, RecordPart]:
    """The fields of the row before; the key columns have values even if nothing else is known."""
    envelope = fields(event, "")
    for name, member in envelope.items():
        if name not in ("before", "after", "source") and str(member.schema.get("name", "")).endswith(".Key"):
            key = fields(member, "") | key
    columns = fields(envelope["before"], "")
    return {
        name: RecordPart(F.coalesce(field.payload, key[name].payload), field.schema)
        if name in key and key[name].schema == field.schema
        else field
        for name, field in columns.items()
    }


def _with_headers(state: State, events: list[RecordPart], tombstone: Column, wanted: list[FieldReference]) -> State:
    if not wanted:
        return state
    added = F.array().cast(NO_HEADERS)
    for event in events:
        added = F.when(event.payload.isNotNull(), headers(event, wanted)).otherwise(added)
    operation = [header(each.name, F.lit("d")) for each in wanted if each.field == "op"]
    if operation:
        added = F.when(tombstone, F.array(*operation)).otherwise(added)
    return state.with_headers(added)


def _routed(state: State, events: list[RecordPart], chosen: UnwrapSettings, key: dict[str, RecordPart]) -> State:
    if not chosen.route or not events:
        return state
    topics = []
    for event in events:
        after, before = fields(fields(event, "")["after"], ""), _before(event, key)
        deleted = F.when(_deletes(event), before[chosen.route].payload)
        topics.append(F.coalesce(deleted, F.when(~_deletes(event), after[chosen.route].payload)))
    named = F.coalesce(*topics)
    topic = F.when(F.length(F.trim(named)) > 0, named).otherwise(topic_column(state.topic))
    return replace(state, topic=topic)


def members(event: RecordPart, wanted: list[FieldReference]) -> list[tuple[str, RecordPart]]:
    """The fields that the event has, as optional ones; a field that its struct lacks may be in the envelope."""
    present = []
    for each in wanted:
        place = _place(event, each)
        if place is None:
            continue
        optional = {name: value for name, value in {**place.schema, "optional": True}.items() if name != "default"}
        present.append((each.name, RecordPart(place.payload, plain(optional))))
    return present


def headers(event: RecordPart, wanted: list[FieldReference]) -> Column:
    """The fields that the event has, as an array of headers."""
    return F.array(*(header(name, text(part)) for name, part in members(event, wanted)))


def _place(event: RecordPart, wanted: FieldReference) -> RecordPart | None:
    envelope = fields(event, WHERE)
    if wanted.struct:
        inner = fields(envelope[wanted.struct], WHERE)
        if wanted.field in inner:
            return inner[wanted.field]
    return envelope.get(wanted.field)


# The steps.


def _extract(values: Values) -> Step:
    chosen = settings(values)
    return lambda state: unwrapped(state, chosen)


def _extract_scylla(values: Values) -> Step:
    if values["cdc.output.format"].lower() == "advanced":
        return _extract(values)
    chosen = settings(values)
    return lambda state: unwrapped(state, chosen).each("value", _without_cells)


def _without_cells(row: RecordPart) -> RecordPart:
    if row.schema["type"] != "struct" or is_event(row):
        return row
    return each_field(row, "", lambda name, field: _opened(field, ".Cell"))


def _flatten_columns(values: Values) -> Step:
    return lambda state: state.each("value", _flat)


def _flat(event: RecordPart) -> RecordPart:
    if event.schema["type"] != "struct":
        return event
    return each_field(event, "", lambda name, member: _flat_row(member) if name in ("before", "after") else member)


def _flat_row(row: RecordPart) -> RecordPart:
    return each_field(row, "the transform ScyllaFlattenColumns", lambda name, field: _opened(field, ""))


def _opened(field: RecordPart, name: str) -> RecordPart:
    """The value of a struct with `value` as its only field and a name that ends with `name`; else the field itself."""
    schema = field.schema
    if schema["type"] != "struct" or not str(schema.get("name", "")).endswith(name):
        return field
    if [inner["field"] for inner in schema["fields"]] != ["value"]:
        return field
    return RecordPart(field.payload.getField("value"), plain(schema["fields"][0]))


STEPS: dict[str, Callable[[Values], Step]] = {
    f"{DEBEZIUM}ExtractNewRecordState": _extract,
    f"{SCYLLA}ScyllaExtractNewRecordState": _extract_scylla,
    f"{SCYLLA}ScyllaFlattenColumns": _flatten_columns,
}
