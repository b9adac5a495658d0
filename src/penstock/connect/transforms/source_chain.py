"""A source's transforms: steps on columns where they have a form for them, and between them stages of record by record.

Unwrapping and the choice of topics are on columns, because they need no Python; `docs/decisions` has what that saves.
All others run as they do in a sink, and adjacent ones in one stage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from pyspark.sql import functions as F

from penstock.border.public import public
from penstock.codec.typed_records import Transform, TypedRecords
from penstock.connect.definition import Property, read_all
from penstock.connect.transforms import definitions as of_properties
from penstock.connect.transforms.definitions import OF_SOURCES, Config, chosen
from penstock.connect.transforms.dropped_fields import drops_by_header
from penstock.connect.transforms.fast import predicates, routing, unwrap
from penstock.connect.transforms.fast.state import Step, closed, opened
from penstock.connect.transforms.record_chain import RecordTransform
from penstock.connect.transforms.source_stage import stage
from penstock.connect.transforms.steps import Values
from penstock.errors import PenstockError

ON_COLUMNS: dict[str, Callable[[Values], Step]] = {**routing.STEPS, **unwrap.STEPS}


def definitions(config: Config) -> list[Property]:
    """The properties that a source's `transforms` and `predicates` add, with checks across them."""
    return of_properties.definitions(config, OF_SOURCES)


@public("connect.transforms.chain")
def chain(config: Config) -> list[Transform]:
    """The transforms of a configuration: the properties `transforms`, `predicates` and those of their aliases.

    Raises PenstockError for wrong properties. Applying the transforms raises PenstockError for records that do not fit.
    """
    if wrong := read_all(definitions(config), config)[1]:
        name, messages = next(iter(wrong.items()))
        raise PenstockError(messages[0], where=name, next="correct this property, see docs/connect-transforms.md")
    tolerant = (config.get("errors.tolerance") or "").strip().lower() == "all"
    steps = list(_steps(chosen(config, OF_SOURCES), tolerant))
    return [_together(steps)] if steps else []


def _steps(transforms: Iterator[RecordTransform], tolerant: bool) -> Iterator[Step]:
    for on_columns, some in groupby(transforms, _has_columns):
        if on_columns:
            yield from map(_on_columns, some)
        else:
            yield stage(tuple(some), tolerant=tolerant)


def _has_columns(transform: RecordTransform) -> bool:
    """Whether it runs on columns: fields that a record's header names can only be dropped record by record."""
    return transform.transform.name in ON_COLUMNS and not drops_by_header(transform.transform.values)


def _on_columns(transform: RecordTransform) -> Step:
    step = ON_COLUMNS[transform.transform.name](transform.transform.values)
    if transform.predicate is None:
        return step
    return predicates.where(
        predicates.TESTS[transform.predicate.name](transform.predicate.values), transform.negate, step
    )


def _together(steps: Sequence[Step]) -> Transform:
    """All steps as one transform, because `State` between steps has more than `TypedRecords`."""

    def transform(records: TypedRecords) -> TypedRecords:
        state = opened(records).settled()
        for step in steps:
            changed = step(state)
            if changed is None:
                return records.only(F.lit(False))
            state = changed.settled()
        return closed(state, records)

    return transform
