"""The errors that users see: each says what happened, where, and what to do next."""

from __future__ import annotations


class PenstockError(Exception):
    """An error: `what` happened, `where`, and the `next` step; `retriable` is true if trying again can help."""

    retriable = False

    def __init__(self, what: str, *, where: str = "", next: str = "") -> None:
        self.what, self.where, self.next = what, where, next
        super().__init__(what, where, next)

    def __str__(self) -> str:
        place = f" ({self.where})" if self.where else ""
        step = f". Next: {self.next}" if self.next else ""
        return f"{self.what}{place}{step}"

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.what, self.where, self.next)


class DataLost(PenstockError):
    """The data that a query reads next is gone; the query stops, unless it is set to continue without the data."""


class SchemaChanged(PenstockError):
    """The table's columns changed while a query was reading; a restart reads the same rows with the new columns."""

    retriable = True


class Missing(PenstockError):
    """What a name refers to is not there: a table, a topic."""


def first_line(error: BaseException) -> str:
    """What an error of a library says first, without the plan or the stack below it; its class if it says nothing."""
    return next(filter(None, map(str.strip, str(error).splitlines())), type(error).__name__)


def _rebuild(kind: type[PenstockError], what: str, where: str, next: str) -> PenstockError:
    return kind(what, where=where, next=next)
