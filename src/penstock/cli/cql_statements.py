"""Splits CQL text into statements."""

from __future__ import annotations

from penstock.database.cql_tokens import TOKEN


def split(text: str) -> tuple[list[str], str]:
    """The statements that end with a semicolon, without it and without comments; and the text after the last one.

    A batch is one statement up to `APPLY BATCH`.
    """
    statements: list[str] = []
    parts: list[str] = []
    batch = _Batch()
    rest = 0
    for token in TOKEN.finditer(text):
        if token.lastgroup == "open":
            break
        if token.lastgroup == "end" and not batch.is_open:
            statements.append("".join(parts).strip())
            parts, batch, rest = [], _Batch(), token.end()
            continue
        parts.append(" " if token.lastgroup == "comment" else token[0])
        if token.lastgroup == "word":
            batch.add(token[0].upper())
    return [statement for statement in statements if statement], text[rest:]


def last(rest: str) -> str:
    """The statement in the text after the last semicolon; "" if it has only comments and blanks."""
    parts = []
    for token in TOKEN.finditer(rest):
        if token.lastgroup == "open":
            parts.append(rest[token.start() :])
            break
        parts.append(" " if token.lastgroup == "comment" else token[0])
    return "".join(parts).strip()


class _Batch:
    """Whether the words of a statement so far begin a batch and do not end it."""

    def __init__(self) -> None:
        self._begins: bool | None = None
        self._words = "", ""

    def add(self, word: str) -> None:
        if self._begins is None:
            self._begins = word == "BEGIN"
        self._words = self._words[1], word

    @property
    def is_open(self) -> bool:
        return bool(self._begins) and self._words != ("APPLY", "BATCH")
