"""The Kafka Connect schema of a table's events, as JsonConverter writes it; plain data, no Spark.

Names, order and optional flags are the same as in ScyllaDB's CDC source connector on Debezium 2.7, so that a consumer
that registers or compares schemas sees no difference. The member order inside a schema object is JsonConverter's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from pyspark.sql import Column, SparkSession, functions as F, types as st

from penstock.codec.change_frame import Layout, alike
from penstock.database.cql_types import SCALARS, CqlType
from penstock.errors import PenstockError

PRIMITIVES: dict[str, st.DataType] = {
    "boolean": st.BooleanType(),
    "bytes": st.BinaryType(),
    "double": st.DoubleType(),
    "float": st.FloatType(),
    "int8": st.ByteType(),
    "int16": st.ShortType(),
    "int32": st.IntegerType(),
    "int64": st.LongType(),
    "string": st.StringType(),
}
NAMES = {type(kind): name for name, kind in PRIMITIVES.items()}
"""Connect's name of each Spark type."""
Schema = dict[str, Any]
SETTING = "spark.sql.caseSensitive"

_LOGICAL = {
    "date": ("int32", "org.apache.kafka.connect.data.Date"),
    "timestamp": ("int64", "org.apache.kafka.connect.data.Timestamp"),
}


def avro_name(name: str) -> str:
    """The name as Debezium adjusts it: characters that Avro forbids become `_`; a leading digit is kept after `_`."""
    first = name[:1]
    start = first if re.match("[A-Za-z_]", first) else "_" + re.sub("[^0-9]", "", first)
    return start + re.sub("[^A-Za-z0-9_.]", "_", name[1:])


def key_schema(table: Layout, prefix: str) -> Schema:
    """The record key: key columns, all optional, in a required struct."""
    return _struct(_key_fields(table, table.key), f"{_base(table, prefix)}.Key")


def envelope_schema(
    table: Layout,
    prefix: str,
    *,
    images: tuple[bool, bool],
    payload_key: str | None,
    ranged: bool,
    cells: bool,
    extended: bool,
    timed: bool = False,
) -> Schema:
    """The event; `images` says whether before and after hold the key columns, `ranged` adds the deleted range.

    `cells` is for the legacy format, where each column outside the key is wrapped in a struct `Cell`. `extended` adds
    the member `change`, and `timed` the member `times`.
    """
    base = _base(table, prefix)
    fields = [
        ("source", _source()),
        ("before", _image(table, f"{base}.Before", base, images[0], cells)),
        ("after", _image(table, f"{base}.After", base, images[1], cells)),
    ]
    if payload_key is not None:
        fields.append((payload_key, key_schema(table, prefix)))
    fields += [
        ("op", _primitive("string")),
        ("ts_ms", _primitive("int64")),
        ("transaction", _transaction()),
        ("ts_us", _primitive("int64")),
        ("ts_ns", _primitive("int64")),
    ]
    if extended:
        fields.append(("change", _change(table, base)))
    if timed:
        fields.append(("times", _times(table, base)))
    if ranged:
        fields.append(("range", _range(table, base)))
    return _struct(fields, f"{base}.Envelope")


def column_schema(kind: CqlType, namespace: str) -> Schema:
    """The schema of one value; `namespace` (empty or ending with a dot) is the prefix of the names of inner structs."""
    if kind.name in _LOGICAL:
        primitive, name = _LOGICAL[kind.name]
        return {"type": primitive, "optional": True, "name": name, "version": 1}
    if kind.name in ("list", "set", "vector"):
        return _array(column_schema(kind.args[0], namespace))
    if kind.name == "map":
        key, value = (column_schema(arg, namespace) for arg in kind.args)
        name = f"{namespace}MapEntry_{_type_name(kind.args[0])}_{_type_name(kind.args[1])}"
        return _array(_struct([("key", key), ("value", value)], name))
    if kind.name in ("tuple", "udt"):
        names = kind.fields or tuple(f"field_{i}" for i in range(len(kind.args)))
        fields = [(n, column_schema(arg, namespace)) for n, arg in zip(names, kind.args, strict=True)]
        return _struct(fields, namespace + _type_name(kind), optional=True)
    return _primitive(NAMES[type(SCALARS[kind.name])])


def _type_name(kind: CqlType) -> str:
    if kind.name == "udt":
        return "UDT_" + kind.udt.replace(".", "_").replace("-", "_")
    if kind.args:
        return "_".join([kind.name.capitalize(), *map(_type_name, kind.args)])
    return "VARCHAR" if kind.name == "text" else kind.name.upper()


def _base(table: Layout, prefix: str) -> str:
    return avro_name(f"{prefix}.{table.full_name}")


def _primitive(name: str, optional: bool = True) -> Schema:
    return {"type": name, "optional": optional}


def _array(items: Schema) -> Schema:
    return {"type": "array", "items": items, "optional": True}


def _struct(
    fields: Iterable[tuple[str, Schema]], name: str, *, optional: bool = False, version: int | None = None
) -> Schema:
    schema: Schema = {
        "type": "struct",
        "fields": [{**field, "field": field_name} for field_name, field in fields],
        "optional": optional,
        "name": name,
    }
    return schema if version is None else {**schema, "version": version}


def _key_fields(table: Layout, names: Iterable[str]) -> list[tuple[str, Schema]]:
    # The connector names structs inside key columns without the table's namespace.
    return [(name, column_schema(table.types[name], "")) for name in names]


def _image(table: Layout, name: str, base: str, with_key: bool, cells: bool) -> Schema:
    fields = []
    for column in table.columns:
        if column in table.key:
            fields += _key_fields(table, [column]) if with_key else []
            continue
        value = column_schema(table.types[column], f"{base}.")
        fields.append((column, _cell(value, f"{base}.{column}") if cells else value))
    return _struct(fields, name, optional=True)


def _cell(value: Schema, name: str) -> Schema:
    return _struct([("value", value)], avro_name(f"{name}.Cell"), optional=True)


def _source() -> Schema:
    text, number = _primitive("string", optional=False), _primitive("int64")
    snapshot = {
        "type": "string",
        "optional": True,
        "name": "io.debezium.data.Enum",
        "version": 1,
        "parameters": {"allowed": "true,last,false,incremental"},
        "default": "false",
    }
    fields = [
        ("version", text),
        ("connector", text),
        ("name", text),
        ("ts_ms", _primitive("int64", optional=False)),
        ("snapshot", snapshot),
        ("db", text),
        ("sequence", _primitive("string")),
        ("ts_us", number),
        ("ts_ns", number),
        ("keyspace_name", text),
        ("table_name", text),
    ]
    return _struct(fields, "com.scylladb.cdc.debezium.connector")


def _transaction() -> Schema:
    number = _primitive("int64", optional=False)
    fields = [
        ("id", _primitive("string", optional=False)),
        ("total_order", number),
        ("data_collection_order", number),
    ]
    return _struct(fields, "event.block", optional=True, version=1)


def _range(table: Layout, base: str) -> Schema:
    bound = _struct(_key_fields(table, table.clustering_key), f"{base}.Bound", optional=True)
    inclusive = _primitive("boolean", optional=False)
    fields = [("start", bound), ("start_inclusive", inclusive), ("end", bound), ("end_inclusive", inclusive)]
    if len(table.clustering_key) > 1:
        fields.append(("order", _array(_primitive("string"))))
    # Optional, so that registries accept envelopes with and without it as compatible.
    return _struct(fields, f"{base}.Range", optional=True)


def _change(table: Layout, base: str) -> Schema:
    names, text = _array(_primitive("string")), _primitive("string")
    values = [(name, column_schema(kind, f"{base}.")) for name, kind in table.fields("delta").items()]
    elements = [
        (name, _elements(table.types[name], kind, base)) for name, kind in table.fields("deleted_elements").items()
    ]
    fields = [("touched", names), ("set_to_null", names)]
    if values:
        fields.append(("values", _struct(values, f"{base}.Values", optional=True)))
    if elements:
        fields.append(("removed_elements", _struct(elements, f"{base}.RemovedElements", optional=True)))
    fields += [
        ("ttl", _primitive("int64")),
        ("stream_id", text),
        ("time", text),
        ("batch_seq_no", _primitive("int32")),
        ("end_of_batch", _primitive("boolean")),
    ]
    return _struct(fields, f"{base}.Change", optional=True)


def _times(table: Layout, base: str) -> Schema:
    values = {name: kind for name, kind in table.types.items() if name not in table.key}
    number = _primitive("int64")
    each = [(name, _array(number) if kind.multi_cell else number) for name, kind in values.items()]
    fields = [("expires", number)]
    if each:
        fields += [
            ("write_times", _struct(each, f"{base}.WriteTimes", optional=True)),
            ("expiries", _struct(each, f"{base}.Expiries", optional=True)),
        ]
    lists = [(name, _whole_list(name, kind, base)) for name, kind in values.items() if kind.nonfrozen_list]
    if lists:
        fields.append(("lists", _struct(lists, f"{base}.Lists", optional=True)))
    fields.append(("inserted", _struct([("time", number), ("expires", number)], f"{base}.Inserted", optional=True)))
    return _struct(fields, f"{base}.Times", optional=True)


def _whole_list(name: str, kind: CqlType, base: str) -> Schema:
    fields = [("values", column_schema(kind, f"{base}.")), ("expiries", _array(_primitive("int64")))]
    return _struct(fields, avro_name(f"{base}.{name}.List"), optional=True)


def _elements(column: CqlType, removed: CqlType, base: str) -> Schema:
    """The schema of removed elements; removed fields of a user type are given by name."""
    return _array(_primitive("string")) if column.name == "udt" else column_schema(removed, f"{base}.")


# The Spark type of a payload with a given Kafka Connect schema.


def spark_type(schema: Schema) -> st.DataType:
    """The Spark type; dates and timestamps are the numbers under Connect's logical types."""
    if schema["type"] == "array":
        return st.ArrayType(spark_type(schema["items"]))
    if schema["type"] == "map":
        return st.MapType(spark_type(schema["keys"]), spark_type(schema["values"]))
    if schema["type"] != "struct":
        return PRIMITIVES[schema["type"]]
    return st.StructType([st.StructField(field["field"], spark_type(field)) for field in schema["fields"]])


def nothing(schema: Schema) -> Column:
    """A null of the Spark type of `schema`."""
    return F.lit(None).cast(spark_type(schema))


def require_told_apart(schema: Schema) -> None:
    """Raise PenstockError if Spark cannot distinguish two fields of a schema by name."""
    for struct in _structs(schema):
        names = alike(field["field"] for field in struct["fields"])
        if names and SparkSession.active().conf.get(SETTING) != "true":
            raise PenstockError(
                f"Spark does not distinguish the fields {' and '.join(names)}, which differ only in case",
                where=str(struct.get("name") or "a struct without a name"),
                next=f'call spark.conf.set("{SETTING}", "true") before you encode the records, or send them as JSON',
            )


def _structs(schema: Schema) -> Iterator[Schema]:
    """The structs in a schema, at any depth."""
    if "fields" in schema:
        yield schema
    for inner in (*schema.get("fields", ()), *(schema[part] for part in ("items", "values") if part in schema)):
        yield from _structs(inner)
