"""The properties `transforms` and `predicates` of a connector: the known classes, their options, and the chain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from pyspark.sql import functions as F

import penstock
from penstock.border.public import public
from penstock.codec.typed_records import Transform, TypedRecords
from penstock.connect.definition import REQUIRED, Property, aliases, full_name, listed, read_all
from penstock.connect.transforms import (
    conversions,
    header_transforms,
    predicates,
    python_classes,
    struct_fields,
    topic_routing,
    unwrap,
)
from penstock.connect.transforms.python_step import step_of
from penstock.connect.transforms.state import Step, TransformPlugin, closed, opened
from penstock.errors import PenstockError

Config = Mapping[str, str | None]
Kinds = Mapping[str, TransformPlugin[Any]]


@dataclass(frozen=True)
class Classes:
    """The classes of transforms and of predicates that a connector may use, by name."""

    transforms: Kinds
    predicates: Kinds


OF_SOURCES = Classes(
    {
        kind.name: kind
        for family in (conversions, struct_fields, header_transforms, topic_routing, unwrap)
        for kind in family.CLASSES
    },
    {kind.name: kind for kind in predicates.CLASSES},
)
CLASSES: tuple[dict[str, str], ...] = tuple(
    {"class": name, "type": kind, "version": penstock.__version__}
    for kind, classes in (("transformation", OF_SOURCES.transforms), ("predicate", OF_SOURCES.predicates))
    for name in sorted(classes)
)
"""Class, type and version, as Connect's REST API lists its plugins."""


def of_sources(config: Config) -> Classes:
    """The classes that a source's configuration may use: with those of Python that it names."""
    tolerant = (config.get("errors.tolerance") or "").strip().lower() == "all"
    own = python_classes.classes(config, lambda kind: step_of(kind, tolerant=tolerant))
    return Classes({**OF_SOURCES.transforms, **own}, OF_SOURCES.predicates) if own else OF_SOURCES


def definitions(config: Config, classes: Classes | None = None) -> list[Property]:
    """The properties that a configuration's `transforms` and `predicates` add, with checks across them.

    `classes` are those that it may use, by default a source's.
    """
    classes = classes or of_sources(config)
    found = [_aliases("transforms", "transformation"), _aliases("predicates", "predicate")]
    for alias in listed(config.get("transforms")):
        found += _of_transform(config, alias, classes.transforms)
    for alias in listed(config.get("predicates")):
        found += _of_class(config, f"predicates.{alias}.", f"Predicates: {alias}", "Predicate", classes.predicates)
    return found


def options(name: str) -> Sequence[Property] | None:
    """The options of a transform's or a predicate's class; None if the class is unknown."""
    transforms, tests = OF_SOURCES.transforms, OF_SOURCES.predicates
    kind = transforms.get(full_name(name, transforms)) or tests.get(full_name(name, tests))
    return kind.options if kind else None


@public("connect.transforms.chain")
def chain(config: Config) -> list[Transform]:
    """The transforms of a configuration: the properties `transforms`, `predicates` and those of their aliases.

    Raises PenstockError for wrong properties. Applying the transforms raises PenstockError for records that do not fit.
    """
    if wrong := read_all(definitions(config), config)[1]:
        name, messages = next(iter(wrong.items()))
        raise PenstockError(messages[0], where=name, next="correct this property, see docs/connect-transforms.md")
    steps = [_step(one) for one in chosen(config, of_sources(config))]
    return [_together(steps)] if steps else []


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


def _step(one: Chosen) -> Step:
    step: Step = one.transform.make(one.values)
    if one.predicate is None:
        return step
    return predicates.where(one.predicate.make(one.predicate_values), one.negate, step)


class Chosen(NamedTuple):
    """A transform of a configuration, and the predicate that selects its records."""

    alias: str
    transform: TransformPlugin[Any]
    values: Mapping[str, Any]
    predicate: TransformPlugin[Any] | None
    predicate_values: Mapping[str, Any]
    negate: bool


def chosen(config: Config, classes: Classes) -> Iterator[Chosen]:
    """The transforms of a valid configuration, in their order."""
    for alias in listed(config.get("transforms")):
        prefix = f"transforms.{alias}."
        transform, values = _with_values(config, prefix, classes.transforms)
        negate = (config.get(f"{prefix}negate") or "").strip().lower() == "true"
        if named := config.get(f"{prefix}predicate"):
            tested = _with_values(config, f"predicates.{named.strip()}.", classes.predicates)
            yield Chosen(alias, transform, values, *tested, negate)
        else:
            yield Chosen(alias, transform, values, None, {}, negate)


def _with_values(config: Config, prefix: str, kinds: Kinds) -> tuple[TransformPlugin[Any], dict[str, Any]]:
    kind = kinds[full_name(config[f"{prefix}type"], kinds)]
    return kind, _values(config, prefix, kind.options)[0]


def _aliases(name: str, what: str) -> Property:
    doc = f"Aliases of the {what}s; the class of each is in {name}.<alias>.type."
    return Property(name, "LIST", [], doc, aliases, "LOW", name.capitalize(), name.capitalize())


def _of_transform(config: Config, alias: str, kinds: Kinds) -> list[Property]:
    prefix, group = f"transforms.{alias}.", f"Transforms: {alias}"
    found = _of_class(config, prefix, group, "Transformation", kinds)
    known = listed(config.get("predicates"))

    def is_known(name: str) -> str | None:
        return None if name in known else f"No predicate has this alias; predicates has {', '.join(known) or 'none'}."

    doc = "The alias of the predicate that selects the records to transform."
    predicate = Property(f"{prefix}predicate", "STRING", None, doc, is_known, group=group)
    negate = Property(f"{prefix}negate", "BOOLEAN", False, "Transform the other records instead.", group=group)
    return [found[0], predicate, negate, *found[1:]]


def _of_class(config: Config, prefix: str, group: str, what: str, kinds: Kinds) -> list[Property]:
    """The type, and the options of its class."""

    def fits(name: str) -> str | None:
        kind = kinds.get(full_name(name, kinds))
        if kind is None:
            return _unknown(name, kinds)
        if what == "Transformation" and config.get(f"{prefix}negate") and not config.get(f"{prefix}predicate"):
            return (
                f"Config '{prefix}negate' was provided but there is no config '{prefix}predicate' "
                "defining a predicate to be negated."
            )
        values, errors = _values(config, prefix, kind.options)
        return None if errors else kind.problem(values)

    kind = kinds.get(full_name(config.get(f"{prefix}type"), kinds))
    doc = f"The class of this {what.lower()}."
    found = [Property(f"{prefix}type", "CLASS", REQUIRED, doc, fits, "HIGH", group, allowed=tuple(sorted(kinds)))]
    options = kind.options if kind else ()
    return found + [replace(option, name=prefix + option.name, group=group) for option in options]


def _values(config: Config, prefix: str, options: Sequence[Property]) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """The values of a class's options and their errors, by name without the prefix."""
    own = {name.removeprefix(prefix): text for name, text in config.items() if name.startswith(prefix)}
    return read_all(options, own)


def _unknown(name: str, kinds: Kinds) -> str:
    name = name.strip()
    sides = [full for full in kinds if full.partition("$")[0] == name]
    if sides:
        return f"This class is abstract and cannot be created. Did you mean {', '.join(sides)}?"
    return f"Class {name} could not be found. Known classes: {', '.join(sorted(kinds))}."
