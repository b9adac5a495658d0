"""Java's patterns of dates and times against Python's clock, what is refused, and the codecs of topics."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, strategies as st

from penstock.connect.java.date_patterns import WrongPattern
from penstock.connect.java.date_time_formatter import NAMED, Moment, date_pattern, zone_of
from penstock.connect.records.record import Date, TimeOfDay, Timestamp
from penstock.connect.sinks.cql.topic_codecs import SEPARATORS, TopicCodec
from penstock.connect.sinks.cql.values import cell
from penstock.connect.sinks.destination import Unfit
from penstock.database.cql_types import CqlType, parse_type

UTC = dt.UTC
EPOCH = dt.datetime(1970, 1, 1, tzinfo=UTC)
MILLI = dt.timedelta(milliseconds=1)
OFFSETS = st.integers(-14 * 60, 14 * 60).map(lambda minutes: dt.timezone(dt.timedelta(minutes=minutes)))
FIRST, LAST = dt.datetime(1000, 1, 2, tzinfo=UTC), dt.datetime(9999, 12, 30, tzinfo=UTC)
TIMES = st.datetimes(FIRST.replace(tzinfo=None), LAST.replace(tzinfo=None), timezones=OFFSETS)


def kind(text: str) -> CqlType:
    return parse_type(text, {"address": (("street", "since"), ("text", "date"))})


def codec(**options: Any) -> TopicCodec:
    own = {"locale": "en_US", "zone": "UTC", "timestamp": "CQL_TIMESTAMP", "date": "ISO_LOCAL_DATE"}
    return TopicCodec(**{**own, "time": "ISO_LOCAL_TIME", "unit": 1_000_000, **options})


def read(pattern: str, text: str) -> Moment:
    return date_pattern(pattern, names=True).read(text)


# By the pattern in Java: the same in Python, and how much of a second it tells, in nanoseconds.
SAME = {
    "yyyy-MM-dd'T'HH:mm:ssXXX": ("%Y-%m-%dT%H:%M:%S%:z", 10**9),
    "uuuuMMddHHmmssSSSSSSZ": ("%Y%m%d%H%M%S%f%z", 1000),
    "d/M/y h:m:s a x": ("{0.day}/{0.month}/{0.year} {1}:{0.minute}:{0.second} %p %z", 10**9),
    "dd MMM uuuu HH:mm:ss.SSSSSSXX": ("%d %b %Y %H:%M:%S.%f%z", 1000),
    "MMMM d, yyyy 'at' hh 'o''clock' mm ss a[ X][ XXX]": ("%B {0.day}, %Y at %I o'clock %M %S %p %:z", 10**9),
}


@given(at=TIMES)
@pytest.mark.parametrize(("pattern", "written"), SAME.items())
def test_patterns_read_what_the_clock_writes(pattern: str, written: tuple[str, int], at: dt.datetime) -> None:
    text, precision = written
    zone = at.strftime("%z")
    text = text.replace("%:z", f"{zone[:3]}:{zone[3:]}").replace("%Y", f"{at.year:04}")
    text = at.strftime(text.format(at, at.hour % 12 or 12))
    found = read(pattern, text)
    nanos = ((at.hour * 60 + at.minute) * 60 + at.second) * 10**9 + at.microsecond * 1000
    assert found == Moment(at.date(), nanos - nanos % precision, found.zone)
    assert found.zone is not None and found.zone.utcoffset(None) == at.utcoffset()
    assert found.millis(UTC) == (at - EPOCH) // MILLI - (at.microsecond // 1000 if precision == 10**9 else 0)


@given(at=TIMES)
def test_named_formats_read_iso_text(at: dt.datetime) -> None:
    wanted = (at - EPOCH) // MILLI
    for name in ("ISO_OFFSET_DATE_TIME", "ISO_DATE_TIME", "ISO_ZONED_DATE_TIME", "ISO_INSTANT", "CQL_TIMESTAMP"):
        assert read(name, at.isoformat()).millis(UTC) == wanted, name
    assert read("CQL_TIMESTAMP", at.isoformat(" ", "microseconds")).millis(UTC) == wanted
    assert read("ISO_LOCAL_DATE", at.date().isoformat()).day == at.date()
    nanos = read("ISO_LOCAL_TIME", at.time().isoformat()).nanos
    assert nanos == ((at.hour * 60 + at.minute) * 60 + at.second) * 10**9 + at.microsecond * 1000
    assert read("BASIC_ISO_DATE", at.strftime("{:04}%m%d").format(at.year)).day == at.date()


@pytest.mark.parametrize("name", NAMED)
def test_named_formats_are_patterns_that_refuse_other_text(name: str) -> None:
    for text in ("", "x", "2018-13-09", "25:00", "2018-02-30", "2018-02-30T12:00:00Z", "9" * 200, "२०१८-०३-०९"):
        with pytest.raises(ValueError, match=r"it does not fit|month|day|time"):
            read(name, text)


@pytest.mark.parametrize(
    ("pattern", "text", "wanted"),
    [
        ("yy-M-d", "18-3-9", dt.date(2018, 3, 9)),
        ("d.MMM.y", "9.sEp.2018", dt.date(2018, 9, 9)),
        ("yyyy-MM-dd[ HH:mm]", "2018-03-09", dt.date(2018, 3, 9)),
        ("yMMdd", "20180309", dt.date(2018, 3, 9)),
    ],
)
def test_days(pattern: str, text: str, wanted: dt.date) -> None:
    assert read(pattern, text).day == wanted


def test_hours_of_one_or_two_digits_before_minutes_of_two() -> None:
    assert [read("Hmm", text).nanos for text in ("930", "1030")] == [9.5 * 3600 * 10**9, 10.5 * 3600 * 10**9]


def test_a_local_time_is_of_the_zone_and_has_the_earlier_of_two_offsets() -> None:
    paris = zone_of("Europe/Paris")
    for text, wanted in (
        ("2018-03-09T17:12:32", "2018-03-09T16:12:32"),
        ("2018-10-28T02:30:00", "2018-10-28T00:30:00"),
        ("2018-03-25T02:30:00", "2018-03-25T01:30:00"),
        ("2018-03-09T17:12:32+05:00", "2018-03-09T12:12:32"),
    ):
        utc = dt.datetime.fromisoformat(wanted).replace(tzinfo=UTC)
        assert read("ISO_DATE_TIME", text).millis(paris) == (utc - EPOCH) // MILLI
    zoned = read("ISO_ZONED_DATE_TIME", "2018-03-09T17:12:32.584+01:00[Europe/Paris]").millis(UTC)
    assert zoned == (dt.datetime(2018, 3, 9, 16, 12, 32, 584_000, UTC) - EPOCH) // MILLI
    assert read("yyyy-MM-dd HH VV", "2018-07-09 17 Europe/Paris").zone == ZoneInfo("Europe/Paris")


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("EEE, d MMM yyyy", "EEE is not supported"),
        ("yyyy-MM-dd z", "z is not supported"),
        ("yyyyy", "yyyyy is not supported"),
        ("ddd", "ddd is not supported"),
        ("yyyy-MM-dd HH:mm:ss.SSSSSSSSSS", "is not supported"),
        ("RFC_1123_DATE_TIME", "RFC_1123_DATE_TIME is not supported; use a pattern, or one of BASIC_ISO_DATE"),
        ("hh:mm", "h is an hour of half a day"),
        ("dM", "before M is a number of any length"),
        ("[d][M]", "before M is a number of any length"),
        ("yyyy]", "it has ] without ["),
        ("yyyy'T", "a quote is not closed"),
        ("yyyy#", "# must be in quotes"),
        ("yyyy\0", "it must be a pattern"),
        ("", "it must be a pattern"),
        ("d-" * 51, "it must be a pattern of at most 100 characters"),
    ],
)
def test_patterns_that_java_reads_otherwise_are_refused(pattern: str, why: str) -> None:
    with pytest.raises(WrongPattern) as told:
        date_pattern(pattern, names=True)
    assert why in str(told.value)
    with pytest.raises(WrongPattern, match=r"codec.locale=en_US"):
        date_pattern("MMM", names=False)


@pytest.mark.parametrize("text", ["", "Mars", "../../etc/passwd", "Europe", "+19:00", "+01:99", "Europe/Paris\0"])
def test_zones_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="is not"):
        zone_of(text)


def test_zones() -> None:
    for text, hours in (("UTC", 0.0), ("Z", 0), ("+01:00", 1), ("GMT+2", 2), ("UTC-0330", -3.5), ("+1", 1)):
        assert zone_of(text).utcoffset(None) == dt.timedelta(hours=hours)


@given(st.text(max_size=30), st.sampled_from([*NAMED, "d/M/y h:m:s a", "yyyyMMddHHmmss[SSS][XXX]"]))
def test_any_text_is_a_value_or_an_error_of_its_record(text: str, pattern: str) -> None:
    for name in ("timestamp", "date", "time", "int", "decimal", "boolean", "text", "list<date>", "frozen<address>"):
        own = codec(timestamp=pattern, date=pattern, time=pattern, locale="de_DE")
        try:
            cell(kind(name), own.value(kind(name), text, typed=False))
        except Unfit as error:
            assert str(error)


# Codecs.


def cells(own: TopicCodec, name: str, value: Any, *, typed: bool = False) -> bytes | None:
    return cell(kind(name), own.value(kind(name), value, typed=typed))


@given(st.decimals(-(10**9), 10**9, allow_nan=False, places=3), st.sampled_from(sorted(SEPARATORS)))
def test_numbers_with_the_separators_of_a_locale(number: Decimal, locale: str) -> None:
    group, point = SEPARATORS[locale]
    text = f"{number:,}".replace(",", "g").replace(".", point).replace("g", group)
    plain = f"{number}".replace(".", point)
    for written in (text, plain):
        assert cells(codec(locale=locale), "decimal", written) == cell(kind("decimal"), number)
        assert cells(codec(locale=locale), "double", written) == cell(kind("double"), float(number))
    whole = f"{int(number):,}".replace(",", group)
    assert cells(codec(locale=locale), "bigint", whole) == cell(kind("bigint"), int(number))


def test_numbers_whose_reading_is_not_clear_are_refused() -> None:
    for locale, text in (("en_US", "1,5"), ("de_DE", "1.5"), ("de_DE", "1234.567"), ("fr_FR", "1,234,567")):
        with pytest.raises(Unfit):
            cells(codec(locale=locale), "decimal", text)
    assert cells(codec(), "int", "5.0") == cells(codec(), "int", " 5 ") == cell(kind("int"), 5)
    assert cells(codec(), "double", "-1.5e3") == cell(kind("double"), -1500.0)


def test_timestamps_are_text_of_the_pattern_or_numbers_of_the_unit() -> None:
    millis = int(dt.datetime(2018, 3, 9, 16, 12, 32, tzinfo=UTC).timestamp() * 1000)
    wanted = cell(kind("timestamp"), Timestamp(millis))
    french = {"zone": "Europe/Paris", "unit": 10**9}
    for own, value, typed in (
        (codec(unit=10**9), millis // 1000, True),
        (codec(unit=10**9), str(millis // 1000), False),
        (codec(unit=1000), millis * 1000 + 999, False),
        (codec(unit=1), millis * 10**6, True),
        (codec(), Timestamp(millis), True),
        (codec(zone="Europe/Paris"), "2018-03-09 17:12:32", True),
        (codec(zone="Europe/Paris"), "2018-03-09T16:12:32.000999Z", True),
        (codec(**french, timestamp="UNITS_SINCE_EPOCH"), millis // 1000, False),
        (codec(**french, timestamp="UNITS_SINCE_EPOCH"), "1,520,611,952", False),
        (codec(zone="Europe/Paris", timestamp="yyyyMMddHHmmss"), 20180309171232, False),
    ):
        assert cells(own, "timestamp", value, typed=typed) == wanted, (own, value)
    # A number with a schema is never digits of a pattern: 1712-01-02 03.
    digits = codec(timestamp="yyyyMMddHH", unit=10**9)
    assert cells(digits, "timestamp", 1712010203, typed=True) == cell(kind("timestamp"), Timestamp(1712010203000))
    with pytest.raises(Unfit, match=r"codec.timestamp=dd/MM/yyyy"):
        cells(codec(timestamp="dd/MM/yyyy"), "timestamp", "2018-03-09")


def test_dates_and_times_are_text_or_digits_of_the_pattern() -> None:
    own = codec(date="dd.MM.yyyy", time="HHmmssSSS", zone="Europe/Paris")
    day = cell(kind("date"), Date(17599))
    assert cells(own, "date", "09.03.2018") == cells(own, "date", Date(17599), typed=True) == day
    assert cells(own, "time", 171232584) == cells(own, "time", "171232584") == cell(kind("time"), "17:12:32.584")
    assert cells(own, "time", TimeOfDay(1), typed=True) == cell(kind("time"), TimeOfDay(1))
    units = codec(date="UNITS_SINCE_EPOCH", time="UNITS_SINCE_EPOCH", unit=1, zone="Europe/Paris")
    assert cells(units, "date", 17598 * 86_400 * 10**9 + 23 * 3600 * 10**9) == day
    assert cells(units, "time", 7) == cell(kind("time"), "01:00:00.000000007")
    for name, value, typed in (("date", "2018-03-09", False), ("time", 171232584, True), ("date", 17599, True)):
        with pytest.raises(Unfit):
            cells(own, name, value, typed=typed)


def test_other_values() -> None:
    own = codec(date="dd.MM.yyyy")
    value: Any
    for value, wanted in (("yes", True), ("F", False), (1, True), (0, False), (True, True), ("TRUE", True)):
        assert cells(own, "boolean", value) == cell(kind("boolean"), wanted)
    for value, text in ((5, "5"), (1.5, "1.5"), (Decimal("1.50"), "1.50"), (True, "true")):
        assert cells(own, "text", value) == text.encode()
    assert cells(own, "text", {"ä": [1, None]}) == '{"ä":[1,null]}'.encode()
    assert cells(own, "int", True) == cell(kind("int"), 1)
    assert cells(own, "int", "") is None and cells(own, "text", "") == b""
    days = ["09.03.2018", "10.03.2018"]
    plain = ["2018-03-09", "2018-03-10"]
    assert cells(own, "vector<float, 2>", ["1,000.5", 2]) == cell(kind("vector<float, 2>"), [1000.5, 2.0])
    for name in ("list<date>", "set<date>", "tuple<date, date>"):
        assert cells(own, name, days) == cells(own, name, json.dumps(days)) == cell(kind(name), plain)
    assert cells(own, "map<date, int>", {days[0]: "1"}) == cell(kind("map<date, int>"), {plain[0]: 1})
    nested = "map<frozen<list<int>>, frozen<list<date>>>"
    assert cells(own, nested, {"[1]": days}) == cell(kind(nested), {"[1]": plain})
    address = {"street": 5, "since": days[0]}
    assert cells(own, "frozen<address>", address) == cell(kind("address"), {"street": "5", "since": plain[0]})
    for name, value in (("list<date>", [1.5]), ("tuple<date, date>", days[:1]), ("frozen<address>", {"other": 1})):
        with pytest.raises(Unfit):
            cells(own, name, value)
    with pytest.raises(Unfit, match="JSON has no bytes"):
        cells(own, "text", {"a": b""})
