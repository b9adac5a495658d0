"""Segments of people by what they do: `rule(...)` defines a segment, `match` finds its members in a stream of events.

The database holds members, counts and deliveries: `sink`, `counts`, `sync`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock import lazy

if TYPE_CHECKING:
    from penstock.segment.member_tables.delivery_sync import Receipt as Receipt, sync as sync
    from penstock.segment.member_tables.member_counts import Counted as Counted, Counts as Counts, counts as counts
    from penstock.segment.member_tables.member_erase import Erased as Erased, erase as erase
    from penstock.segment.member_tables.member_schema import create_tables as create_tables
    from penstock.segment.member_tables.member_sink import SegmentSink as SegmentSink, members as members, sink as sink
    from penstock.segment.rule_definitions import (
        Condition as Condition,
        Rule as Rule,
        absence as absence,
        all_of as all_of,
        any_of as any_of,
        count as count,
        latest as latest,
        rule as rule,
        sequence as sequence,
        total as total,
    )
    from penstock.segment.rule_files import RuleFile as RuleFile, rules as rules
    from penstock.segment.segment_match import match as match
else:
    __all__, __getattr__, __dir__ = lazy.names(
        __name__,
        {
            "penstock.segment.member_tables.delivery_sync": ("Receipt", "sync"),
            "penstock.segment.member_tables.member_counts": ("Counted", "Counts", "counts"),
            "penstock.segment.member_tables.member_erase": ("Erased", "erase"),
            "penstock.segment.member_tables.member_schema": ("create_tables",),
            "penstock.segment.member_tables.member_sink": ("SegmentSink", "members", "sink"),
            "penstock.segment.rule_definitions": (
                "Condition",
                "Rule",
                "absence",
                "all_of",
                "any_of",
                "count",
                "latest",
                "rule",
                "sequence",
                "total",
            ),
            "penstock.segment.rule_files": ("RuleFile", "rules"),
            "penstock.segment.segment_match": ("match",),
        },
    )
