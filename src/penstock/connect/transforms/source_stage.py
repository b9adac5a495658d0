"""A source's stage of transforms that work record by record: Arrow batches become records, and records Arrow batches.

A source registers the schemas of its records before it has one. So the stage is planned first: each transform says what
it makes of the schemas that records can have by then (`steps.Shapes`), which gives the types of the stage's columns.
Only the parts that its transforms read come to Python, and only those that they change go back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql import functions as F, types as st
from pyspark.sql.pandas.functions import arrow_udf

from penstock.codec.connect_schema import Schema, spark_type
from penstock.codec.problem import HEADERS as HEADERS_TYPE
from penstock.codec.typed_records import RecordPart, Side
from penstock.connect.records.arrow_values import stored, values_of
from penstock.connect.records.deserializers import HEADER
from penstock.connect.records.record import INTEGERS, NOTHING, NOWHERE, ConnectRecord, NoValue, Part
from penstock.connect.transforms.conversions import header_text
from penstock.connect.transforms.dropped_fields import drops_by_header
from penstock.connect.transforms.fast.state import State, Step as ColumnStep, topic_column
from penstock.connect.transforms.plugin import SIDES
from penstock.connect.transforms.record_chain import RecordChain, RecordTransform
from penstock.connect.transforms.steps import (
    HEADERS,
    KEY,
    TOPIC,
    VALUE,
    Misfit,
    PlannedStep,
    Shapes,
    Step,
    is_optional,
    part_of,
)
from penstock.errors import PenstockError
from penstock.spark_runtime.arrow_types import to_arrow_schema

log = logging.getLogger(__name__)

Headers = tuple[tuple[str, Part], ...]
RawHeaders = list[dict[str, Any]] | None
"""The headers of a record as Kafka has them."""
ALL = frozenset((KEY, VALUE, HEADERS))
UNFIT = (pa.ArrowException, OverflowError, TypeError, ValueError)


def stage(transforms: Sequence[RecordTransform], *, tolerant: bool) -> ColumnStep:
    """These transforms as one step of a source; `tolerant` leaves out the records for which one fails.

    Else such a record ends the query.
    """

    def step(state: State) -> State:
        planned = plan(transforms, shapes_of(state), tolerant=tolerant)
        return state if planned is None else _applied(planned, state)

    return step


def shapes_of(state: State) -> Shapes:
    topic = state.topic if isinstance(state.topic, str) else None
    keys, values = (tuple(part.schema for part in state.parts(side)) for side in SIDES)
    return Shapes(topic, keys, values, state.tombstones, state.headers is not None, state.known_headers)


def _applied(planned: RecordStage, state: State) -> State:
    read, written = planned.reads, planned.writes
    columns = [topic_column(state.topic).alias(TOPIC)] if planned.before.topic is None else []
    if HEADERS in read:
        headers = F.lit(None) if state.headers is None else state.headers
        columns.append(headers.cast(HEADERS_TYPE).alias(HEADERS))
    for side in SIDES:
        if side in read:
            names = planned.columns(side, planned.before)
            columns += [part.payload.alias(name) for name, part in zip(names, state.parts(side), strict=True)]
    changed: Any = arrow_udf(planned.changed, planned.type)  # type: ignore[call-overload]
    name = f"penstock_stage_{len(state.frame.columns)}"
    # Once for each record, however many columns are taken from the result.
    frame = state.frame.withColumn(name, changed.asNondeterministic()(F.struct(*columns)))
    after = planned.after
    changed_state = replace(state, frame=frame, tombstones=after.tombstones, known_headers=after.known_headers)
    for side in SIDES:
        if side in written:
            of_side = planned.columns(side, planned.after)
            changed_state = changed_state.with_parts(
                side, [RecordPart(F.col(name).getField(column), schema) for column, schema in of_side.items()]
            )
    if HEADERS in written:
        changed_state = replace(changed_state, headers=F.col(name).getField(HEADERS))
    if TOPIC in written:
        changed_state = replace(changed_state, topic=F.col(name).getField(TOPIC))
    return changed_state.only(F.col(name).isNotNull())


def plan(transforms: Sequence[RecordTransform], before: Shapes, *, tolerant: bool) -> RecordStage | None:
    """What the transforms make of records of these shapes; None if none of them is for any of these records.

    Raises PenstockError for a transform that does not fit them.
    """
    shapes, chain = before, []
    reads: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()
    for transform in transforms:
        test = transform.test()
        known = None if test is None else test.known(shapes)
        if known is transform.negate and test is not None:
            continue  # It is for none of the records.
        if known is not None:
            transform, test = transform._replace(predicate=None), None
        step = _Own() if transform.transform.own else transform.change()
        assert isinstance(step, PlannedStep), transform.transform.name
        chain.append(transform._replace(shapes=shapes))
        reads |= step.reads | (frozenset() if test is None else test.reads)
        writes |= step.writes
        if test is None:
            shapes = _planned(transform, step, shapes)
        else:
            rest = test.narrowed(shapes, transform.negate)
            shapes = _planned(transform, step, test.narrowed(shapes, not transform.negate)).or_else(rest)
    # What only some of the records lose must be read as well.
    return RecordStage(RecordChain(tuple(chain)), before, shapes, reads | writes, writes, tolerant) if chain else None


def _planned(transform: RecordTransform, step: PlannedStep, shapes: Shapes) -> Shapes:
    try:
        return step.planned(shapes)
    except NoValue as error:
        name = transform.transform.name.rpartition(".")[2].partition("$")[0]
        place, step_on = (error.place, error.next) if isinstance(error, Misfit) else ("", "")
        raise PenstockError(
            str(error),
            where=f"transforms.{transform.alias}: the transform {name}{', ' if place else ''}{place}",
            next=step_on or "correct the options of this transform, see docs/connect-transforms.md",
        ) from None


class _Own:
    """The plan of a class of Python, which can change all parts, but no schemas (`python_classes.keeping`)."""

    reads = writes = ALL

    def __call__(self, record: ConnectRecord) -> ConnectRecord:
        return record

    def planned(self, shapes: Shapes) -> Shapes:
        return replace(shapes, headers=True, tombstones=True)


@dataclass(frozen=True)
class RecordStage:
    """Changes the records of a batch: structs of the parts that `chain` reads to structs of those that it writes.

    `before` and `after` are the shapes of records before and after it.
    """

    chain: RecordChain
    before: Shapes
    after: Shapes
    reads: frozenset[str]
    writes: frozenset[str]
    tolerant: bool

    def columns(self, side: Side, shapes: Shapes) -> dict[str, Schema]:
        """The schemas of keys or values by column: a column for each that they may have."""
        return {f"{side}{number}": schema for number, schema in enumerate(shapes.of(side))}

    @property
    def type(self) -> st.StructType:
        """What Spark gets back; null for a record that is dropped."""
        struct = st.StructType()
        for name, schema in self._written.items():
            struct.add(name, spark_type(schema))
        if TOPIC in self.writes:
            struct.add(TOPIC, st.StringType())
        return struct.add(HEADERS, HEADERS_TYPE) if HEADERS in self.writes else struct

    @cached_property
    def _written(self) -> dict[str, Schema]:
        sides = (self.columns(side, self.after) for side in SIDES if side in self.writes)
        return {name: schema for columns in sides for name, schema in columns.items()}

    @cached_property
    def fields(self) -> list[pa.Field]:
        return [pa.field(field.name, field.type) for field in to_arrow_schema(self.type, timezone="UTC")]

    @cached_property
    def arrow(self) -> dict[str, pa.DataType]:
        """The types of its columns."""
        return {field.name: field.type for field in self.fields}

    @property
    def names(self) -> str:
        """Its transforms, for messages."""
        return ", ".join(f"{transform.alias} ({transform.transform.name})" for transform in self.chain.transforms)

    @cached_property
    def _step(self) -> Step:
        return self.chain.start()

    @cached_property
    def _reads_headers(self) -> bool:
        """Whether a transform looks at the values of headers: a class of Python, or one whose header names fields."""
        return any(
            kind.own or drops_by_header(kind.values) for kind in (each.transform for each in self.chain.transforms)
        )

    def changed(self, rows: pa.Array) -> pa.Array:
        """The changed records, null for those that are dropped. Raises PenstockError for one that is not left out."""
        headers = _column(rows, HEADERS).to_pylist() if HEADERS in self.reads else []
        records = self._records(rows, headers)
        return _Batch(self, headers, records, [self._change(record) for record in records]).array()

    def _change(self, record: ConnectRecord) -> ConnectRecord | None:
        try:
            return self._step(record)
        except NoValue as error:
            self.leave_out(str(error), record.topic)
            return None

    def leave_out(self, why: str, topic: str) -> None:
        if not self.tolerant:
            raise PenstockError(
                f"a record cannot be transformed: {why}",
                where=f"a record for topic {topic}",
                next="correct the transform; or set errors.tolerance=all to leave such records out",
            )
        log.warning("left out a record for %s: %s", topic, why)

    def _records(self, rows: pa.StructArray, raw_headers: Sequence[RawHeaders]) -> list[ConnectRecord]:
        size, topic = len(rows), self.before.topic
        topics = _column(rows, TOPIC).to_pylist() if topic is None else [topic] * size
        headers = map(self._headers, raw_headers) if raw_headers else [()] * size
        return [
            ConnectRecord(topic, NOWHERE, NOWHERE, None, key, value, some)
            for topic, key, value, some in zip(
                topics, self._parts(rows, KEY), self._parts(rows, VALUE), headers, strict=True
            )
        ]

    def _parts(self, rows: pa.StructArray, side: Side) -> list[Part]:
        """The keys or values: of the alternatives, the one that a record has."""
        parts = [NOTHING] * len(rows)
        for name, schema in self.columns(side, self.before).items() if side in self.reads else ():
            values = values_of(schema, _column(rows, name))
            parts = [part if value is None else Part(schema, value) for part, value in zip(parts, values, strict=True)]
        return parts

    def _headers(self, raw: RawHeaders) -> Headers:
        # Kafka's transforms add headers, and drop them by name.
        read = HEADER if self._reads_headers else _bytes
        return tuple((header["key"], read(header["value"])) for header in raw or ())


def _column(rows: pa.StructArray, name: str) -> pa.Array:
    return rows.field(rows.type.get_field_index(name))


def _bytes(data: bytes | None) -> Part:
    return Part(None, data)


@dataclass(frozen=True)
class _Batch:
    """The records of a batch before and after a stage; `changed` has None for those that are dropped."""

    stage: RecordStage
    headers: Sequence[RawHeaders]
    records: list[ConnectRecord]
    changed: list[ConnectRecord | None]

    def array(self) -> pa.StructArray:
        columns = {name: self._column(name, values) for name, values in self._values().items()}
        dropped = pa.array([record is None for record in self.changed])
        return pa.StructArray.from_arrays(list(columns.values()), fields=self.stage.fields, mask=dropped)

    def _values(self) -> dict[str, list[Any]]:
        """The values of each column."""
        columns: dict[str, list[Any]] = {}
        for side in SIDES:
            if side in self.stage.writes:
                columns |= self._of_side(side)
        if TOPIC in self.stage.writes:
            columns[TOPIC] = [None if record is None else record.topic for record in self.changed]
        if HEADERS in self.stage.writes:
            columns[HEADERS] = [
                None if new is None else _stored_headers(raw, old.headers, new.headers)
                for raw, old, new in zip(self.headers, self.records, self.changed, strict=True)
            ]
        return columns

    def _of_side(self, side: Side) -> dict[str, list[Any]]:
        alternatives = self.stage.columns(side, self.stage.after)
        columns: dict[str, list[Any]] = {name: [None] * len(self.changed) for name in alternatives}
        # Each alternative's column and what makes its values, by the schema's id: records share the object.
        known: dict[int, tuple[Schema, list[Any], Callable[[Any], Any] | None]] = {}
        for row, record in enumerate(self.changed):
            if record is None or (part := part_of(record, side)).value is None:
                continue
            entry = known.get(id(part.schema)) if part.schema is not None else None
            if entry is None:
                name = _column_of(alternatives, part)
                if name is None:
                    self._leave_out(row, f"its {side} has no schema of this source; see RecordIsTombstone")
                    continue
                schema = alternatives[name]
                entry = schema if part.schema is None else part.schema, columns[name], stored(schema)
                known[id(part.schema)] = entry
            _, column, change = entry
            column[row] = part.value if change is None else change(part.value)
        return columns

    def _column(self, name: str, values: list[Any]) -> pa.Array:
        kind = self.stage.arrow[name]
        try:
            return pa.array(values, kind)
        except UNFIT:
            return pa.array([self._fitting(row, value, kind) for row, value in enumerate(values)], kind)

    def _fitting(self, row: int, value: Any, kind: pa.DataType) -> Any:
        """The value if it has the type of its schema."""
        try:
            pa.array([value], kind)
        except UNFIT as error:
            self._leave_out(row, f"its values do not fit its schema: {error}")
            return None
        return value

    def _leave_out(self, row: int, why: str) -> None:
        self.stage.leave_out(f"after {self.stage.names}: {why}", self.records[row].topic)
        self.changed[row] = None


def _column_of(alternatives: dict[str, Schema], part: Part) -> str | None:
    """The column of a value's schema; of a value without one, the first that has room for it."""
    if part.schema is None:
        return next((name for name, schema in alternatives.items() if has_room(schema, part.value)), None)
    return next((name for name, schema in alternatives.items() if schema == part.schema), None)


def has_room(schema: Schema, value: Any) -> bool:
    """Whether a value without a schema is one of this schema."""
    kind = schema["type"]
    if value is None:
        return is_optional(schema)
    if kind != "struct":
        return isinstance(value, _KINDS[kind])
    fields = {field["field"]: field for field in schema["fields"]}
    if not isinstance(value, dict) or not value.keys() <= fields.keys():
        return False
    return all(has_room(own, value.get(name)) for name, own in fields.items())


_KINDS: dict[str, type] = {
    **dict.fromkeys(INTEGERS, int),
    **{"float": float, "double": float, "boolean": bool, "string": str, "bytes": bytes, "array": list, "map": dict},
}


def _stored_headers(raw: RawHeaders, old: Headers, new: Headers) -> list[dict[str, Any]]:
    """The headers as Kafka has them: those that a record had already with their own bytes."""
    bytes_of = {id(part): header["value"] for (_, part), header in zip(old, raw or (), strict=True)}
    return [
        {"key": name, "value": bytes_of[id(part)] if id(part) in bytes_of else _header_bytes(part)}
        for name, part in new
    ]


def _header_bytes(part: Part) -> bytes | None:
    return part.value if part.schema is None and isinstance(part.value, bytes) else header_text(part)
