"""What a question about state is answered with, wherever the state is kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from penstock.state.stores import Freshness, NotFound

LIMIT = 1000
MOST = (1 << 31) - 2
"""A limit above this is this: Spark counts rows in 32 bits, and is asked for one more."""


@dataclass(frozen=True)
class Answer:
    """Rows of a state; `more` when a limit cut them."""

    name: str
    fresh: Freshness
    rows: list[Any]
    more: bool = False

    def told(self) -> dict[str, Any]:
        return {"name": self.name, **self.fresh.told(), "rows": self.rows, "more": self.more}


class States(Protocol):
    """A place where queries keep state."""

    def overview(self) -> list[dict[str, Any]]:
        """What there is: a name each, and how fresh it is."""

    def get(self, name: str, key: str, limit: int = LIMIT) -> Answer:
        """The rows of a key: its text, or a JSON object of several columns or fields of it."""

    def scan(self, name: str, where: str | None = None, limit: int = LIMIT) -> Answer:
        """Rows in no order; `where` is SQL over the columns."""


def cut(name: str, fresh: Freshness, found: list[Any], limit: int) -> Answer:
    """The answer of a question that asked for one row more than its limit."""
    return Answer(name, fresh, found[:limit], len(found) > limit)


def require_some(answer: Answer, key: str) -> Answer:
    if not answer.rows:
        raise NotFound(
            f"{answer.name} holds nothing under the key {key}",
            where=f"batch {answer.fresh.batch}",
            next=f"see what it holds: penstock state scan {answer.name}",
        )
    return answer
