"""The answer to a question about state, wherever the state is kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from penstock.state.stores import Freshness, NotFound

LIMIT = 1000
MOST = (1 << 31) - 2
"""The largest limit; Spark counts rows in 32 bits, and is asked for one more."""


@dataclass(frozen=True)
class Answer:
    """Rows of a state; `more` is true if a limit cut them."""

    name: str
    fresh: Freshness
    rows: list[Any]
    more: bool = False

    def told(self) -> dict[str, Any]:
        return {"name": self.name, **self.fresh.told(), "rows": self.rows, "more": self.more}


class States(Protocol):
    """Where queries keep state."""

    def overview(self) -> list[dict[str, Any]]:
        """The name of each state, and how fresh it is."""

    def get(self, name: str, key: str, limit: int = LIMIT) -> Answer:
        """The rows of a key: a string, or a JSON object of several of its columns or fields."""

    def scan(self, name: str, where: str | None = None, limit: int = LIMIT) -> Answer:
        """Rows in no particular order; `where` is an SQL condition over the columns."""


def cut(name: str, fresh: Freshness, found: list[Any], limit: int) -> Answer:
    """The answer from rows that were read with a limit of `limit` + 1."""
    return Answer(name, fresh, found[:limit], len(found) > limit)


def require_some(answer: Answer, key: str) -> Answer:
    if not answer.rows:
        raise NotFound(
            f"{answer.name} has nothing under the key {key}",
            where=f"batch {answer.fresh.batch}",
            next=f"list its rows: penstock state scan {answer.name}",
        )
    return answer
