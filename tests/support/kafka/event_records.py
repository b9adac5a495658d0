"""Events of hand-made change frames, and the Connect schemas that they must fit."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from change_frames import Table
from pyspark.sql import Row, SparkSession

from penstock import cdc


def events(spark: SparkSession, table: Table, rows: Sequence[dict[str, Any]], **options: Any) -> list[Row]:
    return cdc.events(table.frame(spark, rows), **{"prefix": "p", **options}).collect()


def values(rows: Sequence[Row]) -> list[Any]:
    return [row.value and json.loads(row.value) for row in rows]


def struct(name: str, optional: bool, **fields: Any) -> dict[str, Any]:
    members = [{**schema, "field": field} for field, schema in fields.items()]
    return {"type": "struct", "fields": members, "optional": optional, "name": name}


def optional(kind: str) -> dict[str, Any]:
    return {"type": kind, "optional": True}


JSON_TYPES: dict[str, type | tuple[type, ...]] = {
    "boolean": bool,
    "bytes": str,
    "double": (float, str),
    "float": (float, str),
    "string": str,
    **dict.fromkeys(("int8", "int16", "int32", "int64"), int),
}


def assert_fits(payload: Any, schema: dict[str, Any]) -> None:
    if payload is None:
        assert schema["optional"], schema
    elif schema["type"] == "struct":
        assert list(payload) == [field["field"] for field in schema["fields"]]
        for field in schema["fields"]:
            assert_fits(payload[field["field"]], field)
    elif schema["type"] == "array":
        for element in payload:
            assert_fits(element, schema["items"])
    else:
        assert isinstance(payload, JSON_TYPES[schema["type"]]), schema
