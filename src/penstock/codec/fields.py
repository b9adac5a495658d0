"""Fields of structs by name, in any case of letters: by default Spark takes `v` and `V` for one, CQL does not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from pyspark.sql import Column, SparkSession
from pyspark.sql import types as st

from penstock.codec.connect_schema import Schema
from penstock.errors import PenstockError
from penstock.schema import CqlType, spark_type

SETTING = "spark.sql.caseSensitive"


def field_of(struct: Column, name: str, kinds: Mapping[str, CqlType]) -> Column:
    """The field `name` of a struct whose fields, in order, are `kinds`."""
    if not _alike(kinds):
        return struct.getField(name)
    # A cast takes fields by their place. Spark copies the struct for it, so it is left out where names will do.
    renamed = [st.StructField(f"_{place}", spark_type(kind)) for place, kind in enumerate(kinds.values())]
    return struct.cast(st.StructType(renamed)).getField(f"_{list(kinds).index(name)}")


def require_told_apart(schema: Schema) -> None:
    """Refuse a schema for an encoding that asks Spark for fields by name, if Spark would take two for one."""
    for struct in _structs(schema):
        alike = _alike(field["field"] for field in struct["fields"])
        if alike and SparkSession.active().conf.get(SETTING) != "true":
            raise PenstockError(
                f"Spark takes the fields {' and '.join(alike)} for one: they differ only in the case of letters",
                where=str(struct.get("name") or "a struct without a name"),
                next=f'spark.conf.set("{SETTING}", "true") before the events are made, or send them in JSON',
            )


def _structs(schema: Schema) -> Iterator[Schema]:
    """The structs in a schema, at any depth."""
    if "fields" in schema:
        yield schema
    for inner in (*schema.get("fields", ()), *(schema[part] for part in ("items", "values") if part in schema)):
        yield from _structs(inner)


def _alike(names: Iterable[str]) -> list[str]:
    """The first names that differ only in case."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(name.casefold(), []).append(name)
    return next((each for each in found.values() if len(each) > 1), [])
