"""Predicates about strings, looked up by the string instead of evaluated one after another.

The first two parts of "event = 'buy' AND page IN ('a', 'b') AND amount > 30" are looked up: for each string of a column
a row of bits has the predicates that it satisfies, and the rows of an event's strings are combined by AND. Spark
evaluates the rest, "amount > 30", once for all predicates that have it. A predicate is divided only if all its parts
are of these kinds, which mean the same alone and cannot fail. In "kind = 'n' AND CAST(note AS INT) > 1" Spark would not
evaluate the second part for other kinds, so this predicate is not divided. Spark evaluates undivided predicates whole.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as st

from penstock.native import Array
from penstock.native.jit import compiled

WORD = 64
# The position of the only set bit, by a perfect hash: de Bruijn sequence (Leiserson, Prokop, Randall 1998).
_DE_BRUIJN = 0x03F79D71B4CB0A89
PLACES = np.zeros(WORD, np.int64)
for _i in range(WORD):
    PLACES[(((1 << _i) * _DE_BRUIJN) & (1 << 64) - 1) >> 58] = _i

_NAME, _TEXT = r"([A-Za-z_][A-Za-z_0-9]*)", r"'[^'\\$]*'"
_ONE = re.compile(rf"{_NAME}\s*==?\s*({_TEXT})")
_SOME = re.compile(rf"{_NAME}\s+IN\s*\(\s*({_TEXT}(?:\s*,\s*{_TEXT})*)\s*\)", re.IGNORECASE)
_NUMBER = re.compile(rf"{_NAME}\s*(?:[<>]=?|==?|<>|!=)\s*-?[0-9]{{1,9}}(?:\.[0-9]{{1,9}})?")
_NULL = re.compile(rf"{_NAME}\s+IS\s+(?:NOT\s+)?NULL", re.IGNORECASE)
_PIECE = re.compile(r"'[^']*'|[^']+|'")
_AND = re.compile(r"(?<=\s)AND(?=\s)", re.IGNORECASE)
_NO_NAMES = {"true", "false", "null", "not"}
_NUMBERS = (st.ByteType, st.ShortType, st.IntegerType, st.LongType, st.FloatType, st.DoubleType)


class IndexedPredicate(NamedTuple):
    """The strings that satisfy a predicate, by column, and the rest of the predicate ("" if none)."""

    texts: dict[str, frozenset[str]]
    rest: str


def divided(predicate: str, schema: st.StructType) -> IndexedPredicate | None:
    """The parts of a predicate; None if it cannot be divided."""
    texts: dict[str, frozenset[str]] = {}
    rest = []
    for part in _parts(predicate):
        if about := _about_texts(part, schema):
            name, some = about
            texts[name] = texts.get(name, some) & some
        elif _cannot_fail(part, schema):
            rest.append(part)
        else:
            return None
    return IndexedPredicate(texts, " AND ".join(rest)) if texts else None


def _parts(predicate: str) -> list[str]:
    """The parts between the ANDs outside quotes."""
    parts = [""]
    for piece in _PIECE.findall(predicate):
        first, *others = [piece] if piece[0] == "'" else _AND.split(piece)
        parts[-1] += first
        parts += others
    return [part.strip() for part in parts]


def _about_texts(part: str, schema: st.StructType) -> tuple[str, frozenset[str]] | None:
    match = _ONE.fullmatch(part) or _SOME.fullmatch(part)
    field = _field(match[1], schema) if match else None
    # A string with a collation has a type of its own.
    if not match or not field or field.dataType != st.StringType():
        return None
    return field.name, frozenset(text[1:-1] for text in re.findall(_TEXT, match[2]))


def _cannot_fail(part: str, schema: st.StructType) -> bool:
    if match := _NULL.fullmatch(part):
        return _field(match[1], schema) is not None
    match = _NUMBER.fullmatch(part)
    field = _field(match[1], schema) if match else None
    return field is not None and isinstance(field.dataType, _NUMBERS)


def _field(name: str, schema: st.StructType) -> st.StructField | None:
    """The column that Spark resolves the name to, None if it is ambiguous."""
    fields = [field for field in schema if field.name.lower() == name.lower()]
    return fields[0] if len(fields) == 1 and name.lower() not in _NO_NAMES else None


@dataclass(frozen=True, eq=False)
class Index:
    """Which predicates are true for a row; created by `index`.

    `asked` are the predicates that Spark evaluates; `needs` has for each predicate the number of the asked predicate
    that must be true (-1: none), `needing` has the bits of the predicates that need one. In `bits`, the rows for the
    strings of column c begin at `firsts[c]`, followed by a row for other strings and null; row 0 has the bits of all
    predicates.
    """

    columns: tuple[str, ...]
    texts: tuple[tuple[str, ...], ...]
    firsts: tuple[int, ...]
    bits: Array
    asked: tuple[str, ...]
    needs: Array
    needing: Array

    def masks(self, columns: Sequence[pa.Array], answers: Array) -> Array:
        """The bits of each row (rows x words), from its strings and Spark's answers (bits of `asked`)."""
        codes = np.zeros((len(columns), len(answers)), np.int64)
        for number, (column, texts) in enumerate(zip(columns, self.texts, strict=True)):
            positions = pc.index_in(column, value_set=pa.array(texts, column.type))
            codes[number] = pc.fill_null(positions, len(texts)).to_numpy(zero_copy_only=False)
            codes[number] += self.firsts[number]
        return candidates(codes, self.bits, answers, self.needs, self.needing, PLACES)


def index(predicates: Sequence[str], schema: st.StructType) -> Index:
    """The index of predicates over rows of `schema`."""
    parts = [divided(text, schema) or IndexedPredicate({}, text) for text in predicates]
    asked = {part.rest: None for part in parts if part.rest}
    numbers = {text: number for number, text in enumerate(asked)}
    needs = np.array([numbers.get(part.rest, -1) for part in parts], np.int64)
    columns = sorted({name for part in parts for name in part.texts})
    texts = [sorted({text for part in parts for text in part.texts.get(name, ())}) for name in columns]
    firsts = np.cumsum([1, *(len(some) + 1 for some in texts)])
    flags = np.ones((firsts[-1], len(parts)), np.bool_)
    for number, name in enumerate(columns):
        rows = {text: firsts[number] + row for row, text in enumerate(texts[number])}
        for predicate, part in enumerate(parts):
            if name in part.texts:
                flags[firsts[number] : firsts[number + 1], predicate] = False
                flags[[rows[text] for text in part.texts[name]], predicate] = True
    needing = _packed((needs >= 0)[None])[0]
    own = tuple(firsts[:-1].tolist())
    return Index(tuple(columns), tuple(map(tuple, texts)), own, _packed(flags), tuple(asked), needs, needing)


def _packed(flags: Array) -> Array:
    """Rows of booleans as rows of words."""
    padded = np.zeros((len(flags), -(-flags.shape[1] // WORD) * WORD), np.bool_)
    padded[:, : flags.shape[1]] = flags
    return np.packbits(padded, axis=1, bitorder="little").view("<u8").astype(np.int64)


@compiled
def place(bit: np.uint64, places: Array) -> int:
    """The position of the only set bit."""
    return int(places[(bit * np.uint64(_DE_BRUIJN)) >> np.uint64(58)])


@compiled
def candidates(codes: Array, bits: Array, answers: Array, needs: Array, needing: Array, places: Array) -> Array:
    """The bits that all rows of `bits` at an event's codes have, without those that need an answer that is false."""
    out = np.empty((len(answers), bits.shape[1]), np.int64)
    for row in range(len(answers)):
        for w in range(bits.shape[1]):
            fulfilled = np.uint64(bits[0, w])
            for column in range(len(codes)):
                fulfilled &= np.uint64(bits[codes[column, row], w])
            left = fulfilled & np.uint64(needing[w])
            while left:
                low = left & (~left + np.uint64(1))
                left ^= low
                need = needs[w * WORD + place(low, places)]
                if not np.uint64(answers[row, need >> 6]) >> np.uint64(need & 63) & np.uint64(1):
                    fulfilled ^= low
            out[row, w] = np.int64(fulfilled)
    return out
