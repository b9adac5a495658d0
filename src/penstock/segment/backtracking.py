r"""Whether Java's engine, which goes back and tries again, finds an expression in linear time.

An expression is seen as a graph of its characters. Those that are repeated without a bound are loops, and a search that
may begin anywhere begins with a loop over all characters. Time grows with the square of the text, or faster, if
one text can be divided between two loops in many ways: each of its characters may be in either loop, and a way from the
first to the second may be in it as well (the condition IDA of Weber and Seidl, "On the degree of ambiguity of finite
automata", 1991). `foo.*bar` is such a case: after "foo foo foo" the search begins again at each foo. In `id=[0-9]+,` no
character of `id=` can be in the second loop. A group that is repeated without a bound is refused without a look at it:
Java calls itself for each repetition, and a long text is the end of the thread's stack.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache, reduce
from operator import or_

import pyarrow as pa
import pyarrow.compute as pc

from penstock.segment.linear_regex import CODE, re2_characters
from penstock.spark_runtime.java_regex_syntax import (
    BEGIN,
    Anchor,
    Characters,
    Choice,
    Group,
    Node,
    Repeat,
    Sequence,
    Special,
    nodes,
    read,
)

MOST_WAYS = 1_000
"""Ways to match one text apart from those of loops, such as 2 for (a|a) and 4 for [ab]{1,4}."""
MOST_CHARACTERS = 1_000
LONGEST_REPEAT = 50
"""A bounded repetition of more is seen as a loop."""
_ASCII = [chr(code) for code in range(128)]
_OTHERS = 1 << 128
"""The bit of all characters beyond ASCII: two sets that have some may have the same."""
_ALL = (1 << 129) - 1


class Ambiguous(ValueError):
    """Java's engine would go back too often; the message has the parts of the expression that are why."""


def require_linear(pattern: str) -> None:
    """Raises Ambiguous if Java may need more than linear time, and ValueError if the expression cannot be read."""
    node = _without_tail(read(pattern)[0])
    for choice in node.parts if isinstance(node, Choice) else (node,):
        graph = _Graph()
        start = () if _is_anchored(choice) else (graph.loop(_ALL, "the start of the search"),)
        part = graph.add(choice, start)
        if part.ways > MOST_WAYS:
            raise Ambiguous("there are too many ways to match the same characters")
        graph.require_linear()


@dataclass(frozen=True)
class _Part:
    """The characters after which a part of an expression may end, and in how many ways it matches a text."""

    ends: frozenset[int]
    ways: int


@dataclass
class _Graph:
    """Characters as sets (bits of ASCII, and one for all others), those that may follow each, and the loops."""

    sets: list[int] = field(default_factory=list)
    next: list[set[int]] = field(default_factory=list)
    loops: dict[int, str] = field(default_factory=dict)

    def loop(self, characters: int, source: str) -> int:
        self.sets.append(characters)
        self.next.append(set())
        self.loops[len(self.sets) - 1] = source
        return len(self.sets) - 1

    def add(self, node: Node, before: Iterable[int]) -> _Part:
        """Adds a part that follows the characters `before`."""
        starts = frozenset(before)
        if len(self.sets) > MOST_CHARACTERS:
            raise Ambiguous(f"it has more than {MOST_CHARACTERS} characters, if what it repeats is written out")
        match node:
            case Characters(text):
                return _Part(self._character(text, starts), 1)
            case Anchor():
                return _Part(starts, 1)
            case Special(_, source):
                raise Ambiguous(f"{source} stands for a text of any length")
            case Sequence(parts):
                return self._sequence(parts, starts)
            case Choice(parts):
                branches = [self.add(part, starts) for part in parts]
                ends = frozenset[int]().union(*(branch.ends for branch in branches))
                return _Part(ends, self._ways_of(parts, branches))
            case Group(head, body):
                return self._group(head, body, starts)
            case Repeat():
                return self._repeat(node, starts)

    def _character(self, text: str, starts: frozenset[int]) -> frozenset[int]:
        self.sets.append(_bits(text))
        self.next.append(set())
        for start in starts:
            self.next[start].add(len(self.sets) - 1)
        return frozenset({len(self.sets) - 1})

    def _sequence(self, parts: Iterable[Node], starts: frozenset[int]) -> _Part:
        ways = 1
        for part in parts:
            added = self.add(part, starts)
            starts, ways = added.ends, ways * added.ways
            if ways > MOST_WAYS:
                raise Ambiguous("there are too many ways to match the same characters")
        return _Part(starts, ways)

    def _ways_of(self, parts: Iterable[Node], branches: Iterable[_Part]) -> int:
        """Branches that begin with different characters exclude each other."""
        first, is_apart, ways = 0, True, []
        for part, branch in zip(parts, branches, strict=True):
            characters = _first(part)
            is_apart = is_apart and not characters & first
            first |= characters
            ways.append(branch.ways)
        return max(ways) if is_apart else sum(ways)

    def _group(self, head: str, body: Node, starts: frozenset[int]) -> _Part:
        if head in ("(?<=", "(?<!") and any(map(_is_loop, nodes(body))):
            raise Ambiguous("it looks behind without a bound")
        part = self.add(body, starts)
        # What is only looked at is not tried again for what follows.
        return _Part(starts, 1) if head in ("(?=", "(?!", "(?<=", "(?<!") else part

    def _repeat(self, repeat: Repeat, starts: frozenset[int]) -> _Part:
        body = _bare(repeat.body)
        if _is_loop(repeat):
            if isinstance(body, Characters):
                return self._repeated_character(body, repeat, starts)
            raise Ambiguous(f"{repeat.source} repeats a group")
        assert repeat.most is not None
        ways, ends = 1, starts if not repeat.least else frozenset[int]()
        for number in range(1, repeat.most + 1):
            part = self.add(repeat.body, starts)
            starts, ways = part.ends, ways * part.ways
            if number >= repeat.least:
                ends |= starts
            if ways > MOST_WAYS:
                raise Ambiguous(f"there are too many ways to match {repeat.source}")
        return _Part(ends, ways * (repeat.most - repeat.least + 1))

    def _repeated_character(self, body: Characters, repeat: Repeat, starts: frozenset[int]) -> _Part:
        for _ in range(min(repeat.least, LONGEST_REPEAT) - 1):
            starts = self._character(body.text, starts)
        ends = self._character(body.text, starts)
        self.loops.update(dict.fromkeys(ends, repeat.source))
        return _Part(ends if repeat.least else ends | starts, 1)

    def require_linear(self) -> None:
        for first, source in self.loops.items():
            for second, other in self.loops.items():
                if first != second and self._is_shared(first, second):
                    raise Ambiguous(f"the same characters may belong to {source} and to {other}")

    def _is_shared(self, first: int, second: int) -> bool:
        """Whether a way from the first loop to the second has only characters of both."""
        both = self.sets[first] & self.sets[second]
        seen, ways = {first}, deque([first])
        while ways and both:
            for character in self.next[ways.popleft()]:
                if character not in seen and self.sets[character] & both:
                    if character == second:
                        return True
                    seen.add(character)
                    ways.append(character)
        return False


@lru_cache(maxsize=10_000)
def _bits(text: str) -> int:
    try:
        matches = pc.match_substring_regex(pa.array(_ASCII), rf"\A{re2_characters(text)}\z").to_pylist()
    except (ValueError, pa.ArrowInvalid):
        return _ALL
    ascii_bits = sum(1 << code for code, is_in in enumerate(matches) if is_in)
    is_plain = len(text) == 1 or not ("^" in text or "\\p" in text or "(" in text or _has_others(text))
    return ascii_bits if is_plain else ascii_bits | _OTHERS


def _has_others(text: str) -> bool:
    """Whether a code in it is beyond ASCII."""
    return any(int(code[1] or code[2], 16) > 127 for code in CODE.finditer(text))


def _bare(node: Node) -> Node:
    """Without groups that only hold it."""
    return _bare(node.body) if isinstance(node, Group) and node.head == "(?:" else node


def _first(node: Node) -> int:
    """The characters that a part can begin with; all if it may be empty."""
    match node:
        case Characters(text):
            return _bits(text)
        case Sequence(parts) if parts:
            return _first(parts[0])
        case Choice(parts):
            return reduce(or_, map(_first, parts), 0)
        case Group(head, body) if head in ("(", "(?:", "(?>") or head.startswith("(?P<"):
            return _first(body)
        case Repeat(body, _, least) if least:
            return _first(body)
        case _:
            return _ALL


def _is_loop(node: Node) -> bool:
    return isinstance(node, Repeat) and (node.most is None or node.most > LONGEST_REPEAT)


def _is_anchored(node: Node) -> bool:
    match node:
        case Anchor(text):
            return text == BEGIN
        case Sequence(parts):
            return bool(parts) and _is_anchored(parts[0])
        case Choice(parts):
            return all(map(_is_anchored, parts))
        case Group(head, body):
            return (head in ("(", "(?:", "(?>") or head.startswith("(?P<")) and _is_anchored(body)
        case _:
            return False


def _without_tail(node: Node) -> Node:
    """Without what its end repeats beyond need: the search has ended when it gets there."""
    match node:
        case Sequence(parts) if parts:
            tail = _without_tail(parts[-1])
            is_gone = isinstance(tail, Sequence) and not tail.parts
            return _without_tail(Sequence(parts[:-1])) if is_gone else Sequence((*parts[:-1], tail))
        case Choice(parts):
            return Choice(tuple(map(_without_tail, parts)))
        case Group(head, body) if head in ("(", "(?:") or head.startswith("(?P<"):
            return Group(head, _without_tail(body))
        case Repeat(Characters() as body, _, least, _, source):
            return Repeat(body, f"{{{least}}}", least, least, source) if least else Sequence(())
        case _:
            return node
