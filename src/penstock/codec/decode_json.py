"""Decodes JSON objects into columns: one whole object and nothing else, as RFC 8259 has it.

Spark's parser takes more, and without a word: what follows the object, single quotes, NaN and infinities, numbers too
large for a double, half of a surrogate pair, and any number as a time in seconds, though it is in the year 57971. Such
a value is bad here.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Literal, TypeAlias, cast, get_args

from pyspark.sql import Column, functions as F, types as st

from penstock.codec.decode_columns import (
    CORRUPT,
    ENDLESS,
    NOT_FRAMED,
    behind_frame,
    endless,
    is_framed,
    once,
    with_corrupt,
    wrong_type,
)
from penstock.codec.problem import shown

Epoch: TypeAlias = Literal["seconds", "millis", "micros"]
EPOCHS = get_args(Epoch)
MICROS = {"seconds": 1_000_000, "millis": 1_000, "micros": 1}
FIRST, LAST = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The years 1 to 9999, which other programs read, in microseconds from 1970."""
STRICT = {"mode": "PERMISSIVE", "allowSingleQuotes": "false", "allowNonNumericNumbers": "false"}
_END = "_penstock_end"
# A backslash that is not itself escaped, `u`, and a half of a pair without the other half.
_HIGH, _LOW = r"\\u[dD][89abAB][0-9a-fA-F]{2}", r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_UNESCAPED = r"(?<!\\)(?:\\\\)"
_HALF = rf"{_UNESCAPED}*+(?:{_HIGH}(?!{_LOW})|{_LOW}(?<!{_UNESCAPED}{{0,99}}{_HIGH}{_LOW}))"


@dataclass(frozen=True)
class JsonDecoder:
    """JSON objects; with `framed` they follow the five bytes of Confluent's wire format.

    A number in a timestamp column counts `epoch` since 1970, whole ones only.
    """

    schema: st.StructType
    framed: bool = False
    epoch: Epoch = "seconds"

    def decode(self, value: Column) -> Column:
        text = self._text(value)
        good = F.when(~endless(text, self.schema) & ~_has_half(text) & _is_whole(text), text)
        # Not as strict as before: numbers that JSON lacks are strings, as the sinks write them.
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
        read = F.from_json(good, with_corrupt(self.schema), options)
        if not _is_limited(self.schema):
            return read
        numbers = cast(st.StructType, _counted(self.schema))
        counts = F.from_json(good, numbers, STRICT) if _has_times(self.schema) else F.lit(None)
        return once(F.struct(read.alias("read"), counts.alias("counts")), lambda both: self._limited(both, good))

    def reason(self, decoded: Column, value: Column) -> Column:
        text = self._text(value)
        bad = decoded.isNull() | decoded.getField(CORRUPT).isNotNull()
        no_object = F.concat(F.lit("not a JSON object: "), shown(text))

        def wrong(members: Column) -> Column:
            pairs = [
                wrong_type(field, decoded.getField(field.name), members.getItem(field.name)) for field in self.schema
            ]
            named = F.coalesce(*pairs, F.concat(F.lit("values of other types: "), shown(text)))
            return F.when(members.isNull(), no_object).otherwise(named)

        reason = (
            F.when(~F.is_valid_utf8(text), "not valid UTF-8")
            .when(endless(text, self.schema), F.concat(F.lit(ENDLESS), shown(text)))
            .when(text.startswith("["), F.concat(F.lit("an array, not an object: "), shown(text)))
            .when(_has_half(text), F.concat(F.lit("not a JSON object, with half of a surrogate pair: "), shown(text)))
            .when(bad & ~_is_whole(text), no_object)
            .when(bad, once(F.from_json(text, "map<string, string>", STRICT), wrong))
        )
        return F.when(~is_framed(value), NOT_FRAMED).otherwise(reason) if self.framed else reason

    def _text(self, value: Column) -> Column:
        return behind_frame(value).cast("string") if self.framed else value.cast("string")

    def _limited(self, both: Column, text: Column) -> Column:
        """The object as it was read, with null for what is beyond its limits, and then with the text as corrupt."""
        read, counts = both.getField("read"), both.getField("counts")
        limits = _Limits(MICROS[self.epoch], text.contains('Infinity"') | text.contains('INF"'))
        pairs = [(field, read.getField(field.name), _of(counts, field)) for field in self.schema]
        fields = [limits.value(value, count, field.dataType).alias(field.name) for field, value, count in pairs]
        beyond = [
            limits.exceeds(value, count, field.dataType) for field, value, count in pairs if _is_limited(field.dataType)
        ]
        corrupt = F.when(reduce(lambda either, other: either | other, beyond), text)
        return F.when(read.isNotNull(), F.struct(*fields, F.coalesce(read.getField(CORRUPT), corrupt).alias(CORRUPT)))


@dataclass(frozen=True)
class _Limits:
    """What Spark reads and is not a value of its type: times outside the years, by their `unit`, and too large numbers.

    `infinite` says whether the text writes infinity in quotes, as the sinks do: then it was not a number.
    """

    unit: int
    infinite: Column

    def value(self, value: Column, count: Column, kind: st.DataType) -> Column:
        """The value within its limits; `count` is the number of which Spark has made a time, null if there is none."""
        if not _is_limited(kind):
            return value
        if isinstance(kind, st.TimestampType):
            first, last = -(-FIRST // self.unit), LAST // self.unit
            number = F.when(count.between(first, last), F.timestamp_micros(count * self.unit))
            text = F.when(F.unix_micros(value).between(FIRST, LAST), value)
            return F.when(count.isNotNull(), number).otherwise(text)
        if isinstance(kind, st.StructType):
            parts = ((field, value.getField(field.name), _of(count, field)) for field in kind)
            fields = [self.value(part, number, field.dataType).alias(field.name) for field, part, number in parts]
            return F.when(value.isNotNull(), F.struct(*fields))
        if isinstance(kind, st.ArrayType | st.MapType):
            return _each(value, count, kind, self.value)
        return F.when((F.abs(value) != float("inf")) | self.infinite, value)

    def exceeds(self, value: Column, count: Column, kind: st.DataType) -> Column:
        """Whether the value, or one in it, is beyond its limits."""
        if isinstance(kind, st.StructType):
            parts = [field for field in kind if _is_limited(field.dataType)]
            exceeded = [self.exceeds(value.getField(field.name), _of(count, field), field.dataType) for field in parts]
            return reduce(lambda either, other: either | other, exceeded)
        if isinstance(kind, st.ArrayType | st.MapType):
            each = _each(value, count, kind, self.exceeds)
            values = F.map_values(each) if isinstance(kind, st.MapType) else each
            return F.coalesce(F.exists(values, lambda is_beyond: is_beyond), F.lit(False))
        return (value.isNotNull() | count.isNotNull()) & self.value(value, count, kind).isNull()


def _each(
    value: Column, count: Column, kind: st.ArrayType | st.MapType, use: Callable[[Column, Column, st.DataType], Column]
) -> Column:
    """`use` of each element of an array, or value of a map, and of its count."""
    inner = kind.elementType if isinstance(kind, st.ArrayType) else kind.valueType
    none = F.lit(None).cast(_counted(inner))
    if isinstance(kind, st.ArrayType):
        both = F.zip_with(value, count, lambda element, number: use(element, number, inner))
        return F.when(count.isNotNull(), both).otherwise(F.transform(value, lambda element: use(element, none, inner)))
    pairs = F.map_zip_with(value, count, lambda _, element, number: use(element, number, inner))
    return F.when(count.isNotNull(), pairs).otherwise(
        F.transform_values(value, lambda _, element: use(element, none, inner))
    )


def _of(counts: Column, field: st.StructField) -> Column:
    """The count of a field, null for a field without times."""
    if _has_times(field.dataType):
        return counts.getField(field.name)
    return F.lit(None).cast(_counted(field.dataType))


def _counted(kind: st.DataType) -> st.DataType:
    """The type with numbers for times, and without what has no times."""
    if isinstance(kind, st.TimestampType):
        return st.LongType()
    if isinstance(kind, st.StructType):
        fields = [st.StructField(field.name, _counted(field.dataType)) for field in kind if _has_times(field.dataType)]
        return st.StructType(fields)
    if isinstance(kind, st.ArrayType):
        return st.ArrayType(_counted(kind.elementType))
    return st.MapType(kind.keyType, _counted(kind.valueType)) if isinstance(kind, st.MapType) else kind


def _leaves(kind: st.DataType) -> Iterator[st.DataType]:
    if isinstance(kind, st.StructType):
        for field in kind:
            yield from _leaves(field.dataType)
    elif isinstance(kind, st.ArrayType):
        yield from _leaves(kind.elementType)
    elif isinstance(kind, st.MapType):
        yield from _leaves(kind.valueType)
    else:
        yield kind


def _has_times(kind: st.DataType) -> bool:
    return any(isinstance(leaf, st.TimestampType) for leaf in _leaves(kind))


def _is_limited(kind: st.DataType) -> bool:
    """Whether Spark reads values that are beyond the type's limits here."""
    return any(isinstance(leaf, st.TimestampType | st.FloatType | st.DoubleType) for leaf in _leaves(kind))


def _is_whole(text: Column) -> Column:
    """Whether the text is one value of JSON and nothing else.

    Spark's parser ends with the value. As the first element of an array it is followed by an element of ours only if
    nothing else is between; no text contains ours, which is drawn for each query.
    """
    mark = uuid.uuid4().hex
    array = F.concat(F.lit("["), text, F.lit(f',{{"{_END}":"{mark}"}}]'))
    parsed = F.from_json(array, f"array<struct<{_END}: string>>", STRICT)
    return once(
        parsed,
        lambda elements: F.coalesce((F.size(elements) == 2) & (elements[1].getField(_END) == mark), F.lit(False)),
    )


def _has_half(text: Column) -> Column:
    """Whether the text escapes half of a surrogate pair (RFC 8259, section 8.2)."""
    return F.coalesce(text.contains(r"\u") & text.rlike(_HALF), F.lit(False))
