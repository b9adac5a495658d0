"""The properties `transforms` and `predicates` of a sink, and its chain of transforms."""

from __future__ import annotations

from penstock.connect.definition import Property
from penstock.connect.transforms import definitions as of_properties
from penstock.connect.transforms.definitions import OF_SINKS, Config, chosen
from penstock.connect.transforms.record_chain import RecordChain


def definitions(config: Config) -> list[Property]:
    """The properties that a sink's `transforms` and `predicates` add, with checks across them."""
    return of_properties.definitions(config, OF_SINKS)


def chain(config: Config) -> RecordChain:
    """The transforms of a valid configuration."""
    return RecordChain(tuple(chosen(config, OF_SINKS)))
