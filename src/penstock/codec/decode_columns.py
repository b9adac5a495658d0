"""Decodes bytes of records into columns, and gives a reason for each record that cannot be decoded.

Everything is a Spark expression, so decoding is compiled and pruned with the rest of the query. Reasons are computed
for bad records only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Protocol

from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.sql import Column, functions as F, types as st

from penstock.codec.problem import shown
from penstock.codec.registry import Registry
from penstock.errors import PenstockError, first_line
from penstock.spark_runtime import casts

CORRUPT = "_penstock_corrupt"
FRAME = 5
"""Bytes before the record in Confluent's wire format: a zero byte and the schema id."""


class Decoder(Protocol):
    """How values become rows."""

    @property
    def schema(self) -> st.StructType:
        """The decoded columns."""

    def decode(self, value: Column) -> Column:
        """A struct with the columns of `schema`, null where they cannot be read; `value` is binary and may be null."""

    def reason(self, decoded: Column, value: Column) -> Column:
        """Why a value cannot be read; null for good values and for null."""


@dataclass(frozen=True)
class CsvDecoder:
    """Lines of CSV (RFC 4180) with values in the order of the schema."""

    schema: st.StructType
    separator: str = ","

    def decode(self, value: Column) -> Column:
        return self._parsed(value.cast("string"), self.schema)

    def reason(self, decoded: Column, value: Column) -> Column:
        text = value.cast("string")
        plain = self._parsed(text, st.StructType([st.StructField(name, st.StringType()) for name in self.schema.names]))
        wrong = [wrong_type(field, decoded.getField(field.name), plain.getField(field.name)) for field in self.schema]
        count = F.concat(F.lit(f"not {len(self.schema)} values: "), shown(text))
        bad = decoded.isNull() | decoded.getField(CORRUPT).isNotNull()
        # With one column an empty line is a null; with more it lacks values.
        few = F.length(text) == 0 if len(self.schema) > 1 else F.lit(False)
        reason = F.when(~F.is_valid_utf8(text), "not valid UTF-8").when(few, count)
        reason = reason.when(endless(text, self.schema), F.concat(F.lit(ENDLESS), shown(text)))
        return reason.when(bad, F.coalesce(*wrong, count))

    def _parsed(self, text: Column, schema: st.StructType) -> Column:
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT, "sep": self.separator, "escape": '"'}
        # An empty field is null, and `""` is the empty string: by default both are null.
        options["nullValue"] = "\0\0"
        return F.from_csv(F.when(~endless(text, schema), text), with_corrupt(schema).simpleString(), options)


ENDLESS = "a number with an exponent of four digits: "
_EXPONENT = r"(?:^|[:,;|\t\[\"])\s*+[-+]?[0-9.]++[eE][-+]?0*+[1-9][0-9]{3,}+\s*+(?:$|[,;|\t\]}\"])"


def endless(text: Column, schema: st.StructType) -> Column:
    """Whether Spark might never finish parsing: it expands 1e99999999 to all its digits for a decimal column."""
    return F.coalesce(text.rlike(_EXPONENT), F.lit(False)) if _has_decimals(schema) else F.lit(False)


def _has_decimals(kind: st.DataType) -> bool:
    if isinstance(kind, st.StructType):
        return any(_has_decimals(field.dataType) for field in kind)
    if isinstance(kind, st.ArrayType):
        return _has_decimals(kind.elementType)
    if isinstance(kind, st.MapType):
        return _has_decimals(kind.valueType)
    return isinstance(kind, st.DecimalType)


def once(value: Column, use: Callable[[Column], Column]) -> Column:
    """`use(value)`, which may name the value often: Spark computes it once, and the plan has it once.

    Not for what every row needs: Spark does not compile it.
    """
    return F.transform(F.array(value), use)[0]


NOT_FRAMED = "not in Confluent's wire format: no zero byte with a schema id at the start"


def behind_frame(value: Column) -> Column:
    return F.substring(value, FRAME + 1, 1 << 30)


def is_framed(value: Column) -> Column:
    return (F.length(value) >= FRAME) & (F.substring(value, 1, 1) == F.lit(b"\0"))


def with_corrupt(schema: st.StructType) -> st.StructType:
    """The schema with all fields optional, because `missing` reports nulls, and with the column for corrupt records."""
    fields = [st.StructField(field.name, field.dataType) for field in schema]
    return st.StructType([*fields, st.StructField(CORRUPT, st.StringType())])


def struct_of(schema: str | st.StructType, where: str) -> st.StructType:
    """The schema as a struct type; a string is parsed as Spark's DDL.

    Raises PenstockError if the string is not a valid schema, or there is no Spark session, whose JVM parses it.
    """
    if not isinstance(schema, str):
        return schema
    next = 'write it as "id int NOT NULL, name string"'
    try:
        parsed = st.StructType.fromDDL(schema)
    except PySparkRuntimeError as error:
        # With its cause: `penstock run` loads a file that needs a session again, with one.
        raise PenstockError(
            "Spark reads the schema, and there is no Spark session yet",
            where=where,
            next="make one first, with penstock.spark(), or give the schema as a StructType",
        ) from error
    except PySparkException as error:
        raise PenstockError(f"the schema cannot be read: {first_line(error)}", where=where, next=next) from None
    if not isinstance(parsed, st.StructType):
        raise PenstockError(f"the schema has no columns: {schema!r}", where=where, next=next)
    return parsed


def schemas_of(registry: Registry, subject: str, kind: str, others: str) -> list[tuple[int, str]]:
    """Id and text of each version of a subject, oldest first.

    Raises PenstockError if a version is not of the kind `kind`; `others` names the formats for other kinds.
    """
    versions = registry.schemas(subject)
    if wrong := {each for _, _, each in versions if each != kind}:
        raise PenstockError(
            f"the subject {subject} has schemas of the kind {', '.join(sorted(wrong))}",
            where=registry.url,
            next=f"read the topic with format={others}",
        )
    return [(number, text) for number, text, _ in versions]


def chosen(has: st.StructType, wanted: st.StructType | None, where: str) -> st.StructType:
    """The wanted columns of a registered schema, all if `wanted` is None.

    Raises PenstockError if a wanted column is missing or has another type.
    """
    if wanted is None:
        return has
    for field in wanted:
        if field.name not in has.names:
            raise PenstockError(
                f"the newest schema has no field {field.name}",
                where=where,
                next=f"use its fields: {', '.join(has.names)}",
            )
        registered = has[field.name].dataType
        newest, asked = registered.simpleString(), field.dataType.simpleString()
        if newest != asked:
            raise PenstockError(
                f"{field.name} is {newest} in the newest schema, not {asked}",
                where=where,
                next=f"read it as {newest}, and {casts.advice(field.name, registered, field.dataType)}",
            )
    return wanted


def missing(schema: st.StructType) -> Column:
    """A reason that names the NOT NULL columns that are null; null if there are none."""
    names = [F.when(F.col(field.name).isNull(), field.name) for field in schema if not field.nullable]
    if not names:
        return F.lit(None).cast("string")
    any_null = reduce(lambda either, name: either | name.isNotNull(), names[1:], names[0].isNotNull())
    return F.when(any_null, F.concat(F.lit("missing or null: "), F.concat_ws(", ", *names)))


def wrong_type(field: st.StructField, read: Column, text: Column) -> Column:
    """A reason for a value that does not have the field's type, else null."""
    said = F.concat(F.lit(f"{field.name} is not a valid {field.dataType.simpleString()}: "), shown(text))
    return F.when(read.isNull() & text.isNotNull(), said)
