"""Reads records that are a line of CSV (RFC 4180): `io.penstock.connect.CsvConverter`, which only sinks have.

A line does not say what its fields are, so the converter's options name the columns, and their types if they are not
text.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.codec import exact_json
from penstock.codec.connect_schema import Schema
from penstock.connect.definition import REQUIRED, Property
from penstock.connect.java import numbers as java_numbers
from penstock.connect.records.column_numbers import DOUBLE, FLOAT, binary
from penstock.connect.records.record import INTEGERS, NOTHING, NoValue, Part

CLASS = "io.penstock.connect.CsvConverter"
TYPES = ("string", "boolean", *INTEGERS, "float", "double")
_DIGITS = re.compile(r"[+-]?[0-9.]+([eE][+-]?[0-9]+)?")
_COLUMN = re.compile(r"(.+?)(?::([a-z0-9]+))?")
# Records are as large as Kafka lets them be; the limit is for files of which nothing is known.
csv.field_size_limit(min(sys.maxsize, (1 << 31) - 1))


def _columns(values: list[str]) -> str | None:
    try:
        names = [name for name, _ in columns(values)]
    except ValueError as error:
        return str(error)
    if not names:
        return "it must have the names of the columns"
    twins = [name for name in names if names.count(name) > 1]
    return f"the column {twins[0]} occurs twice" if twins else None


def columns(values: Sequence[str]) -> list[tuple[str, str]]:
    """Names and types of columns, each given as `name` or `name:type`; raises ValueError."""
    named = []
    for text in values:
        match = _COLUMN.fullmatch(text)
        if match is None or (match[2] or TYPES[0]) not in TYPES:
            raise ValueError(f"{text!r} is not a name, or name:type with one of {', '.join(TYPES)}")
        named.append((match[1], match[2] or TYPES[0]))
    return named


def _character(text: str) -> str | None:
    character = unescaped(text)
    return None if len(character) == 1 and character not in "\r\n" else "it must be one character, or tab"


def unescaped(text: str) -> str:
    """The character; properties have no space at their ends, so that a tab is written as a word."""
    return "\t" if text in ("tab", "\\t") else text


OPTIONS = (
    Property("columns", "LIST", REQUIRED, "The columns, each a name or name:type.", _columns, "HIGH"),
    Property("delimiter", "STRING", ",", "The character between fields, or tab.", _character),
    Property("quote", "STRING", '"', "The character around fields with delimiters.", _character, "LOW"),
    Property("null.text", "STRING", "", "The text of a field that is null.", importance="LOW"),
    Property(
        "schemas.enable",
        "BOOLEAN",
        False,
        "Whether records have a schema, so that tables and columns can be made of them.",
    ),
)


@dataclass(frozen=True)
class CsvBytes:
    """CsvConverter."""

    columns: tuple[tuple[str, str], ...]
    delimiter: str
    quote: str
    null: str
    schema: Schema | None

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> CsvBytes:
        """The converter of valid options."""
        typed_names = tuple(columns(values["columns"]))
        fields = [{"field": name, "type": kind, "optional": True} for name, kind in typed_names]
        schema: Schema = {"type": "struct", "fields": fields, "optional": True}
        delimiter, quote = unescaped(values["delimiter"]), unescaped(values["quote"])
        return cls(typed_names, delimiter, quote, values["null.text"], schema if values["schemas.enable"] else None)

    def __call__(self, data: bytes | None) -> Part:
        if data is None:
            return NOTHING
        fields = self._fields(data)
        if len(fields) != len(self.columns):
            raise NoValue(f"it has {len(fields)} fields, and columns names {len(self.columns)}")
        pairs = zip(self.columns, fields, strict=True)
        return Part(self.schema, {name: self._value(name, kind, text) for (name, kind), text in pairs})

    def _fields(self, data: bytes) -> list[str]:
        try:
            text = data.decode().removesuffix("\n").removesuffix("\r")
            lines = csv.reader([text], delimiter=self.delimiter, quotechar=self.quote, strict=True)
            return next(lines, None) or [""]
        except UnicodeDecodeError:
            raise NoValue("it is not UTF-8") from None
        except csv.Error as error:
            raise NoValue(f"it is not a line of CSV: {error}") from None

    def _value(self, name: str, kind: str, text: str) -> Any:
        if text == self.null:
            return None
        try:
            return text if kind == "string" else _READERS[kind](text)
        except ValueError:
            raise NoValue(f"its column {name} is {text[:80]!r}, which is no {kind}") from None


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise NoValue(text)
    return text.lower() == "true"


def _real(bits: int) -> Callable[[str], float]:
    def read(text: str) -> float:
        value = java_numbers.parsed_double(text)
        return binary(exact_json.decimal(text) if _DIGITS.fullmatch(text) else value, bits)

    return read


def _integer(kind: str) -> Callable[[str], int]:
    return lambda text: java_numbers.parsed_integer(text, kind)


_READERS: dict[str, Callable[[str], Any]] = {
    "boolean": _boolean,
    **{kind: _integer(kind) for kind in INTEGERS},
    "float": _real(FLOAT),
    "double": _real(DOUBLE),
}
