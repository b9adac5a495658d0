"""The properties `transforms` and `predicates` of a sink: the classes that it knows, their options, and its chain."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from penstock.connect.definition import Check, Property
from penstock.connect.java import regex as java_regex
from penstock.connect.record_transforms import record_chain
from penstock.connect.record_transforms.record_chain import OfClass, RecordChain, RecordTransform
from penstock.connect.record_transforms.record_steps import Values
from penstock.connect.transforms import python_classes, transform_chain
from penstock.connect.transforms.state import TransformPlugin, not_empty
from penstock.connect.transforms.transform_chain import OF_SOURCES, Chosen, Classes, Config, chosen

# What is different for records that Kafka has already, by the name of the option.
_CHECKS: dict[str, Check | None] = {
    "partition.field": None,
    "offset.field": None,
    "timestamp.field": None,
    "regex": java_regex.problem,
    "topic.regex": java_regex.problem,
    "key.field.regex": java_regex.problem,
    "pattern": lambda text: not_empty(text) or java_regex.problem(text),
}
_DOCS = {
    "replace.null.with.default": "Replace null by the schema's default.",
    "partition.field": "The field for the record's partition.",
    "offset.field": "The field for the record's offset.",
    "timestamp.field": "The field for the record's timestamp.",
    "topic.format": "The new topic, with ${topic} for the old one and ${timestamp} for the record's time.",
    "drop.fields.header.name": "A header that lists fields to drop.",
    "delete.handling.mode": "Deprecated; use delete.tombstone.handling.mode. none (default): a record without a value. "
    "drop: deletes are dropped. rewrite: the row before with __deleted = true.",
    "drop.tombstones": "Deprecated; use delete.tombstone.handling.mode. Drop the tombstones after deletes.",
}
_DEFAULTS = {
    # As in Debezium 3, which has no other options: a sink shall not lose deletes. Its predecessor dropped them.
    "delete.handling.mode": "none",
}
_REPLACEMENTS = {
    "RegexRouter": ("regex", "replacement"),
    "ByLogicalTableRouter": ("topic.regex", "topic.replacement"),
}
"""The options of a regular expression and its replacement."""


def _of_records(kind: TransformPlugin[Any], make: Callable[[Values], Any]) -> TransformPlugin[Any]:
    options = (
        replace(
            one,
            check=_CHECKS.get(one.name, one.check),
            default=_DEFAULTS.get(one.name, one.default),
            doc=_DOCS.get(one.name, one.doc),
        )
        for one in kind.options
    )
    return replace(kind, options=tuple(options), make=make, problem=lambda values: _problem(kind, values))


def _problem(kind: TransformPlugin[Any], values: Values) -> str | None:
    pairs = [_REPLACEMENTS[name]] if (name := kind.name.rpartition(".")[2]) in _REPLACEMENTS else []
    if values.get("key.field.regex"):
        pairs.append(("key.field.regex", "key.field.replacement"))
    wrong = (java_regex.template_problem(values[regex], values[text] or "") for regex, text in pairs)
    return kind.problem(values) or next((error for error in wrong if error), None)


OF_SINKS = Classes(
    {name: _of_records(kind, record_chain.TRANSFORMS[name]) for name, kind in OF_SOURCES.transforms.items()},
    {name: _of_records(kind, record_chain.PREDICATES[name]) for name, kind in OF_SOURCES.predicates.items()},
)


def definitions(config: Config) -> list[Property]:
    """The properties that a sink's `transforms` and `predicates` add, with checks across them."""
    return transform_chain.definitions(config, _classes(config))


def chain(config: Mapping[str, str]) -> RecordChain:
    """The transforms of a valid configuration."""
    return RecordChain(
        tuple(
            RecordTransform(
                one.alias,
                _of_class(one),
                None if one.predicate is None else OfClass(one.predicate.name, one.predicate_values),
                one.negate,
            )
            for one in chosen(config, _classes(config))
        )
    )


def _classes(config: Config) -> Classes:
    """The classes that a configuration may use: with those of Python that it names."""
    own = python_classes.classes(config, lambda kind: kind)
    return Classes({**OF_SINKS.transforms, **own}, OF_SINKS.predicates) if own else OF_SINKS


def _of_class(one: Chosen) -> OfClass:
    is_own = one.transform.name.startswith(python_classes.PREFIX)
    return OfClass(one.transform.name, one.values, one.transform.make(one.values) if is_own else None)
