"""The two delivery guarantees of a sink: how often a row arrives when its batch is run again; and Kafka's clients.

Exactly once, Kafka keeps the markers of a query as offsets of groups that no consumer is in.
"""

from __future__ import annotations

import re
from typing import Final, Literal, TypeAlias, get_args

Delivery: TypeAlias = Literal["exactly-once", "at-least-once"]
EXACTLY_ONCE: Final = "exactly-once"
AT_LEAST_ONCE: Final = "at-least-once"
DELIVERIES: tuple[Delivery, ...] = get_args(Delivery)

Client: TypeAlias = Literal["penstock", "spark"]
"""Clients that read and write topics."""
OURS: Final = "penstock"
SPARKS: Final = "spark"

MARKER_GROUPS: Final = r"^penstock-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}([.][0-9]+)?(-[0-9]+)?$"
"""The names of the groups of markers, for tools that show the lag of groups; docs/delivery.md has it too."""
_MARKER_GROUP: Final = re.compile(MARKER_GROUPS)


def marker_group(query: str, number: int = 0) -> str:
    """The group of a query's markers; Kafka limits the size of a group, so a query with many tasks has more of them.

    Checkpoints find their markers by this name.
    """
    return f"penstock-{query}" + (f"-{number}" if number else "")


def is_marker_group(name: str) -> bool:
    """Whether a group has the markers of an exactly-once sink instead of a reader's position.

    Queries that the user named, with the sink's option `query`, have groups of other names.
    """
    return _MARKER_GROUP.fullmatch(name) is not None
