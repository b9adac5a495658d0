"""Descriptions of packed state for readers outside the query: the names of the state variables, and in each blob a
description of its rows. Independent of Spark."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

import pyarrow as pa

HEAD = "__head"
TABLES, SEGMENTS = "__log", "__entries"
"""Suffixes of a stage's name: the variable with its position, and the variable with the blobs of tables or segments."""
_ABOUT = b"penstock"


@dataclass(frozen=True)
class About:
    """The columns whose hash is the bucket (`by`), the key of a row (`key`), and the columns computed for readers
    (`made`): each from one column of the state, or for a mean from a sum and a count."""

    by: Sequence[str]
    key: Sequence[str]
    made: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def metadata(self) -> dict[bytes, bytes]:
        """The metadata for the schema of a blob."""
        return {_ABOUT: json.dumps(asdict(self)).encode()}


def about(schema: pa.Schema) -> About | None:
    """The description of a blob; None if an earlier build wrote it without one."""
    text = (schema.metadata or {}).get(_ABOUT)
    return About(**json.loads(text)) if text else None
