"""Set expressions against Python's sets, and the rows that cover a time range, without a database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from datasketches import update_theta_sketch
from hypothesis import given, settings, strategies as st

from penstock.errors import PenstockError
from penstock.segment.member_tables import member_counts
from penstock.segment.member_tables.member_counts import (
    LENGTHS,
    SIZE,
    SPANS,
    Counts,
    Sketch,
    begin,
    counts,
    parse,
    parts,
)

NAMES = ("a", "b.c", "seg-2", "_x", "é", "3-d")
MINUTE = timedelta(minutes=1)
NOWHERE = "127.0.0.1:9"


def naive(*time: int) -> datetime:
    return datetime(*time, tzinfo=UTC).replace(tzinfo=None)  # type: ignore[arg-type,misc]


def sketch(members: Any) -> Sketch:
    made = update_theta_sketch(SIZE)
    for member in members:
        made.update(member)
    return made.compact()


@st.composite
def expressions(draw: st.DrawFn, depth: int = 3) -> tuple[str, str]:
    """An expression, and the same for Python's sets with all parentheses: `&` and `-` from the left, then `|`."""

    def factor(depth: int) -> tuple[str, str]:
        if depth == 0 or draw(st.booleans()):
            name = draw(st.sampled_from(NAMES))
            return name, f"sets[{name!r}]"
        text, meaning = union(depth - 1)
        return f"{space()}({space()}{text}{space()})", meaning

    def space() -> str:
        return draw(st.sampled_from(["", " ", "\n\t"]))

    def product(depth: int) -> tuple[str, str]:
        text, meaning = factor(depth)
        for _ in range(draw(st.integers(0, 2))):
            sign, (more, means) = draw(st.sampled_from("&-")), factor(depth)
            # Without a space, a dash would be a part of a name.
            text, meaning = f"{text} {sign} {more}", f"({meaning} {sign} {means})"
        return text, meaning

    def union(depth: int) -> tuple[str, str]:
        text, meaning = product(depth)
        for _ in range(draw(st.integers(0, 2))):
            more, means = product(depth)
            text, meaning = f"{text}{space()}|{space()}{more}", f"({meaning} | {means})"
        return text, meaning

    return union(depth)


@pytest.mark.slow
@settings(max_examples=80)
@given(expressions(), st.lists(st.frozensets(st.integers(0, 30)), min_size=len(NAMES), max_size=len(NAMES)))
def test_an_expression_means_what_it_means_for_sets(given: tuple[str, str], some: list[frozenset[int]]) -> None:
    text, meaning = given
    sets = dict(zip(NAMES, some, strict=True))
    names, value = parse(text)
    assert names == {name for name in NAMES if f"sets[{name!r}]" in meaning}
    found = value({name: sketch(sets[name]) for name in names})
    assert found.get_estimate() == len(eval(meaning, {"sets": sets}))
    # Evaluating it again gives the same: no sketch was changed.
    assert value({name: sketch(sets[name]) for name in names}).get_estimate() == found.get_estimate()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "a segment name is missing"),
        ("  \n", "a segment name is missing"),
        ("a &", "a segment name is missing"),
        ("a | | b", "a segment name is missing"),
        ("a - - b", "a segment name is missing"),
        ("()", "a segment name is missing"),
        ("(a) & ()", "a segment name is missing"),
        ("& a", "a segment name is missing"),
        ("a b", "unexpected 'b'"),
        ("a (b)", r"unexpected '\('"),
        ("(a) b", "unexpected 'b'"),
        ("a)", r"unexpected '\)'"),
        ("(a | b)) & c", r"unexpected '\)'"),
        ("(a", "a parenthesis is not closed"),
        ("((a | b) & c", "a parenthesis is not closed"),
        ("a + b", r"unexpected character '\+'"),
        ("a, b", "unexpected character ','"),
        ("'a'", "unexpected character"),
        ("a & \0", "unexpected character"),
    ],
)
def test_a_wrong_expression_is_refused_with_what_is_wrong(text: str, said: str) -> None:
    with pytest.raises(PenstockError, match=rf"invalid segment expression: {said}.*write it as \"a & b \| c - d\""):
        parse(text)


def test_a_dash_within_a_name_belongs_to_it_and_another_does_not() -> None:
    assert parse("a-b - c")[0] == {"a-b", "c"}
    assert parse("a -b")[0] == parse("a- b")[0] == {"a", "b"}
    assert parse("a-b-c.d")[0] == {"a-b-c.d"}


def test_long_and_deep_expressions_are_evaluated() -> None:
    names = [f"s{number}" for number in range(3000)]
    wanted, value = parse(" | ".join(names))
    assert wanted == set(names)
    assert value({name: sketch([name]) for name in names}).get_estimate() == 3000
    deep = "(" * 5000 + "a" + ") & a" * 5000
    assert parse(deep)[1]({"a": sketch([1, 2])}).get_estimate() == 2
    with pytest.raises(PenstockError, match="a parenthesis is not closed") as raised:
        parse("(" * 5000 + "a")
    assert len(str(raised.value)) < 400


def test_an_expression_of_large_sets_is_near() -> None:
    _, value = parse("a - b | c")
    ranges = {"a": range(50_000), "b": range(25_000, 99_000), "c": range(200_000, 210_000)}
    found = value({name: sketch(some) for name, some in ranges.items()})
    assert found.is_estimation_mode() and found.get_lower_bound(3) < 35_000 < found.get_upper_bound(3)


TIMES = st.datetimes(naive(1999, 12, 1), naive(2031, 2, 1)).map(
    lambda time: time.replace(second=0, microsecond=0, tzinfo=UTC)
)


@settings(max_examples=150)
@given(TIMES, st.timedeltas(MINUTE, timedelta(days=900)).map(lambda time: time // MINUTE * MINUTE))
def test_any_time_is_covered_exactly_once_by_few_rows(since: datetime, length: timedelta) -> None:
    at, rows = since, 0
    for level, span, first, stop in parts(since, since + length):
        assert first == at < stop and begin(first, level) == first and begin(stop, level) == stop
        # All rows of a part are in one partition.
        last = stop - LENGTHS[level]
        assert first.strftime(SPANS[level]) == last.strftime(SPANS[level]) == span
        at, rows = stop, rows + (stop - first) // LENGTHS[level]
    assert at == since + length
    # At both ends at most 9 minutes, 5 times ten minutes, 5 hours and 3 quarters; days between.
    assert rows <= 2 * (9 + 5 + 5 + 3) + length // timedelta(days=1)


@given(st.datetimes(naive(1970, 1, 1), naive(2100, 1, 1)).map(lambda time: time.replace(tzinfo=UTC)))
def test_a_time_is_in_one_row_of_each_level(at: datetime) -> None:
    for level, length in LENGTHS.items():
        first = begin(at, level)
        assert first <= at < first + length and begin(first, level) == first
    day = begin(at, "day")
    assert (day.hour, day.minute, day.second, day.microsecond) == (0, 0, 0, 0) and day.date() == at.date()


@pytest.mark.parametrize(
    ("since", "until"),
    [
        (naive(2026, 3, 1, 10), naive(2026, 3, 1, 10)),
        (naive(2026, 3, 1, 10, 0, 1), naive(2026, 3, 1, 10, 0, 59)),
        (naive(2026, 3, 2), naive(2026, 3, 1)),
        # The same moment in two zones.
        (datetime(2026, 3, 1, 10, tzinfo=timezone(timedelta(hours=1))), naive(2026, 3, 1, 9)),
    ],
)
def test_a_range_without_a_whole_minute_is_refused(since: datetime, until: datetime) -> None:
    with pytest.raises(PenstockError, match=r"no whole minute from .*use a range of a minute or more"):
        counts("k", hosts=NOWHERE).count("a", since, until)


@pytest.mark.parametrize(
    ("since", "until"),
    [
        (naive(9999, 12, 31, 23), naive(9999, 12, 31, 23, 30)),
        (datetime(1, 1, 1, 0, 30, tzinfo=timezone(timedelta(hours=5))), naive(2026, 1, 1)),
    ],
)
def test_a_range_beyond_the_calendar_is_refused(since: datetime, until: datetime) -> None:
    with pytest.raises(PenstockError, match=r"exceeds the calendar.*between the years 2 and 9998"):
        counts("k", hosts=NOWHERE).count("a", since, until)


def test_a_wrong_expression_is_refused_before_the_database_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member_counts, "connection", pytest.fail)
    with pytest.raises(PenstockError, match="invalid segment expression"):
        counts("k", hosts=NOWHERE).count("a &", naive(2026, 1, 1), naive(2026, 1, 2))


def test_a_count_reads_each_name_once_and_unites_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []
    stored = {
        ("a", "day", datetime(2026, 3, 2, tzinfo=UTC)): sketch("12"),
        ("a", "hour", datetime(2026, 3, 3, tzinfo=UTC)): sketch("23"),
        ("b", "hour", datetime(2026, 3, 3, tzinfo=UTC)): sketch("3"),
    }

    def read(self: Counts, some: list[tuple[Any, ...]]) -> list[list[Any]]:
        asked.extend(some)
        return [
            [
                (made.serialize(),)
                for (of, at_level, at), made in stored.items()
                if (of, at_level) == (name, level) and first <= at < before
            ]
            for name, level, _, first, before in some
        ]

    monkeypatch.setattr(Counts, "_read", read)
    # Naive times are UTC, and seconds do not count.
    found = counts("k", hosts=NOWHERE).count("a - b | a & a", naive(2026, 3, 2, 0, 0, 30), naive(2026, 3, 3, 1))
    assert (found.members, found.low, found.high, found.exact) == (3, 3, 3, True)
    spans = [("day", "2026", 2), ("hour", "2026-03", 3)]
    assert [(name, level, span, first.day) for name, level, span, first, _ in asked] == [
        (name, *span) for name in ("a", "b") for span in spans
    ]
    assert counts("k", hosts=NOWHERE).count("a - b", naive(2026, 3, 2), naive(2026, 3, 3, 1)).members == 2
