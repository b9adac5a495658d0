"""A sink's transforms with their predicates, as its tasks run them: record by record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from penstock.codec.typed_records import Side
from penstock.connect.record_transforms import (
    record_conversions,
    record_fields,
    record_routing,
    record_unwrap,
)
from penstock.connect.record_transforms.record_steps import Step, Values
from penstock.connect.records.record import ConnectRecord, NoValue
from penstock.connect.sinks.retries import Patient, Retries
from penstock.connect.transforms.python_classes import PythonClass
from penstock.connect.transforms.state import DEBEZIUM, KAFKA
from penstock.connect.transforms.unwrap import SCYLLA

SIDES: tuple[Side, ...] = ("key", "value")
TRANSFORMS: dict[str, Callable[[Values], Step]] = {
    **{
        f"{KAFKA}{name}${side.capitalize()}": partial(make, side)
        for name, make in (
            ("Cast", record_conversions.cast),
            ("TimestampConverter", record_conversions.timestamp_converter),
            ("InsertField", record_fields.insert_field),
            ("ReplaceField", record_fields.replace_field),
            ("MaskField", record_fields.mask_field),
            ("SetSchemaMetadata", record_fields.set_schema_metadata),
            ("ExtractField", record_fields.extract_field),
            ("HoistField", record_fields.hoist_field),
            ("Flatten", record_fields.flatten),
            ("HeaderFrom", record_routing.header_from),
        )
        for side in SIDES
    },
    f"{KAFKA}ValueToKey": record_fields.value_to_key,
    f"{KAFKA}InsertHeader": record_routing.insert_header,
    f"{KAFKA}DropHeaders": record_routing.drop_headers,
    f"{KAFKA}RegexRouter": record_routing.regex_router,
    f"{KAFKA}TimestampRouter": record_routing.timestamp_router,
    f"{KAFKA}Filter": record_routing.drop,
    f"{DEBEZIUM}ByLogicalTableRouter": record_routing.by_logical_table_router,
    f"{DEBEZIUM}ExtractNewRecordState": record_unwrap.extract_new_record_state,
    f"{SCYLLA}ScyllaExtractNewRecordState": record_unwrap.scylla_extract_new_record_state,
    f"{SCYLLA}ScyllaFlattenColumns": record_unwrap.scylla_flatten_columns,
}
"""What makes the steps of each class, of its options' values."""
PREDICATES: dict[str, Callable[[Values], record_routing.Test]] = {
    f"{KAFKA}predicates.TopicNameMatches": record_routing.topic_name_matches,
    f"{KAFKA}predicates.HasHeaderKey": record_routing.has_header_key,
    f"{KAFKA}predicates.RecordIsTombstone": record_routing.record_is_tombstone,
}


class OfClass(NamedTuple):
    """A class, and the values of its options; `own` is a class of Python, which is loaded where records are changed."""

    name: str
    values: Mapping[str, Any]
    own: PythonClass | None = None


class RecordTransform(NamedTuple):
    """A transform of a configuration, for the records that its predicate selects."""

    alias: str
    transform: OfClass
    predicate: OfClass | None = None
    negate: bool = False

    def step(self) -> Step:
        own = self.transform.own
        change = TRANSFORMS[self.transform.name](self.transform.values) if own is None else own.made()
        if self.predicate is None:
            return change
        test, wanted = PREDICATES[self.predicate.name](self.predicate.values), not self.negate
        return lambda record: change(record) if test(record) is wanted else record


@dataclass(frozen=True)
class RecordChain:
    """The transforms of a sink, in their order; tasks get it as it is, and start it."""

    transforms: Sequence[RecordTransform] = ()
    retries: Retries | None = None
    """How faults that can pass are tried again."""

    @property
    def chooses_topics(self) -> bool:
        """Whether records may get another topic than the one that they were read from."""
        return any(
            one.transform.own or one.transform.name.endswith("Router") or one.transform.values.get("route.by.field")
            for one in self.transforms
        )

    def start(self) -> Step:
        """The transforms as one step; its errors name the transform."""
        steps = [(one, self._patient(one.step())) for one in self.transforms]

        def chain(record: ConnectRecord) -> ConnectRecord | None:
            for one, step in steps:
                try:
                    changed = step(record)
                except NoValue as error:
                    raise NoValue(f"the transform {one.alias} ({one.transform.name}) failed: {error}") from None
                if changed is None:
                    return None
                record = changed
            return record

        return chain

    def _patient(self, step: Step) -> Step:
        return step if self.retries is None else Patient(step, self.retries)
