"""The properties `transforms` and `predicates` of connectors: the known classes, their options, and their values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import penstock
from penstock.connect.definition import REQUIRED, Check, Property, aliases, full_name, listed, read_all
from penstock.connect.transforms import python_classes
from penstock.connect.transforms.plugin import TransformPlugin
from penstock.connect.transforms.record_chain import PREDICATES, TRANSFORMS, OfClass, RecordTransform

Config = Mapping[str, str | None]
Kinds = Mapping[str, TransformPlugin[Any]]


@dataclass(frozen=True)
class Classes:
    """The classes of transforms and of predicates that a connector may use, by name."""

    transforms: Kinds
    predicates: Kinds


# What is different for records of a source, which Kafka does not have yet, and for records of a sink.

_UNSET = "records of a source have no {} yet when transforms run; remove the !, and the field is null"


def _may_be_null(what: str) -> Check:
    return lambda spec: _UNSET.format(what) if spec.endswith("!") else None


def _not_in_sources(spec: str) -> str:
    return "records of a source have no offset; only a sink connector can insert it"


class OptionDifference(NamedTuple):
    """What an option has in sources and in sinks instead of what `options.toml` and its class say."""

    source: Mapping[str, Any] = {}
    sink: Mapping[str, Any] = {}


DIFFERENCES: dict[str, OptionDifference] = {
    # Kafka sets these when it has a record: in a source they are null, so they cannot be required.
    "partition.field": OptionDifference(
        {"check": _may_be_null("partition")}, {"doc": "The field for the record's partition."}
    ),
    "timestamp.field": OptionDifference(
        {"check": _may_be_null("timestamp")}, {"doc": "The field for the record's timestamp."}
    ),
    "offset.field": OptionDifference({"check": _not_in_sources}, {"doc": "The field for the record's offset."}),
    # A source takes the time of the write instead of the record's.
    "topic.format": OptionDifference(
        sink={"doc": "The new topic, with ${topic} for the old one and ${timestamp} for the record's time."}
    ),
    # As in Debezium 3, which has no other options: a sink shall not lose deletes. Its predecessor, which sources
    # follow, dropped them.
    "delete.handling.mode": OptionDifference(
        sink={
            "default": "none",
            "doc": "Deprecated; use delete.tombstone.handling.mode. none (default): a record without a value. "
            "drop: deletes are dropped. rewrite: the row before with __deleted = true.",
        }
    ),
    "drop.tombstones": OptionDifference(
        sink={"doc": "Deprecated; use delete.tombstone.handling.mode. Drop the tombstones after deletes."}
    ),
    # A source knows all of its fields with a default.
    "replace.null.with.default": OptionDifference(sink={"doc": "Replace null by the schema's default."}),
}


def _in(direction: Literal["source", "sink"]) -> Classes:
    def of(kinds: Kinds) -> dict[str, TransformPlugin[Any]]:
        return {
            name: replace(kind, options=tuple(_option(option, direction) for option in kind.options))
            for name, kind in kinds.items()
        }

    return Classes(of(TRANSFORMS), of(PREDICATES))


def _option(option: Property, direction: Literal["source", "sink"]) -> Property:
    return replace(option, **getattr(DIFFERENCES.get(option.name, OptionDifference()), direction))


OF_SOURCES, OF_SINKS = _in("source"), _in("sink")
CLASSES: tuple[dict[str, str], ...] = tuple(
    {"class": name, "type": kind, "version": penstock.__version__}
    for kind, classes in (("transformation", OF_SOURCES.transforms), ("predicate", OF_SOURCES.predicates))
    for name in sorted(classes)
)
"""Class, type and version, as Connect's REST API lists its plugins."""


def with_own(config: Config, classes: Classes) -> Classes:
    """The classes that a configuration may use: with those of Python that it names."""
    own = python_classes.classes(config)
    return Classes({**classes.transforms, **own}, classes.predicates) if own else classes


def definitions(config: Config, classes: Classes) -> list[Property]:
    """The properties that a configuration's `transforms` and `predicates` add, with checks across them."""
    classes = with_own(config, classes)
    properties = [_aliases("transforms", "transformation"), _aliases("predicates", "predicate")]
    for alias in listed(config.get("transforms")):
        properties += _of_transform(config, alias, classes.transforms)
    for alias in listed(config.get("predicates")):
        properties += _of_class(config, f"predicates.{alias}.", f"Predicates: {alias}", "Predicate", classes.predicates)
    return properties


def options(name: str) -> Sequence[Property] | None:
    """The options of a transform's or a predicate's class; None if the class is unknown."""
    transforms, tests = OF_SOURCES.transforms, OF_SOURCES.predicates
    kind = transforms.get(full_name(name, transforms)) or tests.get(full_name(name, tests))
    return kind.options if kind else None


def chosen(config: Config, classes: Classes) -> Iterator[RecordTransform]:
    """The transforms of a valid configuration, in their order."""
    classes = with_own(config, classes)
    for alias in listed(config.get("transforms")):
        prefix = f"transforms.{alias}."
        transform, values = _with_values(config, prefix, classes.transforms)
        # A class of Python is loaded where records are changed.
        own = transform.make(values) if transform.name.startswith(python_classes.PREFIX) else None
        negate = (config.get(f"{prefix}negate") or "").strip().lower() == "true"
        predicate = None
        if named := config.get(f"{prefix}predicate"):
            test, tested = _with_values(config, f"predicates.{named.strip()}.", classes.predicates)
            predicate = OfClass(test.name, tested)
        yield RecordTransform(alias, OfClass(transform.name, values, own), predicate, negate)


def _with_values(config: Config, prefix: str, kinds: Kinds) -> tuple[TransformPlugin[Any], dict[str, Any]]:
    kind = kinds[full_name(config[f"{prefix}type"], kinds)]
    return kind, _values(config, prefix, kind.options)[0]


def _aliases(name: str, what: str) -> Property:
    doc = f"Aliases of the {what}s; the class of each is in {name}.<alias>.type."
    return Property(name, "LIST", [], doc, aliases, "LOW", name.capitalize(), name.capitalize())


def _of_transform(config: Config, alias: str, kinds: Kinds) -> list[Property]:
    prefix, group = f"transforms.{alias}.", f"Transforms: {alias}"
    properties = _of_class(config, prefix, group, "Transformation", kinds)
    known = listed(config.get("predicates"))

    def is_known(name: str) -> str | None:
        return None if name in known else f"No predicate has this alias; predicates has {', '.join(known) or 'none'}."

    doc = "The alias of the predicate that selects the records to transform."
    predicate = Property(f"{prefix}predicate", "STRING", None, doc, is_known, group=group)
    negate = Property(f"{prefix}negate", "BOOLEAN", False, "Transform the other records instead.", group=group)
    return [properties[0], predicate, negate, *properties[1:]]


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
    properties = [Property(f"{prefix}type", "CLASS", REQUIRED, doc, fits, "HIGH", group, allowed=tuple(sorted(kinds)))]
    options = kind.options if kind else ()
    return properties + [replace(option, name=prefix + option.name, group=group) for option in options]


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
