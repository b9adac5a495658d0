"""The records between the steps of a source's chain of transforms, as columns, and edits of their structs.

Before a step takes a struct apart, the struct becomes a column of the frame (`pinned`). Otherwise each field would
contain the whole expression of the record, and the expression would grow exponentially with the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import and_, or_

from pyspark.sql import Column, DataFrame, functions as F

from penstock.codec.connect_schema import Schema, nothing
from penstock.codec.typed_records import RecordPart, Side, TypedRecords
from penstock.connect.transforms.steps import KnownHeaders, Misfit, struct_schema
from penstock.errors import PenstockError

NO_HEADERS = "array<struct<key: string, value: binary>>"


@dataclass(frozen=True)
class State:
    """Like `TypedRecords`, with alternatives also for keys; `tombstones` says whether a remaining row may lack a value.

    `applies` is the condition of the step that gets this state; None for all rows.
    """

    frame: DataFrame
    topic: str | Column
    keys: tuple[RecordPart, ...]
    values: tuple[RecordPart, ...]
    headers: Column | None = None
    keep: Column | None = None
    tombstones: bool = True
    applies: Column | None = None
    known_headers: KnownHeaders = field(default_factory=KnownHeaders)

    def parts(self, side: Side) -> tuple[RecordPart, ...]:
        return self.keys if side == "key" else self.values

    def with_parts(self, side: Side, parts: Iterable[RecordPart]) -> State:
        merged = _merged(parts)
        return replace(self, keys=merged) if side == "key" else replace(self, values=merged)

    def pinned(self, side: Side) -> State:
        """The same records, with each key or value as a column of the frame."""
        if not self.parts(side):
            return self
        names = [f"penstock_part_{len(self.frame.columns) + i}" for i in range(len(self.parts(side)))]
        columns = {name: part.payload for name, part in zip(names, self.parts(side), strict=True)}
        pinned = [RecordPart(F.col(name), part.schema) for name, part in zip(names, self.parts(side), strict=True)]
        alternatives = tuple(pinned)
        held = replace(self, frame=self.frame.withColumns(columns))
        return replace(held, keys=alternatives) if side == "key" else replace(held, values=alternatives)

    def each(self, side: Side, change: Callable[[RecordPart], RecordPart]) -> State:
        """Change every key or value; null stays null."""
        held = self.pinned(side)
        return held.with_parts(side, map(change, held.parts(side)))

    def only(self, condition: Column) -> State:
        return replace(self, keep=condition if self.keep is None else self.keep & condition)

    def settled(self) -> State:
        """The same records without dropped ones, so that no later step fails because of them."""
        return self if self.keep is None else replace(self, frame=self.frame.where(self.keep), keep=None)

    def with_headers(self, added: Column) -> State:
        """Append `added`, an array of headers."""
        return replace(self, headers=added if self.headers is None else F.concat(self.headers, added))

    @property
    def valueless(self) -> Column:
        """Whether the row is a tombstone."""
        return reduce(and_, (part.payload.isNull() for part in self.values), F.lit(True))


Step = Callable[[State], State | None]
"""A transform; returns None if it drops all records."""


def opened(records: TypedRecords) -> State:
    keys = () if records.key is None else (records.key, *records.other_keys)
    return State(records.frame, records.topic, keys, records.values, records.headers, records.keep)


def closed(state: State, records: TypedRecords) -> TypedRecords:
    """The state as `TypedRecords`; `records` are those that the chain started with."""
    values = state.values or tuple(RecordPart(nothing(part.schema), part.schema) for part in records.values)
    key, others = (state.keys[0], state.keys[1:]) if state.keys else (None, ())
    return TypedRecords(state.frame, state.topic, key, values, state.headers, state.keep, others)


def topic_column(topic: str | Column) -> Column:
    return F.lit(topic) if isinstance(topic, str) else topic


def joined(holds: Column, yes: State | None, no: State) -> State:
    """`yes` where the condition holds, else `no`; `yes` was made from the frame of `no`."""
    if yes is None:
        return no.only(~holds)
    frame, tombstones = yes.frame, yes.tombstones or no.tombstones
    topic = yes.topic
    if topic is not no.topic and not (isinstance(topic, str) and topic == no.topic):
        topic = F.when(holds, topic_column(yes.topic)).otherwise(topic_column(no.topic))
    return State(
        frame,
        topic,
        _either(holds, yes.keys, no.keys),
        _either(holds, yes.values, no.values),
        _choice(holds, yes.headers, no.headers, F.array().cast(NO_HEADERS)),
        _choice(holds, yes.keep, no.keep, F.lit(True)),
        tombstones,
        known_headers=yes.known_headers.or_else(no.known_headers),
    )


def any_of(conditions: Sequence[Column]) -> Column:
    return reduce(or_, conditions, F.lit(False))


def _either(holds: Column, yes: tuple[RecordPart, ...], no: tuple[RecordPart, ...]) -> tuple[RecordPart, ...]:
    if yes is no:
        return yes
    gated = [RecordPart(F.when(holds, part.payload), part.schema) for part in yes]
    return _merged([*gated, *(RecordPart(F.when(~holds, part.payload), part.schema) for part in no)])


def _choice(holds: Column, yes: Column | None, no: Column | None, absent: Column) -> Column | None:
    if yes is no:
        return yes
    return F.when(holds, absent if yes is None else yes).otherwise(absent if no is None else no)


def _merged(parts: Iterable[RecordPart]) -> tuple[RecordPart, ...]:
    """Merge alternatives with the same schema."""
    merged: list[RecordPart] = []
    for part in parts:
        for i, other in enumerate(merged):
            if other.schema == part.schema:
                merged[i] = RecordPart(F.coalesce(other.payload, part.payload), part.schema)
                break
        else:
            merged.append(part)
    return tuple(merged)


def is_event(part: RecordPart) -> bool:
    return str(part.schema.get("name", "")).endswith(".Envelope")


# Takes structs apart into fields, and makes structs of fields, with their schemas.


def plain(schema: Schema) -> Schema:
    """The schema of a field without the field's name."""
    return {name: value for name, value in schema.items() if name != "field"}


def optional_text(optional: bool = True) -> Schema:
    return {"type": "string", "optional": optional}


def fields(part: RecordPart, purpose: str) -> dict[str, RecordPart]:
    """The fields of a struct by name, in order; raises PenstockError, at `purpose`, if it is not a struct."""
    if part.schema["type"] != "struct":
        raise PenstockError(
            f"only a struct has fields, and this is a single value of type {part.schema['type']}",
            where=purpose,
            next="put this transform before the transform that replaces the struct",
        )
    return {
        field["field"]: RecordPart(part.payload.getField(field["field"]), plain(field))
        for field in part.schema["fields"]
    }


def all_fields(state: State, side: Side) -> dict[str, RecordPart]:
    """The fields of all alternatives that are structs; of fields with the same name the first."""
    fields_by_name: dict[str, RecordPart] = {}
    for part in state.parts(side):
        if part.schema["type"] == "struct":
            fields_by_name = fields(part, "") | fields_by_name
    return fields_by_name


def rebuilt(part: RecordPart, members: Iterable[tuple[str, RecordPart]], *, optional: bool = False) -> RecordPart:
    """A struct of these fields that replaces `part`, with its name and version; null where `part` is null."""
    listed = list(members)
    try:
        schema = struct_schema(((name, member.schema) for name, member in listed), part.schema)
    except Misfit as error:
        where = f"the transforms of {part.schema.get('name', 'a record')}"
        raise PenstockError(str(error), where=where, next=error.next) from None
    payload = F.struct(*(member.payload.alias(name) for name, member in listed))
    return RecordPart(F.when(part.payload.isNotNull(), payload), {**schema, "optional": optional})


def each_field(part: RecordPart, purpose: str, change: Callable[[str, RecordPart], RecordPart]) -> RecordPart:
    """The struct with `change(name, field)` instead of each field."""
    changed = ((name, change(name, field)) for name, field in fields(part, purpose).items())
    return rebuilt(part, changed, optional=part.schema["optional"])


# Predicates.


@dataclass(frozen=True)
class ColumnTest:
    """A predicate with its options: a condition, or a bool for all records.

    `narrowed` returns what is known about records for which the predicate holds, or does not hold.
    """

    holds: Callable[[State], Column | bool]
    narrowed: Callable[[State, bool], State] = lambda state, holds: state
