"""A class of Python as a step of a source: records become objects, and the result is columns of the same schemas.

A source knows the schemas of its records before it has one, and registers them. So a class may change values and
headers, and drop records, but it cannot change fields, their types, or the topic.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql import functions as F, types as st
from pyspark.sql.pandas.functions import arrow_udf

from penstock.codec.connect_schema import Schema, spark_type
from penstock.codec.problem import HEADERS
from penstock.connect.records.deserializers import HEADER
from penstock.connect.records.record import NOTHING, ConnectRecord, NoValue, Part, type_name
from penstock.connect.transforms.python_classes import Apply, PythonClass
from penstock.connect.transforms.state import State, Step, topic_column
from penstock.errors import PenstockError
from penstock.spark_runtime.arrow_types import to_arrow_schema

log = logging.getLogger(__name__)

NOWHERE = -1
"""The partition and the offset of records that Kafka does not have yet."""
Row = dict[str, Any]


def step_of(kind: PythonClass, *, tolerant: bool) -> Step:
    """The step of a class; `tolerant` leaves out the records for which it fails, which else end the query."""

    def step(state: State) -> State:
        rows = PythonRows(kind, tolerant, tuple(p.schema for p in state.keys), tuple(p.schema for p in state.values))
        parts = dict(zip(rows.schemas, (*state.keys, *state.values), strict=True))
        headers = F.lit(None) if state.headers is None else state.headers
        given = [topic_column(state.topic).alias("topic"), headers.cast(HEADERS).alias("headers")]
        given += [part.payload.alias(name) for name, part in parts.items()]
        changed: Any = arrow_udf(rows.changed, rows.type)  # type: ignore[call-overload]
        column = f"penstock_python_{len(state.frame.columns)}"
        # Once for each record, however many columns are made of the result.
        row = F.struct(*given)
        row = row if state.applies is None else F.when(state.applies, row)
        frame = state.frame.withColumn(column, changed.asNondeterministic()(row))
        made = [replace(part, payload=F.col(column).getField(name)) for name, part in parts.items()]
        return State(
            frame,
            state.topic,
            tuple(made[: len(state.keys)]),
            tuple(made[len(state.keys) :]),
            F.col(column).getField("headers"),
            state.keep,
        ).only(F.col(column).isNotNull())

    return step


@dataclass(frozen=True)
class PythonRows:
    """Changes the records of a batch: structs of a topic, headers, and keys and values of these schemas."""

    kind: PythonClass
    tolerant: bool
    keys: tuple[Schema, ...]
    values: tuple[Schema, ...]

    @property
    def schemas(self) -> dict[str, Schema]:
        """The schemas by column."""
        keys = {f"key{number}": schema for number, schema in enumerate(self.keys)}
        return keys | {f"value{number}": schema for number, schema in enumerate(self.values)}

    @property
    def type(self) -> st.StructType:
        """What Spark gets back; null for a record that is dropped."""
        made = st.StructType().add("headers", HEADERS)
        for name, schema in self.schemas.items():
            made.add(name, spark_type(schema))
        return made

    @cached_property
    def _arrow(self) -> pa.DataType:
        return pa.struct([pa.field(one.name, one.type) for one in to_arrow_schema(self.type, timezone="UTC")])

    def changed(self, rows: pa.Array) -> pa.Array:
        """The changed records; null stays null. Raises PenstockError for one that is not left out."""
        apply, given = self.kind.made(), rows.to_pylist()
        made = [None if row is None else self._change(apply, row) for row in given]
        try:
            return pa.array(made, self._arrow)
        except (pa.ArrowException, OverflowError, TypeError, ValueError):
            kept = [row and self._fitting(row, old["topic"]) for row, old in zip(made, given, strict=True)]
            return pa.array(kept, self._arrow)

    def _change(self, apply: Apply, row: Row) -> Row | None:
        record = self._record(row)
        try:
            changed = apply(record)
            return None if changed is None else self._row(record, changed, row)
        except NoValue as error:
            self._leave_out(str(error), row["topic"])
            return None

    def _fitting(self, row: Row, topic: str) -> Row | None:
        """The row if its values have the types of its schemas."""
        try:
            pa.array([row], self._arrow)
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            self._leave_out(f"its values do not fit its schema: {error}", topic)
            return None
        return row

    def _leave_out(self, why: str, topic: str) -> None:
        if not self.tolerant:
            raise PenstockError(
                f"a record cannot be transformed by {self.kind.name}: {why}",
                where=f"a record for topic {topic}",
                next="correct the class; or set errors.tolerance=all to leave such records out",
            )
        log.warning("left out a record for %s: %s: %s", topic, self.kind.name, why)

    def _record(self, row: Row) -> ConnectRecord:
        headers = tuple((one["key"], HEADER(one["value"])) for one in row["headers"] or ())
        key, value = self._part(row, "key", self.keys), self._part(row, "value", self.values)
        return ConnectRecord(row["topic"], NOWHERE, NOWHERE, None, key, value, headers)

    def _part(self, row: Row, side: str, schemas: Sequence[Schema]) -> Part:
        """The alternative that the record has."""
        given = ((schema, row[f"{side}{number}"]) for number, schema in enumerate(schemas))
        return next((Part(schema, _read(schema, value)) for schema, value in given if value is not None), NOTHING)

    def _row(self, old: ConnectRecord, new: ConnectRecord, row: Row) -> Row:
        if new.topic != old.topic:
            raise NoValue("in a source a class cannot change the topic: use RegexRouter")
        bytes_of = {id(part): one["value"] for (_, part), one in zip(old.headers, row["headers"] or (), strict=True)}
        headers = [
            {"key": name, "value": bytes_of[id(part)] if id(part) in bytes_of else _header(part.value)}
            for name, part in new.headers
        ]
        return {
            "headers": headers,
            **self._side("key", self.keys, new.key),
            **self._side("value", self.values, new.value),
        }

    def _side(self, side: str, schemas: Sequence[Schema], part: Part) -> Row:
        if part.value is None:
            return {}
        place = next((number for number, schema in enumerate(schemas) if part.schema == schema), None)
        if place is None:
            raise NoValue(f"in a source a class cannot change the schema of a {side}")
        return {f"{side}{place}": _stored(schemas[place], part.value)}


def _read(schema: Schema, value: Any) -> Any:
    """The value as a record has it, of what Arrow has: its maps are lists of pairs."""
    if value is None:
        return None
    if schema["type"] == "struct":
        return {one["field"]: _read(one, value[one["field"]]) for one in schema["fields"]}
    if schema["type"] == "array":
        return [_read(schema["items"], one) for one in value]
    if schema["type"] == "map":
        return {_read(schema["keys"], key): _read(schema["values"], one) for key, one in value}
    return value


def _stored(schema: Schema, value: Any) -> Any:
    """The value as Arrow takes it; raises NoValue."""
    kind = {"struct": dict, "map": dict, "array": list}.get(schema["type"])
    if value is None or kind is None:
        return value
    if not isinstance(value, kind):
        raise NoValue(f"its {schema['type']} is {type_name(value)}")
    if schema["type"] == "array":
        return [_stored(schema["items"], one) for one in value]
    if schema["type"] == "map":
        return [(_stored(schema["keys"], key), _stored(schema["values"], one)) for key, one in value.items()]
    fields = {one["field"]: one for one in schema["fields"]}
    if unknown := next((name for name in value if name not in fields), None):
        raise NoValue(f"in a source a class cannot add a field, such as {unknown}")
    return {name: _stored(fields[name], one) for name, one in value.items()}


def _header(value: Any) -> bytes | None:
    """A header's bytes, as SimpleHeaderConverter writes them."""
    if value is None or isinstance(value, bytes):
        return value
    return (value if isinstance(value, str) else json.dumps(value, default=str)).encode()
