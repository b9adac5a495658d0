"""Segments of people by what they do: `rule(...)` says who is a member, `match` finds them in a stream of events.

Members, counts and deliveries stand in the database: `sink`, `counts`, `sync`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from penstock.stream.segment.match import match
from penstock.stream.segment.rules import (
    Condition,
    Rule,
    absence,
    all_of,
    any_of,
    count,
    latest,
    rule,
    sequence,
    total,
)
from penstock.stream.segment.yaml import RuleFile, rules

if TYPE_CHECKING:
    from penstock.segments.counts import Counted, Counts, counts
    from penstock.segments.erase import Erased, erase
    from penstock.segments.sink import SegmentSink, members, sink
    from penstock.segments.sync import Receipt, sync
    from penstock.segments.tables import create_tables

# Found on first use: rules alone need no database driver.
_OF_DATABASE = {
    "Counted": "counts",
    "Counts": "counts",
    "counts": "counts",
    "Erased": "erase",
    "erase": "erase",
    "SegmentSink": "sink",
    "sink": "sink",
    "Receipt": "sync",
    "sync": "sync",
    "create_tables": "tables",
    "members": "sink",
}

__all__ = [
    "Condition",
    "Counted",
    "Counts",
    "Erased",
    "Receipt",
    "Rule",
    "RuleFile",
    "SegmentSink",
    "absence",
    "all_of",
    "any_of",
    "count",
    "counts",
    "create_tables",
    "erase",
    "latest",
    "match",
    "members",
    "rule",
    "rules",
    "sequence",
    "sink",
    "sync",
    "total",
]


def __getattr__(name: str) -> object:
    if name in _OF_DATABASE:
        return getattr(import_module(f"penstock.segments.{_OF_DATABASE[name]}"), name)
    raise AttributeError(f"module 'penstock.segment' has no attribute {name!r}")
