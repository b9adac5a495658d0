"""Rules as arrays of numbers, and the memory layout of records, for the compiled loops of `record_kernel`.

Each rule has a row in `rules`, each term of its condition a row in `terms`; `program` has the condition in postfix
order. An event touches a rule with a mask: bit 0 is the rule's `leave`, the other bits are the predicates of its terms
in order. `BEGIN` has the bits of the terms' first predicates: a touch without any of them is ignored for a person
without a record.

All state of a bucket of persons is one array of words. A person's record for a rule is

    width, hash of the person, rule, position of the person's id, member until, last time, due, queued due, terms ...

and an id is `width, hash, -1, bytes, new position, marks ..., bytes as words ...`: its marks are bits for the rules
that have a record, since most touches are of rules that have none. Times are milliseconds; zero means none. A term is

    count      the n newest times, ascending
    total      the newest bin, then 64 sums, one for each bin of time
    chain      for each step the latest start of a chain that reached it, and the time when it did
    absence    the first waiting event, the last waiting event, and when a wait ended
    latest     the time, and the value

`index` is an open hash table of (hash, rule, position); `heap` is a binary heap of (due, position) with at most one
valid entry per record: the one whose time is the record's `queued due`. Outdated entries are dropped or corrected when
they come up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import numpy as np

from penstock.errors import PenstockError
from penstock.native import Array
from penstock.segment.rule_definitions import (
    MILLISECOND,
    Absence,
    All,
    Any_,
    Chain,
    Condition,
    Count,
    Latest,
    Rule,
    Term,
    Total,
    check_names,
    predicates,
    terms,
)

BINS = 64
"""Parts of the sliding time of a total; counts up to this number keep exact times instead."""
COUNT, TOTAL, CHAIN, ABSENCE, LATEST = range(5)
AND, OR = -1, -2
# Columns of `rules` and of `terms`.
WIDTH, TTL, STEP, UNTIL_FALSE, FIRST_TERM, LAST_TERM, FIRST_CODE, LAST_CODE, KEEP, BEGIN = range(10)
KIND, AT, N, WITHIN, RESOLUTION, VALUE, BIT = range(7)
BITS = 62
"""Most predicates of a rule: bits of a mask above its first, without the sign."""
HEAD = 8
"""Words of a record before those of its terms."""
ENTER, PROLONG, LEAVE, EXPIRE = 1, 2, 3, 4
# Words of a record, after its width. An id has the first two as well, and then its own.
KEY, RULE, PERSON, UNTIL, LAST, DUE, QUEUED_DUE = range(1, 8)
ID_BYTES, ID_MOVED = 3, 4
# Words of a term after its first: of an absence, and of the latest value.
LAST_WAITING, ENDED = 1, 2
IS_TRUE = 1
# Words of an entry of the hash table, after the hash.
OF_RULE, AT_RECORD = 1, 2
# Positions in `sizes`: how much of each array is used.
INDEXED, USED, QUEUED, OUT, MOST = range(5)
"""Entries of the hash table, words, entries of the heap, rows of output; and the most rows that one touch can emit."""
LAYOUT = 2
"""The version of this layout; a snapshot contains its version."""
ID_HEAD = 5
"""Words of an id before its marks."""
MARKED = 64
"""Rules in a word of marks."""
NEVER = 1 << 62


@dataclass(frozen=True)
class RulePlan:
    """The arrays, and the predicates and values to evaluate for each event.

    `uses[p]` are the (rule, bit) pairs that predicate p sets; value columns are numbered as in `values`.
    """

    source: tuple[Rule, ...]
    rules: Array
    terms: Array
    limits: Array
    program: Array
    predicates: tuple[str, ...]
    uses: tuple[tuple[tuple[int, int], ...], ...]
    values: tuple[str, ...]


def plan(rules: Sequence[Rule]) -> RulePlan:
    """The rules as arrays for the loops; raises PenstockError if a rule has too many predicates."""
    check_names(rules)
    builder = _Builder({}, {})
    for number, rule in enumerate(rules):
        builder.add(number, rule)
    return RulePlan(
        tuple(rules),
        np.array(builder.rules, np.int64),
        np.array(builder.terms, np.int64),
        np.array(builder.limits, np.float64),
        np.array(builder.program, np.int64),
        tuple(builder.uses),
        tuple(tuple(some) for some in builder.uses.values()),
        tuple(builder.values),
    )


class _Builder:
    """Collects the rows; rules share equal predicates and values."""

    def __init__(self, uses: dict[str, list[tuple[int, int]]], values: dict[str, int]) -> None:
        self.uses, self.values = uses, values
        self.rules: list[list[int]] = []
        self.terms: list[list[int]] = []
        self.limits: list[float] = []
        self.program: list[int] = []

    def add(self, number: int, rule: Rule) -> None:
        if rule.leave:
            self.uses.setdefault(rule.leave.strip(), []).append((number, 0))
        first_term, first_code = len(self.terms), len(self.program)
        at, bit, keep, begin = HEAD, 1, 0, 0
        for term in terms(rule.condition):
            within = _ms(rule.ttl if isinstance(term, Latest) else term.within)
            for offset, predicate in enumerate(predicates(term)):
                self.uses.setdefault(predicate.strip(), []).append((number, bit + offset))
            row, width = self._term(term, at, bit, within)
            self.terms.append(row)
            begin |= 1 << bit
            # The bins of a sum are rounded up to whole milliseconds, so they cover a little more than `within`.
            lasts = BINS * row[RESOLUTION] if row[KIND] == TOTAL else within
            at, bit, keep = at + width, bit + len(predicates(term)), max(keep, lasts)
        if bit - 1 > BITS:
            raise PenstockError(
                f"{bit - 1} predicates in one rule", where=rule.where, next=f"split it: at most {BITS} are possible"
            )
        self._code(rule.condition, first_term)
        times = [_ms(rule.ttl), _ms(rule.prolong), int(rule.until_false)]
        self.rules.append([at, *times, first_term, len(self.terms), first_code, len(self.program), keep, begin])

    def _term(self, term: Term, at: int, bit: int, within: int) -> tuple[list[int], int]:
        """A term's row, and the number of words of its state."""
        resolution, limit, value, n = 1, 0.0, -1, 0
        match term:
            case Count(at_least=at_least) if at_least <= BINS:
                kind, n, width = COUNT, at_least, at_least
            case Count(at_least=at_least):
                kind, limit, resolution, width = TOTAL, float(at_least), -(-within // BINS), BINS + 1
            case Total(of=of, at_least=least):
                kind, limit, resolution, width = TOTAL, float(least), -(-within // BINS), BINS + 1
                value = self.values.setdefault(of.strip(), len(self.values))
            case Chain(steps=steps):
                kind, n, width = CHAIN, len(steps), 2 * len(steps)
            case Absence():
                kind, width = ABSENCE, 3
            case Latest():
                kind, width = LATEST, 2
        self.limits.append(limit)
        return [kind, at, n, within, resolution, value, bit], width

    def _code(self, condition: Condition, term: int) -> int:
        """Append a condition in postfix order; returns the number of the term after its last one."""
        if not isinstance(condition, All | Any_):
            self.program.append(term)
            return term + 1
        for number, part in enumerate(condition.parts):
            term = self._code(part, term)
            if number:
                self.program.append(AND if isinstance(condition, All) else OR)
        return term


def _ms(time: timedelta) -> int:
    return max(1, time // MILLISECOND)
