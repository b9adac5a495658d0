"""What stages with packed state leave for those who read it from outside: the names of their variables, and in each
piece a description of its rows. Knows nothing of Spark."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

import pyarrow as pa

HEAD = "__head"
TABLES, SEGMENTS = "__log", "__entries"
"""Behind a stage's name: the variable with its position, and the one with the pieces, of tables or of segments."""
_ABOUT = b"penstock"


@dataclass(frozen=True)
class About:
    """The columns whose hash is the bucket, those by which a row is found, and those that are made for readers: each of
    one column of the state, or of a sum and a count, which are a mean."""

    by: Sequence[str]
    key: Sequence[str]
    made: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def metadata(self) -> dict[bytes, bytes]:
        """For the schema of a piece."""
        return {_ABOUT: json.dumps(asdict(self)).encode()}


def about(schema: pa.Schema) -> About | None:
    """The description of a piece; None for one that has none, of an earlier build."""
    text = (schema.metadata or {}).get(_ABOUT)
    return About(**json.loads(text)) if text else None
