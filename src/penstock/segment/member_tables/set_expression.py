"""Set expressions over segments, such as "a & b | c - d", and their values as theta sketches.

`&` and `-` (without) bind more tightly than `|`; parentheses group. Names are segment names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from datasketches import compact_theta_sketch, theta_a_not_b, theta_intersection, theta_union

from penstock.errors import PenstockError

SIZE = 12
"""The base-2 logarithm of the number of hashes in a sketch: with 4 096 the error is 3 % at 95 % confidence."""

Sketch: TypeAlias = compact_theta_sketch
Value: TypeAlias = Callable[[Mapping[str, Sketch]], Sketch]

_TOKEN = re.compile(r"\s*(?:([\w.]+(?:-[\w.]+)*)|([&|()-]))")


def parse(text: str) -> tuple[set[str], Value]:
    """The names in an expression, and a function from their sketches to the expression's sketch."""
    tokens = list(_tokens(text))
    names = {token for token in tokens if token not in "&|()-"}
    value, rest = _either(tokens, text)
    if rest:
        raise _wrong(text, f"unexpected {rest[0]!r}")
    return names, value


def united(sketches: Iterator[Sketch] | list[Sketch]) -> Sketch:
    """The union of the sketches."""
    union = theta_union(SIZE)
    for sketch in sketches:
        union.update(sketch)
    return union.get_result()


def _tokens(text: str) -> Iterator[str]:
    at = 0
    while at < len(text.rstrip()):
        match = _TOKEN.match(text, at)
        if not match:
            raise _wrong(text, f"unexpected character {text[at:].strip()[0]!r}")
        yield match[1] or match[2]
        at = match.end()


def _either(tokens: list[str], text: str) -> tuple[Value, list[str]]:
    left, tokens = _both(tokens, text)
    while tokens and tokens[0] == "|":
        right, tokens = _both(tokens[1:], text)
        left = _joined(left, right, lambda a, b: united([a, b]))
    return left, tokens


def _both(tokens: list[str], text: str) -> tuple[Value, list[str]]:
    left, tokens = _one(tokens, text)
    while tokens and tokens[0] in "&-":
        join = _intersection if tokens[0] == "&" else _without
        right, tokens = _one(tokens[1:], text)
        left = _joined(left, right, join)
    return left, tokens


def _one(tokens: list[str], text: str) -> tuple[Value, list[str]]:
    if not tokens or tokens[0] in "&|-)":
        raise _wrong(text, "a segment name is missing")
    if tokens[0] != "(":
        name = tokens[0]
        return lambda sketches: sketches[name], tokens[1:]
    inside, rest = _either(tokens[1:], text)
    if not rest or rest[0] != ")":
        raise _wrong(text, "a parenthesis is not closed")
    return inside, rest[1:]


def _joined(left: Value, right: Value, join: Callable[[Sketch, Sketch], Sketch]) -> Value:
    return lambda sketches: join(left(sketches), right(sketches))


def _intersection(a: Sketch, b: Sketch) -> Sketch:
    both = theta_intersection()
    both.update(a)
    both.update(b)
    return both.get_result()


def _without(a: Sketch, b: Sketch) -> Sketch:
    return theta_a_not_b().compute(a, b)


def _wrong(text: str, what: str) -> PenstockError:
    return PenstockError(f"invalid segment expression: {what}", where=repr(text), next='write it as "a & b | c - d"')
