"""The transforms of a configuration with their predicates, record by record: how tasks of sinks run them, and sources
those that have no form on columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from penstock.connect.records.record import ConnectRecord, NoValue
from penstock.connect.sinks.retries import Patient, Retries
from penstock.connect.transforms import conversions, fields, headers, predicates, routing, unwrap
from penstock.connect.transforms.plugin import TransformPlugin
from penstock.connect.transforms.python_classes import PythonClass, keeping
from penstock.connect.transforms.steps import Shapes, Step, Test

FAMILIES = (conversions, fields, headers, routing, unwrap)
TRANSFORMS: dict[str, TransformPlugin[Step]] = {kind.name: kind for family in FAMILIES for kind in family.CLASSES}
PREDICATES: dict[str, TransformPlugin[Any]] = {kind.name: kind for kind in predicates.CLASSES}


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
    shapes: Shapes | None = None
    """Of the records that it gets in a source."""

    def step(self) -> Step:
        change, test, wanted = self.change(), self.test(), not self.negate
        return change if test is None else lambda record: change(record) if test(record) is wanted else record

    def change(self) -> Step:
        """The transform without its predicate."""
        own = self.transform.own
        if own is None:
            return TRANSFORMS[self.transform.name].make(self.transform.values)
        return own.apply_method() if self.shapes is None else keeping(own.apply_method(), self.shapes)

    def test(self) -> Test | None:
        if self.predicate is None:
            return None
        test: Test = PREDICATES[self.predicate.name].make(self.predicate.values)
        return test


@dataclass(frozen=True)
class RecordChain:
    """Transforms in their order; tasks get it as it is, and start it."""

    transforms: Sequence[RecordTransform] = ()
    retries: Retries | None = None
    """How faults that can pass are tried again."""

    @property
    def chooses_topics(self) -> bool:
        """Whether records may get another topic than the one that they were read from."""
        return any(
            kind.own or kind.name.endswith("Router") or kind.values.get("route.by.field")
            for kind in (transform.transform for transform in self.transforms)
        )

    def start(self) -> Step:
        """The transforms as one step; its errors name the transform."""
        steps = [(transform, self._patient(transform.step())) for transform in self.transforms]

        def chain(record: ConnectRecord) -> ConnectRecord | None:
            for transform, step in steps:
                try:
                    changed = step(record)
                except NoValue as error:
                    raise NoValue(
                        f"the transform {transform.alias} ({transform.transform.name}) failed: {error}"
                    ) from None
                if changed is None:
                    return None
                record = changed
            return record

        return chain

    def _patient(self, step: Step) -> Step:
        return step if self.retries is None else Patient(step, self.retries)
